// The steps of a decoder: each takes tokens one by one and hands on what is certain.
#ifndef QLORA_TOKENIZER_TOKEN_DECODER_STEPS_H_
#define QLORA_TOKENIZER_TOKEN_DECODER_STEPS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/replacement.h"

namespace qlora {

// Behind a step that joins all tokens into one ("joined"), the tokens that arrive are pieces of
// that one token, cut between characters.
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

// A space between tokens.
std::unique_ptr<DecoderStep> MakeSpacesBetweenStep();

// Joins the tokens.
std::unique_ptr<DecoderStep> MakeFuseStep();

// Joins the bytes that tokens stand for, as UTF-8; ill-formed bytes become U+FFFD.
std::unique_ptr<DecoderStep> MakeByteLevelStep();

// A run of tokens <0x00> ... <0xFF> becomes text where all of it is valid UTF-8, else one U+FFFD a
// token.
std::unique_ptr<DecoderStep> MakeByteFallbackStep();

// Removes up to `start` leading and `stop` trailing characters `content` of each token.
std::unique_ptr<DecoderStep> MakeStripStep(char32_t content, std::int64_t start, std::int64_t stop,
                                           bool joined);

// whole: matches may cross the pieces of a joined token, so wait for all of it.
std::unique_ptr<DecoderStep> MakeReplaceStep(std::shared_ptr<const Replacement> replacement,
                                             bool whole);

// The character `replacement` becomes a space, or nothing in the first token with has_prefix.
std::unique_ptr<DecoderStep> MakeMetaspaceStep(char32_t replacement, bool has_prefix, bool joined);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKEN_DECODER_STEPS_H_
