// A JSON file of a model that need not exist: a missing file reads as an empty object.
#ifndef QLORA_TOKENIZER_OPTIONAL_FILE_H_
#define QLORA_TOKENIZER_OPTIONAL_FILE_H_

#include <filesystem>
#include <string>

#include "io/json.h"
#include "tokenizer/json_value.h"

namespace qlora {

class OptionalFile {
 public:
  explicit OptionalFile(const std::filesystem::path& path) : where_(path.string() + ": ") {
    if (std::filesystem::exists(path)) document_ = ReadJsonFile(path);
    if (!document_.is_object()) Root().Fail("a JSON object");
  }
  JsonValue Root() const { return {&document_, where_}; }

 private:
  Json document_ = Json::object();
  std::string where_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_OPTIONAL_FILE_H_
