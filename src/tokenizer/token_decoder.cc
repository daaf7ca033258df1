// Hugging Face decodes a whole list of tokens at once. Here the same result appears while tokens
// arrive, so each step holds back what a later token may change:
//
//     tokens      "▁The" "▁ca" "f" "<0xC3>" "<0xA9>" "."
//     Replace     " The" " ca" "f" "<0xC3>" "<0xA9>" "."
//     ByteFallback " The" " ca" "f"  held     held   "é" "."     (a run of bytes must be UTF-8)
//     Fuse        joins: from here on, steps see one long token in pieces
//     Strip       "The"  " ca" "f"                   "é" "."     (one space at the start)
#include "tokenizer/token_decoder.h"

#include "tokenizer/replacement.h"
#include "tokenizer/stage.h"

namespace qlora {

TokenDecoder::Factory TokenDecoder::ParseStep(const JsonValue& step, bool* joined, double* growth) {
  const std::string type = step["type"].String();
  const bool is_joined = *joined;
  if (type == "ByteLevel" || type == "Fuse") {
    *joined = true;
    return type == "Fuse" ? &MakeFuseStep : &MakeByteLevelStep;
  }
  if (type == "ByteFallback") {
    if (is_joined) step["type"].Fail("ByteFallback before the tokens are joined");
    return &MakeByteFallbackStep;
  }
  if (type == "Strip") {
    const char32_t content = step["content"].Character();
    const std::int64_t start = step["start"].Id();
    const std::int64_t stop = step["stop"].Id();
    return [=] { return MakeStripStep(content, start, stop, is_joined); };
  }
  if (type == "Replace") {
    const auto replacement = std::make_shared<const Replacement>(step);
    *growth = replacement->growth();
    const bool whole = is_joined && !replacement->is_character();
    return [=] { return MakeReplaceStep(replacement, whole); };
  }
  if (type == "Metaspace") {
    const char32_t replacement = step["replacement"].Character();
    const JsonValue scheme = step["prepend_scheme"];
    const bool has_prefix =
        scheme.IsNull() ? step["add_prefix_space"].Bool(true) : scheme.String() != "never";
    return [=] { return MakeMetaspaceStep(replacement, has_prefix, is_joined); };
  }
  step["type"].Fail(
      "a supported decoder (Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace)");
}

TokenDecoder TokenDecoder::Parse(const JsonValue& config) {
  TokenDecoder decoder;
  if (config.IsNull()) decoder.steps_.push_back(&MakeSpacesBetweenStep);
  bool joined = false;
  Growth growth;
  for (const JsonValue& step : StepsOf(config, "decoders")) {
    double factor = 1;
    decoder.steps_.push_back(ParseStep(step, &joined, &factor));
    growth.Multiply(factor, step);
  }
  return decoder;
}

TokenDecoder::State::State(const TokenDecoder& decoder) {
  for (const Factory& make : decoder.steps_) steps_.push_back(make());
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
