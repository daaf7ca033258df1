#include "convert/checkpoint_dir.h"

#include <algorithm>

#include "base/check.h"

namespace qlora {

namespace fs = std::filesystem;

namespace {

bool IsCompanion(const std::string& name) {
  if (name == "config.json" || name.ends_with(".index.json")) return false;
  return name.ends_with(".json") || name.ends_with(".jinja") || name.ends_with(".txt") ||
         name == "tokenizer.model" || name == "README.md" || name.rfind("LICENSE", 0) == 0;
}

}  // namespace

CheckpointDir::CheckpointDir(const fs::path& target)
    : target_(fs::absolute(target).lexically_normal()) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "out/"
  temporary_ = target_.parent_path() / ("." + target_.filename().string() + ".unfinished");
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
  fs::remove_all(target_, error);
  if (!error) fs::rename(temporary_, target_, error);
  if (error) ThrowRuntime("cannot put {} in place: {}", target_.string(), error.message());
  done_ = true;
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(target_)) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace qlora
