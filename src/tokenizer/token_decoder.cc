// Hugging Face decodes a whole list of tokens at once. Here the same result appears while tokens
// arrive, so each step holds back the text that a later token may change:
//
//     tokens        "_The" "_ca" "f" "<0xC3>" "<0xA9>" "."       (_ means U+2581)
//     Replace       " The" " ca" "f" "<0xC3>" "<0xA9>" "."
//     ByteFallback  " The" " ca" "f"  held     held    "\u00e9" "."   a run of bytes may be UTF-8
//     Fuse          joins: the steps behind it see one long token in pieces
//     Strip         "The"  " ca" "f"                   "\u00e9" "."   one space at the start
#include "tokenizer/token_decoder.h"

#include <cstdint>
#include <utility>

#include "tokenizer/byte_characters.h"
#include "tokenizer/replacement.h"
#include "tokenizer/stage.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// The decoder of a file that has none: a space between tokens.
class SpacesBetweenDecoder final : public DecoderStep {
 public:
  void Push(std::string_view token) override {
    if (!first_) next->Push(" ");
    first_ = false;
    next->Push(token);
  }

 private:
  bool first_ = true;
};

// Joins the tokens.
class FuseDecoder final : public DecoderStep {
 public:
  void Push(std::string_view token) override { next->Push(token); }
};

// Joins the bytes of tokens, as UTF-8; ill-formed bytes become U+FFFD.
class BytesDecoder : public DecoderStep {
 public:
  void Push(std::string_view token) override {
    pending_.append(token);
    std::string_view rest = pending_;
    std::string text;
    while (!rest.empty()) {
      const Utf8Step step = StepUtf8(rest);
      if (step.incomplete) break;
      text.append(step.valid ? rest.substr(0, step.length) : kReplacementCharacter);
      rest.remove_prefix(step.length);
    }
    pending_ = std::string(rest);
    next->Push(text);
  }
  void Finish() override {
    if (!pending_.empty()) next->Push(kReplacementCharacter);
    pending_.clear();
  }

 private:
  std::string pending_;  // the beginning of a character
};

// The same of the bytes that tokens represent.
class ByteLevelDecoder final : public BytesDecoder {
 public:
  void Push(std::string_view token) override {
    // Added tokens hold other characters than byte characters; such a token is its own text.
    const auto bytes = BytesOfByteCharacters(token);
    BytesDecoder::Push(bytes ? std::string_view(*bytes) : token);
  }
};

// A run of tokens <0x00> ... <0xFF> becomes text where all of it is valid UTF-8, otherwise one
// U+FFFD a token. So a run is held back until another token comes.
class ByteFallbackDecoder final : public DecoderStep {
 public:
  void Push(std::string_view token) override {
    if (const int byte = ByteOfToken(token); byte >= 0) {
      run_.push_back(static_cast<char>(byte));
      return;
    }
    Finish();
    next->Push(token);
  }
  void Finish() override {
    std::string storage;
    if (ValidUtf8(run_, &storage).data() == run_.data()) {
      if (!run_.empty()) next->Push(run_);
    } else {
      for (std::int64_t i = 0; i < std::ssize(run_); ++i) next->Push(kReplacementCharacter);
    }
    run_.clear();
  }

 private:
  std::string run_;
};

// Removes up to `start` leading and `stop` trailing characters `content` of each token.
class StripDecoder final : public DecoderStep {
 public:
  StripDecoder(char32_t content, std::int64_t start, std::int64_t stop, bool joined)
      : start_(start), stop_(stop), joined_(joined) {
    AppendUtf8(content, &content_);
  }

  void Push(std::string_view token) override {
    if (!joined_) leading_ = held_ = 0;  // each token has a start and an end
    std::string text;
    while (!token.empty()) {
      const std::string_view character = token.substr(0, Utf8Length(token[0]));
      token.remove_prefix(character.size());
      if (character == content_ && leading_ < start_) {
        ++leading_;
      } else if (character == content_ && held_ < stop_) {
        ++held_;
        leading_ = start_;
      } else {
        if (character != content_) {  // those held back are not the last ones
          for (; held_ > 0; --held_) text += content_;
        }
        leading_ = start_;
        text += character;
      }
    }
    next->Push(text);
  }
  void Finish() override { held_ = 0; }

 private:
  std::string content_;
  std::int64_t start_;
  std::int64_t stop_;
  bool joined_;
  std::int64_t leading_ = 0;  // removed at the start; start_ once something else has come
  std::int64_t held_ = 0;     // seen last, removed when nothing else comes
};

