#include "convert/model_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "convert/gguf_base.h"
#include "io/folder_lock.h"
#include "io/gguf_path.h"
#include "io/peft/peft_config.h"
#include "io/safetensors.h"

namespace qlora {

namespace fs = std::filesystem;

namespace {

// The parts of a hidden folder: the new checkpoint, and the checkpoint that it replaces.
constexpr const char* kNew = "new";
constexpr const char* kOld = "old";

bool IsCompanion(const std::string& name) {
  if (name == "config.json" || name.ends_with(".index.json")) return false;
  return name.ends_with(".json") || name.ends_with(".jinja") || name.ends_with(".txt") ||
         name == "tokenizer.model" || name == "README.md" || name.rfind("LICENSE", 0) == 0;
}

std::string HiddenPrefix(const fs::path& target) {
  return "." + target.filename().string() + ".unfinished-";
}

constexpr std::string_view kRandom = "XXXXXX";  // the end of a hidden name, as mkdtemp wants it

// Returns a new folder in the folder of `target`, so that it is on the same file system.
fs::path MakeHidden(const fs::path& target) {
  std::string name = (target.parent_path() / HiddenPrefix(target)).string() + std::string(kRandom);
  if (mkdtemp(name.data()) == nullptr) {
    ThrowInvalidInput("cannot write in the folder of {}: {}", target.string(),
                      std::strerror(errno));
  }
  return name;
}

// True for the names of files that a checkpoint or an adapter consists of, which --overwrite
// removes.
bool IsOfCheckpoint(const std::string& name) {
  constexpr std::string_view kNames =
      "config.json generation_config.json tokenizer.json tokenizer.model tokenizer_config.json "
      "special_tokens_map.json added_tokens.json vocab.json merges.txt vocab.txt "
      "chat_template.jinja chat_template.json model.safetensors model.safetensors.index.json "
      "preprocessor_config.json processor_config.json qlora_prompt.json qlora_quantized_from.json "
      "adapter_config.json adapter_model.safetensors adapters.safetensors qlora_base.json";
  const bool shard = name.starts_with("model-") && name.ends_with(".safetensors");
  return shard || HasWord(kNames, name);
}

// Moves the files of `from` that are not of a checkpoint and not in `to` into `to`, and removes the
// rest.
void KeepOtherFiles(const fs::path& from, const fs::path& to) {
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    const bool is_file = fs::is_regular_file(entry.symlink_status());
    if (is_file && (IsOfCheckpoint(name.string()) || fs::exists(to / name))) {
      fs::remove(entry.path());
    } else {
      others.push_back(name);
    }
  }
  for (const fs::path& name : others) fs::rename(from / name, to / name);
  fs::remove(from);
}

// Returns an absolute path without a slash at the end. A link is resolved, so that the folder
// behind the link is renamed and not the link; also while that folder is moved aside and the link
// leads to nothing.
fs::path Named(const fs::path& target) {
  fs::path path = fs::absolute(target).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  const fs::path linked = fs::read_symlink(path, error);
  if (error) return path;
  const fs::path resolved = fs::weakly_canonical(path.parent_path() / linked, error);
  return error ? path : resolved;
}

// True when a folder cannot get the name because something has it.
bool IsTaken(const std::error_code& code) {
  return code == std::errc::directory_not_empty || code == std::errc::file_exists ||
         code == std::errc::not_a_directory;
}

// Brings `target` into the state before or after the replacement, when the process was killed in
// Commit(), and removes the hidden folder of that process. The parts of the folder tell how far the
// process had come:
//
//   target  old  new
//     yes    -   yes   before the first rename: `new` is not needed
//      -    yes  yes   between the renames: `old` is put back
//     yes   yes   -    after the second rename: files of the user move on from `old` to `target`
//
// In any other state someone else has changed the folders, and the content of `old` stays there.
// Returns true when `old` was put back.
bool Recover(const fs::path& hidden, const fs::path& target) {
  const bool has_target = fs::exists(target);
  const bool has_new = fs::exists(hidden / kNew);
  bool is_back = false;
  if (fs::exists(hidden / kOld)) {
    if (has_target == has_new) return false;
    if (has_target && !HoldsModel(target) && !fs::exists(target / kAdapterConfig)) return false;
    if (has_target) KeepOtherFiles(hidden / kOld, target);
    if (!has_target) {
      fs::rename(hidden / kOld, target);
      is_back = true;
    }
  }
  fs::remove_all(hidden);
  return is_back;
}

// Recovers from every process that was killed while it wrote `target`; true as above.
bool RecoverAll(const fs::path& target) {
  std::error_code ignored;
  std::vector<fs::path> abandoned;
  for (const auto& entry : fs::directory_iterator(target.parent_path(), ignored)) {
    if (!entry.path().filename().string().starts_with(HiddenPrefix(target))) continue;
    abandoned.push_back(entry.path());
  }
  bool is_back = false;
  for (const fs::path& hidden : abandoned) {
    FolderLock lock;  // held by a process that still writes
    if (!lock.Take(hidden)) continue;
    try {
      is_back = Recover(hidden, target) || is_back;
    } catch (const fs::filesystem_error& error) {
      ThrowRuntime("the files of an interrupted command in {} cannot be put in place: {}",
                   hidden.string(), error.what());
    }
  }
  return is_back;
}

}  // namespace

