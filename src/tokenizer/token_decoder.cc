// Hugging Face decodes a whole list of tokens at once. Here the same result appears while tokens
// arrive, so each step holds back what a later token may change:
//
//     tokens        "_The" "_ca" "f" "<0xC3>" "<0xA9>" "."       (_ stands for U+2581)
//     Replace       " The" " ca" "f" "<0xC3>" "<0xA9>" "."
//     ByteFallback  " The" " ca" "f"  held     held    "\u00e9" "."   a run of bytes may be UTF-8
//     Fuse          joins: the steps behind it see one long token in pieces
//     Strip         "The"  " ca" "f"                   "\u00e9" "."   one space at the start
#include "tokenizer/token_decoder.h"

#include "tokenizer/stage.h"

namespace qlora {

TokenDecoder TokenDecoder::Parse(const JsonValue& config) {
  TokenDecoder decoder;
  if (config.IsNull()) decoder.steps_.push_back(&MakeSpacesBetweenStep);
  bool joined = false;
  Growth growth;
  for (const JsonValue& step : StepsOf(config, "decoders")) {
    double factor = 1;
    decoder.steps_.push_back(ParseDecoderStep(step, &joined, &factor));
    growth.Multiply(factor, step);
  }
  return decoder;
}

TokenDecoder::State::State(const TokenDecoder& decoder) {
  for (const DecoderStepFactory& make : decoder.steps_) steps_.push_back(make());
  auto output = std::make_unique<DecoderOutput>();
  output_ = output.get();
  steps_.push_back(std::move(output));
  for (std::int64_t i = 0; i + 1 < std::ssize(steps_); ++i) steps_[i]->next = steps_[i + 1].get();
}

void TokenDecoder::State::Add(std::string_view token, std::string* text) {
  output_->text = text;
  steps_.front()->Push(token);
}

// In order: what a step hands on last, the steps behind it must still see.
void TokenDecoder::State::Finish(std::string* text) {
  output_->text = text;
  for (const auto& step : steps_) step->Finish();
}

}  // namespace qlora
