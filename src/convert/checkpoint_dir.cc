#include "convert/checkpoint_dir.h"

#include <algorithm>

#include "base/check.h"
#include "base/file.h"
#include "io/formats.h"

namespace qlora {

namespace fs = std::filesystem;

namespace {

bool IsCompanion(const std::string& name) {
  if (name == "config.json" || name.ends_with(".index.json")) return false;
  return name.ends_with(".json") || name.ends_with(".jinja") || name.ends_with(".txt") ||
         name == "tokenizer.model" || name == "README.md" || name.rfind("LICENSE", 0) == 0;
}

fs::path Hidden(const fs::path& target, const char* suffix) {
  return target.parent_path() / ("." + target.filename().string() + suffix);
}

}  // namespace

void CheckCheckpointTarget(const fs::path& target, bool overwrite,
                           const std::vector<fs::path>& sources) {
  std::error_code ignored;
  if (target.empty()) ThrowInvalidInput("no output directory given");
  if (!fs::exists(target, ignored)) return;
  const std::string name = target.string();
  if (!fs::is_directory(target, ignored)) {
    ThrowInvalidInput("{} is a file; choose a directory", name);
  }
  for (const fs::path& source : sources) {
    if (Contains(fs::canonical(target), fs::canonical(source))) {
      ThrowInvalidInput("{} holds {}, which is read from; choose another directory", name,
                        source.string());
    }
  }
  if (fs::is_empty(target, ignored)) return;
  if (!overwrite) {
    ThrowInvalidInput("{} is not empty; give --overwrite to replace a checkpoint in it", name);
  }
  if (!HoldsModel(target)) {
    ThrowInvalidInput(
        "{} holds no checkpoint; --overwrite replaces a whole directory, and only a "
        "checkpoint's: choose another directory",
        name);
  }
}

CheckpointDir::CheckpointDir(const fs::path& target)
    : target_(fs::absolute(target).lexically_normal()) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "out/"
  temporary_ = Hidden(target_, ".unfinished");
  std::error_code error;
  fs::remove_all(temporary_, error);
  fs::create_directories(temporary_, error);
  if (error) ThrowInvalidInput("cannot make {}: {}", temporary_.string(), error.message());
}

CheckpointDir::~CheckpointDir() {
  std::error_code ignored;
  if (!done_) fs::remove_all(temporary_, ignored);
}

void CheckpointDir::CopyCompanions(const fs::path& model_dir) const {
  for (const auto& entry : fs::directory_iterator(model_dir)) {
    const std::string name = entry.path().filename().string();
    std::error_code error;
    if (!fs::is_regular_file(entry.path(), error) || !IsCompanion(name)) continue;
    fs::copy_file(entry.path(), temporary_ / name, fs::copy_options::overwrite_existing, error);
    if (error) ThrowRuntime("cannot copy {}: {}", entry.path().string(), error.message());
  }
}

std::vector<std::string> CheckpointDir::Commit() {
  std::error_code error;
  const fs::path replaced = Hidden(target_, ".replaced");
  fs::remove_all(replaced, error);
  const bool replaces = fs::exists(target_);
  if (replaces && !error) fs::rename(target_, replaced, error);
  if (!error) {
    fs::rename(temporary_, target_, error);
    std::error_code ignored;
    if (error && replaces) fs::rename(replaced, target_, ignored);
  }
  if (error) ThrowRuntime("cannot put {} in place: {}", target_.string(), error.message());
  done_ = true;
  fs::remove_all(replaced, error);
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(target_)) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace qlora