void RecoverFolder(const fs::path& target) { RecoverAll(Named(target)); }

void CheckModelFolder(const fs::path& target, bool overwrite,
                      const std::vector<fs::path>& sources) {
  std::error_code ignored;
  if (target.empty()) ThrowInvalidInput("no output directory given");
  const bool is_back = RecoverAll(Named(target));
  if (!fs::exists(target, ignored)) return;
  const std::string name = target.string();
  if (!fs::is_directory(target, ignored)) {
    ThrowInvalidInput("{} is a file; choose a directory", name);
  }
  for (const fs::path& source : sources) {
    if (fs::equivalent(target, source)) {
      ThrowInvalidInput("{} is read from; choose another directory to write to", name);
    }
    if (Contains(fs::canonical(target), fs::canonical(source))) {
      ThrowInvalidInput("{} holds {}, which is read from; choose another directory", name,
                        source.string());
    }
  }
  if (fs::is_empty(target, ignored)) return;
  if (!overwrite) {
    ThrowInvalidInput("{} is not empty{}; give --overwrite to replace a checkpoint in it", name,
                      is_back ? " (a command was killed while it replaced the checkpoint in it, "
                                "which is back now)"
                              : "");
  }
  if (!HoldsModel(target)) {
    ThrowInvalidInput(
        "{} holds no checkpoint, and --overwrite replaces nothing else; choose another directory",
        name);
  }
}

void NamingTarget(const fs::path& target, const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    const fs::path named = Named(target);
    const std::string prefix = (named.parent_path() / HiddenPrefix(named)).string();
    std::string text = error.what();
    const std::size_t at = text.find(prefix);
    if (at == std::string::npos) throw;
    const std::string made =
        text.substr(at, prefix.size() + kRandom.size()) + "/" + kNew;  // of this process
    throw Error(error.code(), ReplaceAll(std::move(text), made, target.string()));
  }
}

NewModelFolder::NewModelFolder(const fs::path& target, OpenMode mode)
    : target_(Named(target)), mode_(mode) {
  std::error_code error;
  fs::create_directories(target_.parent_path(), error);
  if (error) ThrowInvalidInput("cannot make {}: {}", target_.string(), error.message());
  hidden_ = MakeHidden(target_);
  lock_.Take(hidden_);
  new_ = hidden_ / kNew;
  fs::create_directory(new_, error);
  if (error) ThrowInvalidInput("cannot make {}: {}", new_.string(), error.message());
}

NewModelFolder::~NewModelFolder() {
  std::error_code ignored;
  if (!fs::exists(hidden_ / kOld, ignored)) fs::remove_all(hidden_, ignored);
}

std::string NewModelFolder::CopyCompanions(const fs::path& model) const {
  if (const auto gguf = FindGguf(model)) return WriteTokenizerOf(*gguf, new_);
  for (const auto& entry : fs::directory_iterator(model)) {
    const std::string name = entry.path().filename().string();
    std::error_code error;
    if (!fs::is_regular_file(entry.path(), error) || !IsCompanion(name)) continue;
    fs::copy_file(entry.path(), new_ / name, fs::copy_options::overwrite_existing, error);
    if (error) ThrowRuntime("cannot copy {}: {}", entry.path().string(), error.message());
  }
  return "";
}

// The old folder is moved aside, then the new one gets its name, so that the name never belongs to
// an incomplete folder. Files of the user are moved from the old folder to the new one.
std::vector<std::string> NewModelFolder::Commit() {
  const fs::path old = hidden_ / kOld;
  const bool replaces = mode_ == OpenMode::kReplace && fs::exists(target_);
  try {
    if (replaces) fs::rename(target_, old);
    fs::rename(new_, target_);  // an error where a folder with files has the name
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    if (!replaces && IsTaken(error.code())) {
      ThrowInvalidInput("{}: appeared while its content was being made, and is not replaced",
                        target_.string());
    }
    if (!fs::exists(target_, ignored)) fs::rename(old, target_, ignored);
    ThrowRuntime("cannot put {} in place: {}", target_.string(), error.what());
  }
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(target_)) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  try {
    if (replaces) KeepOtherFiles(old, target_);
  } catch (const fs::filesystem_error& error) {
    ThrowRuntime("{} is complete, but files that were there are left in {}: {}", target_.string(),
                 old.string(), error.what());
  }
  return files;
}

}  // namespace qlora
