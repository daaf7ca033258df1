#include "tokenizer/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "tokenizer/bpe.h"
#include "tokenizer/normalizer_precompiled.h"
#include "tokenizer/pretokenizer_pattern.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

std::size_t CountCharacters(std::string_view text) {
  std::size_t count = 0;
  for (const char* p = text.data(); p < text.data() + text.size(); ++count) NextCharacter(p);
  return count;
}

// The first `count` characters of a text, or all of it.
std::string_view FirstCharacters(std::string_view text, std::size_t count) {
  const char* p = text.data();
  while (count-- > 0 && p < text.data() + text.size()) NextCharacter(p);
  return text.substr(0, p - text.data());
}

class UnicodeStep final : public Normalizer::Step {
 public:
  explicit UnicodeStep(NormalForm form) : form_(form) {}
  void Apply(NormalizedText* text) const override {
    const std::string_view leading = FirstCharacters(text->text, text->leading);
    text->leading = CountCharacters(Normalize(leading, form_));
    text->text = Normalize(text->text, form_);
  }

 private:
  NormalForm form_;
};

class PrependStep final : public Normalizer::Step {
 public:
  explicit PrependStep(std::string prefix) : prefix_(std::move(prefix)) {}
  void Apply(NormalizedText* text) const override {
    if (text->text.empty()) return;
    text->text.insert(0, prefix_);
    if (text->at_start()) text->leading += CountCharacters(prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceStep final : public Normalizer::Step {
 public:
  ReplaceStep(std::unique_ptr<SplitPattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void Apply(NormalizedText* text) const override {
    const std::string_view in = text->text;
    std::string out;
    out.reserve(in.size() + in.size() / 2);
    std::size_t copied = 0;
    std::size_t leading = text->leading;
    pattern_->ForEachMatch(in, [&](std::size_t begin, std::size_t end) {
      if (begin == 0 && end > 0) {
        const bool one_character = end == static_cast<std::size_t>(Utf8Length(in[0]));
        leading = one_character && !content_.empty() ? std::min<std::size_t>(leading, 1) : 0;
      }
      out.append(in.substr(copied, begin - copied));
      out.append(content_);
      copied = end;
    });
    out.append(in.substr(copied));
    text->text = std::move(out);
    text->leading = leading;
  }

 private:
  std::unique_ptr<SplitPattern> pattern_;
  std::string content_;
};

// Rewrites each character on its own.
class CharacterStep final : public Normalizer::Step {
 public:
  using Rewrite = void (*)(char32_t, std::string*);
  explicit CharacterStep(Rewrite rewrite) : rewrite_(rewrite) {}

  void Apply(NormalizedText* text) const override {
    std::string out;
    out.reserve(text->text.size());
    const char* const end = text->text.data() + text->text.size();
    std::size_t leading = 0;
    std::size_t place = 0;
    for (const char* p = text->text.data(); p < end; ++place) {
      rewrite_(NextCharacter(p), &out);
      if (place + 1 == text->leading) leading = CountCharacters(out);
    }
    text->leading = leading;
    text->text = std::move(out);
  }

 private:
  Rewrite rewrite_;
};

void DropMarks(char32_t c, std::string* out) {
  if (!IsCombiningMark(c)) AppendUtf8(c, out);
}

// The character filter of SentencePiece's "nmt" rules.
void CleanNmt(char32_t c, std::string* out) {
  const bool dropped = (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                       c == 0x8F || c == 0x9F;
  if (dropped) return;
  const bool blank = c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  AppendUtf8(blank ? ' ' : c, out);
}

void MapBytes(char32_t c, std::string* out) {
  std::string bytes;
  AppendUtf8(c, &bytes);
  for (const char byte : bytes) AppendUtf8(ByteCharacter(static_cast<unsigned char>(byte)), out);
}

class StripStep final : public Normalizer::Step {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}

  void Apply(NormalizedText* text) const override {
    const char* first = text->text.data();
    const char* last = first + text->text.size();
    for (const char* p = first; left_ && p < last; first = p) {
      if (!IsWhitespace(NextCharacter(p))) break;
      text->leading -= std::min<std::size_t>(text->leading, 1);
    }
    while (right_ && last > first) {
      const char* const before = PreviousCharacter(last);
      const char* p = before;
      if (!IsWhitespace(NextCharacter(p))) break;
      last = before;
    }
    text->text = std::string(first, last);
  }

 private:
  bool left_;
  bool right_;
};

std::unique_ptr<SplitPattern> ParsePattern(const JsonValue& pattern) {
  if (pattern.Has("String")) {
    const std::string text = pattern["String"].String();
    if (text.empty()) pattern["String"].Fail("text to replace");
    return MakeLiteralPattern(text);
  }
  if (pattern.Has("Regex")) {
    return MakeRegexPattern(pattern["Regex"].String(), pattern["Regex"].where());
  }
  pattern.Fail("{\"String\": ...} or {\"Regex\": ...}");
}

std::unique_ptr<const Normalizer::Step> ParseStep(const JsonValue& config,
                                                  const std::string& type) {
  if (type == "NFC") return std::make_unique<UnicodeStep>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeStep>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeStep>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeStep>(NormalForm::kNfkd);
  if (type == "Prepend") return std::make_unique<PrependStep>(config["prepend"].String());
  if (type == "Replace") {
    return std::make_unique<ReplaceStep>(ParsePattern(config["pattern"]),
                                         config["content"].String());
  }
  if (type == "Lowercase") return std::make_unique<CharacterStep>(&AppendLowerCase);
  if (type == "StripAccents") return std::make_unique<CharacterStep>(&DropMarks);
  if (type == "Nmt") return std::make_unique<CharacterStep>(&CleanNmt);
  if (type == "ByteLevel") return std::make_unique<CharacterStep>(&MapBytes);
  if (type == "Strip") {
    return std::make_unique<StripStep>(config["strip_left"].Bool(), config["strip_right"].Bool());
  }
  if (type == "Precompiled") return MakePrecompiledStep(config["precompiled_charsmap"]);
  config["type"].Fail(
      "a supported normalizer (Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, "
      "StripAccents, Nmt, ByteLevel, Precompiled)");
}

}  // namespace

Normalizer Normalizer::Parse(const JsonValue& config) {
  Normalizer normalizer;
  if (!config.IsNull()) normalizer.Add(config);
  return normalizer;
}

void Normalizer::Add(const JsonValue& config) {
  const std::string type = config["type"].String();
  prepends_ |= type == "Prepend";
  maps_bytes_ |= type == "ByteLevel";
  if (type != "Sequence") {
    steps_.push_back(ParseStep(config, type));
    return;
  }
  for (const JsonValue& part : config["normalizers"].Array()) Add(part);
}

}  // namespace qlora