// whole: matches may cross the pieces of a joined token, so wait for all of it.
class ReplaceDecoder final : public DecoderStep {
 public:
  ReplaceDecoder(std::shared_ptr<const Replacement> replacement, bool whole)
      : replacement_(std::move(replacement)), whole_(whole) {}

  void Push(std::string_view token) override {
    if (whole_) {
      waiting_.append(token);
    } else {
      next->Push(replacement_->Apply(token));
    }
  }
  void Finish() override {
    if (whole_) next->Push(replacement_->Apply(waiting_));
    waiting_.clear();
  }

 private:
  std::shared_ptr<const Replacement> replacement_;
  bool whole_;
  std::string waiting_;
};

// The character `replacement` becomes a space, or nothing in the first token with has_prefix.
class MetaspaceDecoder final : public DecoderStep {
 public:
  MetaspaceDecoder(char32_t replacement, bool has_prefix, bool joined)
      : has_prefix_(has_prefix), joined_(joined) {
    AppendUtf8(replacement, &replacement_);
  }

  void Push(std::string_view token) override {
    std::string text;
    std::size_t copied = 0;
    for (std::size_t at; (at = token.find(replacement_, copied)) != std::string_view::npos;) {
      text.append(token.substr(copied, at - copied));
      if (!first_ || !has_prefix_) text += ' ';
      copied = at + replacement_.size();
    }
    text.append(token.substr(copied));
    if (!joined_) first_ = false;  // the pieces of a joined token are all of the first
    next->Push(text);
  }

 private:
  std::string replacement_;
  bool has_prefix_;
  bool joined_;
  bool first_ = true;
};

// *joined: whether the steps before have joined the tokens; set when this step does so.
// *growth: at most how many times as long as a token the result is.
DecoderStepFactory ParseDecoderStep(const JsonValue& step, bool* joined, double* growth) {
  const std::string type = step["type"].String();
  const bool is_joined = *joined;
  if (type == "ByteLevel") {
    *joined = true;
    return [] { return std::make_unique<ByteLevelDecoder>(); };
  }
  if (type == "ByteFallback") {
    // Hugging Face would compare the whole text of a joined token with "<0x..>".
    if (is_joined) step["type"].Fail("ByteFallback before the tokens are joined");
    return [] { return std::make_unique<ByteFallbackDecoder>(); };
  }
  if (type == "Fuse") {
    *joined = true;
    return [] { return std::make_unique<FuseDecoder>(); };
  }
  if (type == "Strip") {
    const char32_t content = step["content"].Character();
    const std::int64_t start = step["start"].Id();
    const std::int64_t stop = step["stop"].Id();
    return [=] { return std::make_unique<StripDecoder>(content, start, stop, is_joined); };
  }
  if (type == "Replace") {
    const auto replacement = std::make_shared<const Replacement>(step);
    *growth = replacement->growth();
    const bool whole = is_joined && !replacement->is_character();
    return [=] { return std::make_unique<ReplaceDecoder>(replacement, whole); };
  }
  if (type == "Metaspace") {
    const char32_t replacement = step["replacement"].Character();
    const JsonValue scheme = step["prepend_scheme"];
    const bool has_prefix =
        scheme.IsNull() ? step["add_prefix_space"].Bool(true) : scheme.String() != "never";
    return [=] { return std::make_unique<MetaspaceDecoder>(replacement, has_prefix, is_joined); };
  }
  step["type"].Fail(
      "a supported decoder (Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace)");
}

}  // namespace

TokenDecoder TokenDecoder::Parse(const JsonValue& config) {
  TokenDecoder decoder;
  if (config.IsNull()) {
    decoder.steps_.emplace_back([] { return std::make_unique<SpacesBetweenDecoder>(); });
  }
  bool joined = false;
  Growth growth;
  for (const JsonValue& step : StepsOf(config, "decoders")) {
    double factor = 1;
    decoder.steps_.push_back(ParseDecoderStep(step, &joined, &factor));
    growth.Multiply(factor, step);
  }
  return decoder;
}

TokenDecoder TokenDecoder::OfBytes(bool strips_space) {
  TokenDecoder decoder;
  decoder.steps_.emplace_back([] { return std::make_unique<BytesDecoder>(); });
  if (strips_space) {
    decoder.steps_.emplace_back([] { return std::make_unique<StripDecoder>(U' ', 1, 0, true); });
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

// In order: the steps behind a step must still see the text that it hands on last.
void TokenDecoder::State::Finish(std::string* text) {
  output_->text = text;
  for (const auto& step : steps_) step->Finish();
}

}  // namespace qlora
