// The decoder of a tokenizer.json: from the texts of tokens back to text.
#ifndef QLORA_TOKENIZER_TOKEN_DECODER_H_
#define QLORA_TOKENIZER_TOKEN_DECODER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer_json.h"

namespace qlora {

class TokenDecoder {
 public:
  class Step;

  // The state of one text.
  class State {
   public:
    explicit State(const TokenDecoder& decoder);
    ~State();
    State(State&&) noexcept;
    State& operator=(State&&) noexcept;

    // Appends to *text what has become certain: whole characters that no later token can change.
    void Add(std::string_view token, std::string* text);
    // Appends the rest. Tokens that are added later go on behind it.
    void Finish(std::string* text);

   private:
    std::vector<std::unique_ptr<Step>> steps_;  // the last one writes the text
  };

  // Supported: Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace; null joins
  // tokens with spaces. Errors: InvalidInput for others, naming the key.
  static TokenDecoder Parse(const JsonValue& config);

 private:
  using Factory = std::function<std::unique_ptr<Step>()>;
  void Add(const JsonValue& config, bool* joined);

  std::vector<Factory> steps_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKEN_DECODER_H_
