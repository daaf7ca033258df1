#include "tokenizer/token_decoder.h"

#include <fmt/format.h>

#include <utility>

#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer_pattern.h"
#include "unicode/unicode.h"

namespace qlora {

// Takes tokens one by one and hands on what is certain. Behind a step that joins all tokens into
// one ("joined"), what arrives are pieces of that one token, cut between characters. Finish() hands
// on or forgets what is held back; more tokens may follow.
class TokenDecoder::Step {
 public:
  virtual ~Step() = default;
  virtual void Push(std::string_view token) = 0;
  virtual void Finish() {}

  Step* next = nullptr;

 protected:
  void Emit(std::string_view token) { next->Push(token); }
};

namespace {

using Step = TokenDecoder::Step;

class WriteStep final : public Step {
 public:
  void Push(std::string_view token) override { text->append(token); }
  std::string* text = nullptr;
};

class SpacesBetweenStep final : public Step {
 public:
  void Push(std::string_view token) override {
    if (!first_) Emit(" ");
    first_ = false;
    Emit(token);
  }

 private:
  bool first_ = true;
};

class FuseStep final : public Step {
 public:
  void Push(std::string_view token) override { Emit(token); }
};

class ByteLevelStep final : public Step {
 public:
  void Push(std::string_view token) override {
    const auto bytes = BytesOfByteCharacters(token);
    pending_.append(bytes ? std::string_view(*bytes) : token);
    std::string_view rest = pending_;
    std::string text;
    while (!rest.empty()) {
      const Utf8Step step = StepUtf8(rest);
      if (step.incomplete) break;
      const auto length = static_cast<std::size_t>(step.length);
      text.append(step.valid ? rest.substr(0, length) : kReplacementCharacter);
      rest.remove_prefix(length);
    }
    pending_ = std::string(rest);
    Emit(text);
  }
  void Finish() override {
    if (!pending_.empty()) Emit(kReplacementCharacter);
    pending_.clear();
  }

 private:
  std::string pending_;  // the beginning of a character
};

// A run of tokens <0x00> ... <0xFF> is text when all of it is valid UTF-8, else one U+FFFD a token.
class ByteFallbackStep final : public Step {
 public:
  void Push(std::string_view token) override {
    if (const int byte = ByteOf(token); byte >= 0) {
      run_.push_back(static_cast<char>(byte));
      return;
    }
    Finish();
    Emit(token);
  }
  void Finish() override {
    std::string storage;
    if (ValidUtf8(run_, &storage).data() == run_.data()) {
      if (!run_.empty()) Emit(run_);
    } else {
      for (std::size_t i = 0; i < run_.size(); ++i) Emit(kReplacementCharacter);
    }
    run_.clear();
  }

 private:
  static int ByteOf(std::string_view token) {
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
    int byte = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return -1;
      byte = byte * 16 + digit;
    }
    return byte;
  }

  std::string run_;
};

// Removes up to `start` leading and `stop` trailing characters `content` of each token.
class StripStep final : public Step {
 public:
  StripStep(char32_t content, std::size_t start, std::size_t stop, bool joined)
      : start_(start), stop_(stop), joined_(joined) {
    AppendUtf8(content, &content_);
  }

  void Push(std::string_view token) override {
    if (!joined_) leading_ = held_ = 0;
    std::string text;
    for (std::size_t i = 0; i < token.size();) {
      const auto length = static_cast<std::size_t>(Utf8Length(token[i]));
      const std::string_view character = token.substr(i, length);
      i += length;
      if (character == content_ && leading_ < start_) {
        ++leading_;
      } else if (character == content_ && held_ < stop_) {
        ++held_;
        leading_ = start_;
      } else {
        if (character != content_) {
          for (; held_ > 0; --held_) text += content_;
        }
        leading_ = start_;
        text += character;
      }
    }
    Emit(text);
  }
  void Finish() override { held_ = 0; }

 private:
  std::string content_;
  std::size_t start_;
  std::size_t stop_;
  bool joined_;
  std::size_t leading_ = 0;  // removed at the start; start_ once something else has come
  std::size_t held_ = 0;     // seen last, removed when nothing else comes
};

class ReplaceStep final : public Step {
 public:
  // whole: matches may cross the pieces of a joined token, so wait for all of it.
  ReplaceStep(std::shared_ptr<const SplitPattern> pattern, std::string content, bool whole)
      : pattern_(std::move(pattern)), content_(std::move(content)), whole_(whole) {}

