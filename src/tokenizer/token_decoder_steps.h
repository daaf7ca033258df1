// The steps of a decoder: each takes tokens one by one and hands on what is certain.
#ifndef QLORA_TOKENIZER_TOKEN_DECODER_STEPS_H_
#define QLORA_TOKENIZER_TOKEN_DECODER_STEPS_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/json_value.h"

namespace qlora {

// Behind a step that joins all tokens into one ("joined"), the tokens that arrive are pieces of
// the joined token, cut between characters.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void Push(std::string_view token) = 0;
  // Hands on or forgets what is held back; more tokens may follow.
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

// *joined: whether the steps before have joined the tokens; set when this step does so.
// *growth: at most how many times as long as a token the result is.
DecoderStepFactory ParseDecoderStep(const JsonValue& step, bool* joined, double* growth);

// The decoder of a file that has none: a space between tokens.
std::unique_ptr<DecoderStep> MakeSpacesBetweenStep();

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKEN_DECODER_STEPS_H_
