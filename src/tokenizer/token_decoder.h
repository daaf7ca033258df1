// The decoder of a tokenizer.json: from the texts of tokens back to text, in steps of which each
// takes tokens one by one and hands on the text that is certain.
#ifndef QLORA_TOKENIZER_TOKEN_DECODER_H_
#define QLORA_TOKENIZER_TOKEN_DECODER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_value.h"

namespace qlora {

// Behind a step that joins all tokens into one ("joined"), the tokens that arrive are pieces of
// the joined token, cut between characters.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void Push(std::string_view token) = 0;
  // Hands on or forgets the text that is held back; more tokens may follow.
  virtual void Finish() {}

  DecoderStep* next = nullptr;
};

// The last step: appends to a text.
class DecoderOutput final : public DecoderStep {
 public:
  void Push(std::string_view token) override { text->append(token); }
  std::string* text = nullptr;
};

// Steps have state, so each text has its own.
using DecoderStepFactory = std::function<std::unique_ptr<DecoderStep>()>;

class TokenDecoder {
 public:
  // The state of one text.
  class State {
   public:
    explicit State(const TokenDecoder& decoder);

    // Appends to *text the part that has become certain: whole characters that no later token can
    // change.
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

  // Joins tokens that arrive as their bytes, as UTF-8. strips_space: without one space at the
  // start.
  static TokenDecoder OfBytes(bool strips_space);

 private:
  std::vector<DecoderStepFactory> steps_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKEN_DECODER_H_