  void Push(std::string_view token) override {
    if (whole_) {
      waiting_.append(token);
    } else {
      Emit(Replaced(token));
    }
  }
  void Finish() override {
    if (whole_) Emit(Replaced(waiting_));
    waiting_.clear();
  }

 private:
  std::string Replaced(std::string_view token) const {
    std::string text;
    std::size_t copied = 0;
    pattern_->ForEachMatch(token, [&](std::size_t begin, std::size_t end) {
      text.append(token.substr(copied, begin - copied));
      text.append(content_);
      copied = end;
    });
    text.append(token.substr(copied));
    return text;
  }

  std::shared_ptr<const SplitPattern> pattern_;
  std::string content_;
  bool whole_;
  std::string waiting_;
};

class MetaspaceStep final : public Step {
 public:
  MetaspaceStep(char32_t replacement, bool has_prefix, bool joined)
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
    if (!joined_) first_ = false;
    Emit(text);
  }

 private:
  std::string replacement_;
  bool has_prefix_;
  bool joined_;
  bool first_ = true;
};

}  // namespace

TokenDecoder TokenDecoder::Parse(const JsonValue& config) {
  TokenDecoder decoder;
  bool joined = false;
  if (config.IsNull()) {
    decoder.steps_.push_back([] { return std::make_unique<SpacesBetweenStep>(); });
  } else {
    decoder.Add(config, &joined);
  }
  return decoder;
}

void TokenDecoder::Add(const JsonValue& config, bool* joined) {
  const std::string type = config["type"].String();
  const bool is_joined = *joined;
  if (type == "Sequence") {
    for (const JsonValue& part : config["decoders"].Array()) Add(part, joined);
  } else if (type == "ByteLevel") {
    steps_.push_back([] { return std::make_unique<ByteLevelStep>(); });
    *joined = true;
  } else if (type == "ByteFallback") {
    if (is_joined) config["type"].Fail("ByteFallback before the tokens are joined");
    steps_.push_back([] { return std::make_unique<ByteFallbackStep>(); });
  } else if (type == "Fuse") {
    steps_.push_back([] { return std::make_unique<FuseStep>(); });
    *joined = true;
  } else if (type == "Strip") {
    const char32_t content = config["content"].Character();
    const auto start = static_cast<std::size_t>(config["start"].Id());
    const auto stop = static_cast<std::size_t>(config["stop"].Id());
    steps_.push_back([=] { return std::make_unique<StripStep>(content, start, stop, is_joined); });
  } else if (type == "Replace") {
    const JsonValue pattern = config["pattern"];
    const std::string content = config["content"].String();
    std::shared_ptr<const SplitPattern> matcher;
    bool one_character = false;
    if (pattern.Has("String")) {
      const std::string text = pattern["String"].String();
      if (text.empty()) pattern["String"].Fail("text to replace");
      one_character = static_cast<std::size_t>(Utf8Length(text[0])) == text.size();
      matcher = MakeLiteralPattern(text);
    } else {
      matcher = MakeRegexPattern(pattern["Regex"].String(), pattern["Regex"].where());
    }
    const bool whole = is_joined && !one_character;
    steps_.push_back([=] { return std::make_unique<ReplaceStep>(matcher, content, whole); });
  } else if (type == "Metaspace") {
    const char32_t replacement = config["replacement"].Character();
    const JsonValue scheme = config["prepend_scheme"];
    const bool has_prefix =
        scheme.IsNull() ? config["add_prefix_space"].Bool(true) : scheme.String() != "never";
    steps_.push_back(
        [=] { return std::make_unique<MetaspaceStep>(replacement, has_prefix, is_joined); });
  } else {
    config["type"].Fail(
        "a supported decoder (Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace)");
  }
}

TokenDecoder::State::State(const TokenDecoder& decoder) {
  for (const Factory& make : decoder.steps_) steps_.push_back(make());
  steps_.push_back(std::make_unique<WriteStep>());
  for (std::size_t i = 0; i + 1 < steps_.size(); ++i) steps_[i]->next = steps_[i + 1].get();
}

TokenDecoder::State::~State() = default;
TokenDecoder::State::State(State&&) noexcept = default;
TokenDecoder::State& TokenDecoder::State::operator=(State&&) noexcept = default;

void TokenDecoder::State::Add(std::string_view token, std::string* text) {
  static_cast<WriteStep&>(*steps_.back()).text = text;
  steps_.front()->Push(token);
}

void TokenDecoder::State::Finish(std::string* text) {
  static_cast<WriteStep&>(*steps_.back()).text = text;
  for (const auto& step : steps_) step->Finish();
}

}  // namespace qlora
