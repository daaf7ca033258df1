// A checkpoint folder in the making: filled under a temporary name, then renamed.
//
// quantize.cc writes a 4-bit checkpoint, one tensor at a time, through io/tensor_file.h. export.cc
// loads the base in the form that the adapter was trained on (model/base_record.h), merges it row
// by row, and streams the result to a GGUF file (export_gguf.h) or to safetensors (export_hf.h).
// verify.h reads the result back and compares its log-probabilities with the source.
//
//   gguf_metadata.h   the keys that describe a decoder; config/gguf_names.h has llama.cpp's names
//   gguf_tokenizer_keys.h the tokenizer as GGUF keys
//   export_adapter.h  adapters for PEFT and mlx-lm; adapter/lora_values.h reads all formats
//   gguf_base.h       what holds for a base that is a GGUF file itself
//   config_json.h     config.json for it
//   verify_report.h   export_report.json
//   calibration.h     the mean square of the inputs of linears, which weighs errors of quantization
//   merged_linear.h   the rows of a weight with its adapter merged in
//   quantized_base.cc the base of --save_quantized: found, made, and planned on
//   inspect.cc        the report of `qlora inspect` about a file or a folder
#ifndef QLORA_CONVERT_MODEL_FOLDER_H_
#define QLORA_CONVERT_MODEL_FOLDER_H_

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/folder_lock.h"

namespace qlora {

// Finishes the replacement of `target` that a killed command began.
void RecoverFolder(const std::filesystem::path& target);

// Finishes the replacement that a killed command began: the earlier checkpoint is put back in
// `target`, or, where the new checkpoint was in place already, the rest of the replacement is done.
// Errors: InvalidInput unless a checkpoint may be written to `target`: `target` is new or empty, or
// `overwrite` is given and `target` holds a checkpoint and nothing of `sources` (the model, the
// adapter).
void CheckModelFolder(const std::filesystem::path& target, bool overwrite,
                      const std::vector<std::filesystem::path>& sources);

// Runs `write`, which makes a NewModelFolder for `target`. Errors name a file of it by its place in
// `target`, not in the hidden folder, which is gone when they are read.
void NamingTarget(const std::filesystem::path& target, const std::function<void()>& write);

class NewModelFolder {
 public:
  // mode: kReplace, or kCreate, under which a folder with files that appears meanwhile stays.
  NewModelFolder(const std::filesystem::path& target, OpenMode mode);
  ~NewModelFolder();
  NewModelFolder(const NewModelFolder&) = delete;
  NewModelFolder& operator=(const NewModelFolder&) = delete;

  const std::filesystem::path& path() const { return new_; }  // where to write
  // Copies the files that make a model usable, apart from weights and config.json: tokenizer,
  // templates, generation settings; of a GGUF file they are made. Returns a remark, or "".
  std::string CopyCompanions(const std::filesystem::path& model) const;
  // Puts the folder in its place. A checkpoint that was there is removed once the new folder is in
  // place; other files that were there stay. Returns the files of the new checkpoint. Errors:
  // InvalidInput when something appeared meanwhile; Runtime.
  std::vector<std::string> Commit();

 private:
  std::filesystem::path target_;
  OpenMode mode_;
  std::filesystem::path hidden_;  // in the folder of target_; of this process alone
  std::filesystem::path new_;     // in hidden_
  FolderLock lock_;               // of hidden_, which a later process removes when it is not held
};

}  // namespace qlora

#endif  // QLORA_CONVERT_MODEL_FOLDER_H_
