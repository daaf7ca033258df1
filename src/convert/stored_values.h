// What a checkpoint of Hugging Face stores otherwise than OpenCheckpoint reads it: nothing of a
// checkpoint, but of a GGUF file norms of w, not w - 1, and the rates of a delta rule.
#ifndef QLORA_CONVERT_STORED_VALUES_H_
#define QLORA_CONVERT_STORED_VALUES_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "config/config.h"
#include "io/tensor_file.h"

namespace qlora {

class StoredValues {
 public:
  StoredValues(const DecoderConfig& config, const TensorReader& reader);

  // The name in the checkpoint of a tensor that is read as `name`.
  const std::string& NameOf(const std::string& name) const;
  bool Changes(const std::string& name) const { return rows_.contains(name); }
  // Turns values as they are read into those of the checkpoint.
  void Apply(const std::string& name, std::span<float> values);
  // A remark where a value of A_log in float32 is not one that gives the file's rate; or "".
  std::string Note() const;

 private:
  struct Row {
    bool is_rate = false;
    std::string name;  // in the checkpoint
  };

  std::map<std::string, Row> rows_;  // by the name that is read
  std::int64_t rounded_ = 0;
};

}  // namespace qlora

#endif  // QLORA_CONVERT_STORED_VALUES_H_
