// The decoder of a tokenizer.json: from the texts of tokens back to text.
#ifndef QLORA_TOKENIZER_TOKEN_DECODER_H_
#define QLORA_TOKENIZER_TOKEN_DECODER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_value.h"
#include "tokenizer/token_decoder_steps.h"

namespace qlora {

class TokenDecoder {
 public:
  // The state of one text.
  class State {
   public:
    explicit State(const TokenDecoder& decoder);

    // Appends to *text what has become certain: whole characters that no later token can change.
    void Add(std::string_view token, std::string* text);
    // Appends the rest. Tokens that are added later continue behind it.
    void Finish(std::string* text);

   private:
    std::vector<std::unique_ptr<DecoderStep>> steps_;  // each hands on to the next
    DecoderOutput* output_;                            // the last step
  };

  // Supported: Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace; null joins
  // tokens with spaces. Errors: InvalidInput for others, naming the key.
  static TokenDecoder Parse(const JsonValue& config);

 private:
  std::vector<DecoderStepFactory> steps_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKEN_DECODER_H_
