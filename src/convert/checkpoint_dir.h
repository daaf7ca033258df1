// A checkpoint folder in the making: filled under a temporary name, then renamed.
#ifndef QLORA_CONVERT_CHECKPOINT_DIR_H_
#define QLORA_CONVERT_CHECKPOINT_DIR_H_

#include <filesystem>
#include <string>
#include <vector>

namespace qlora {

// Errors: InvalidInput unless a checkpoint may be written to `target`: it is new or empty, or
// `overwrite` is given and it holds a checkpoint and nothing of `sources` (the model, the adapter).
void CheckCheckpointTarget(const std::filesystem::path& target, bool overwrite,
                           const std::vector<std::filesystem::path>& sources);

class CheckpointDir {
 public:
  explicit CheckpointDir(const std::filesystem::path& target);
  ~CheckpointDir();
  CheckpointDir(const CheckpointDir&) = delete;
  CheckpointDir& operator=(const CheckpointDir&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // where to write
  // Copies what makes a model usable beside its weights and config.json: tokenizer, templates,
  // generation settings.
  void CopyCompanions(const std::filesystem::path& model_dir) const;
  // Puts the folder in its place, replacing what was there, which is removed only once the new
  // folder stands. Returns its files.
  std::vector<std::string> Commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool done_ = false;
};

}  // namespace qlora

#endif  // QLORA_CONVERT_CHECKPOINT_DIR_H_
