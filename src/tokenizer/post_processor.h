// The post-processor of a tokenizer.json: the special tokens that are put around a text.
#ifndef QLORA_TOKENIZER_POST_PROCESSOR_H_
#define QLORA_TOKENIZER_POST_PROCESSOR_H_

#include <cstdint>
#include <vector>

#include "tokenizer/json_value.h"

namespace qlora {

struct PostProcessor {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;

  // Supported: Sequence, ByteLevel, TemplateProcessing (the template "single" only); null adds
  // nothing. Errors: InvalidInput for others, naming the key.
  static PostProcessor Parse(const JsonValue& config);
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_POST_PROCESSOR_H_
