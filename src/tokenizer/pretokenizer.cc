#include "tokenizer/pretokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer_pattern.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

using Piece = PreTokenizer::Piece;
using PieceSink = PreTokenizer::PieceSink;

// What becomes of the matches of a pattern ("delimiters") and of the text between them.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class SplitStep final : public PreTokenizer::Step {
 public:
  SplitStep(std::unique_ptr<SplitPattern> pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Apply(const Piece& piece, const PieceSink& sink) const override {
    const auto emit = [&](std::size_t begin, std::size_t end) {
      sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    };
    if (behavior_ == Behavior::kIsolated) {
      std::size_t done = 0;
      pattern_->ForEachMatch(piece.text, [&](std::size_t begin, std::size_t end) {
        if (begin > done) emit(done, begin);
        if (end > begin) emit(begin, end);
        done = end;
      });
      if (done < piece.text.size()) emit(done, piece.text.size());
      return;
    }
    std::vector<Span> spans = Spans(piece.text);
    if (behavior_ != Behavior::kRemoved) spans = Joined(std::move(spans));
    for (const Span& span : spans) {
      if (span.end > span.begin && !(behavior_ == Behavior::kRemoved && span.is_match)) {
        emit(span.begin, span.end);
      }
    }
  }

 private:
  struct Span {
    std::size_t begin;
    std::size_t end;
    bool is_match;
  };

  std::vector<Span> Spans(std::string_view text) const {
    std::vector<Span> spans;
    std::size_t done = 0;
    pattern_->ForEachMatch(text, [&](std::size_t begin, std::size_t end) {
      if (begin > done) spans.push_back({done, begin, invert_});
      spans.push_back({begin, end, !invert_});
      done = end;
    });
    if (done < text.size()) spans.push_back({done, text.size(), invert_});
    return spans;
  }

  std::vector<Span> Joined(std::vector<Span> spans) const {
    const bool backwards = behavior_ == Behavior::kMergedWithNext;
    if (backwards) std::reverse(spans.begin(), spans.end());
    std::vector<Span> joined;
    bool previous = false;
    for (const Span& span : spans) {
      const bool joins = behavior_ == Behavior::kContiguous ? span.is_match == previous
                                                            : span.is_match && !previous;
      if (joins && !joined.empty()) {
        joined.back().begin = std::min(joined.back().begin, span.begin);
        joined.back().end = std::max(joined.back().end, span.end);
      } else {
        joined.push_back(span);
      }
      previous = span.is_match;
    }
    if (backwards) std::reverse(joined.begin(), joined.end());
    return joined;
  }

  std::unique_ptr<SplitPattern> pattern_;
  Behavior behavior_;
  bool invert_;
};

class PrefixSpaceStep final : public PreTokenizer::Step {
 public:
  void Apply(const Piece& piece, const PieceSink& sink) const override {
    if (piece.text.empty() || piece.text.front() == ' ') {
      sink(piece);
      return;
    }
    const std::string text = " " + std::string(piece.text);
    sink({text, piece.at_start});
  }
};

class ByteCharactersStep final : public PreTokenizer::Step {
 public:
  void Apply(const Piece& piece, const PieceSink& sink) const override {
    std::string text;
    for (const char c : piece.text) AppendUtf8(ByteCharacter(static_cast<unsigned char>(c)), &text);
    sink({text, piece.at_start});
  }
};

class MetaspaceStep final : public PreTokenizer::Step {
 public:
  enum class Scheme { kFirst, kNever, kAlways };

  MetaspaceStep(char32_t replacement, Scheme scheme, bool split) : scheme_(scheme), split_(split) {
    AppendUtf8(replacement, &replacement_);
  }

  void Apply(const Piece& piece, const PieceSink& sink) const override {
    if (piece.text.empty()) return;
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2 + replacement_.size());
    const bool has_prefix =
        piece.text.front() == ' ' || piece.text.substr(0, replacement_.size()) == replacement_;
    const bool wants_prefix =
        scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && piece.at_start);
    if (wants_prefix && !has_prefix) text = replacement_;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
    }
    if (!split_) {
      sink({text, piece.at_start});
      return;
    }
    const std::string_view all = text;
    for (std::size_t begin = 0; begin < all.size();) {
      std::size_t end = all.find(replacement_, begin + 1);
      if (end == std::string_view::npos) end = all.size();
      sink({all.substr(begin, end - begin), piece.at_start && begin == 0});
      begin = end;
    }
  }

 private:
  std::string replacement_;
  Scheme scheme_;
  bool split_;
};

Behavior ParseBehavior(const JsonValue& config) {
  const std::string name = config.String();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  config.Fail("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

MetaspaceStep::Scheme ParseScheme(const JsonValue& config) {
  const bool no_prefix = !config["add_prefix_space"].Bool(true);
  const JsonValue scheme = config["prepend_scheme"];
  if (scheme.IsNull()) {
    return no_prefix ? MetaspaceStep::Scheme::kNever : MetaspaceStep::Scheme::kAlways;
  }
  const std::string name = scheme.String();
  if (no_prefix && name != "never") scheme.Fail("\"never\", as add_prefix_space is false");
  if (name == "first") return MetaspaceStep::Scheme::kFirst;
  if (name == "never") return MetaspaceStep::Scheme::kNever;
  if (name == "always") return MetaspaceStep::Scheme::kAlways;
  scheme.Fail("first, never or always");
}

}  // namespace

PreTokenizer PreTokenizer::Parse(const JsonValue& config) {
  PreTokenizer result;
  if (config.IsNull()) return result;
  result.Add(config);
  // Byte characters need not be written out when nothing looks at the text after them.
  if (!result.steps_.empty() &&
      dynamic_cast<const ByteCharactersStep*>(result.steps_.back().get()) != nullptr) {
    result.steps_.pop_back();
    result.byte_level_ = true;
  }
  return result;
}

void PreTokenizer::Add(const JsonValue& config) {
  const std::string type = config["type"].String();
  const auto add_split = [this](std::unique_ptr<SplitPattern> pattern, Behavior behavior,
                                bool invert) {
    steps_.push_back(std::make_unique<SplitStep>(std::move(pattern), behavior, invert));
  };
  if (type == "Sequence") {
    for (const JsonValue& part : config["pretokenizers"].Array()) Add(part);
  } else if (type == "ByteLevel") {
    if (config["add_prefix_space"].Bool()) {
      adds_prefix_space_ = true;
      steps_.push_back(std::make_unique<PrefixSpaceStep>());
    }
    if (config["use_regex"].Bool(true)) {
      if (split_regex_.empty()) split_regex_ = kGpt2Regex;
      add_split(MakeKnownPattern(kGpt2Regex), Behavior::kIsolated, false);
    }
    steps_.push_back(std::make_unique<ByteCharactersStep>());
  } else if (type == "Split") {
    const JsonValue pattern = config["pattern"];
    const Behavior behavior = ParseBehavior(config["behavior"]);
    const bool invert = config["invert"].Bool();
    if (pattern.Has("String")) {
      const std::string text = pattern["String"].String();
      if (text.empty()) pattern["String"].Fail("text to split at");
      add_split(MakeLiteralPattern(text), behavior, invert);
    } else if (pattern.Has("Regex")) {
      const std::string regex = pattern["Regex"].String();
      if (split_regex_.empty()) split_regex_ = regex;
      add_split(MakeRegexPattern(regex, pattern["Regex"].where()), behavior, invert);
    } else {
      pattern.Fail("{\"String\": ...} or {\"Regex\": ...}");
    }
  } else if (type == "Digits") {
    const bool single = config["individual_digits"].Bool();
    add_split(MakeCharacterPattern(&IsNumeric),
              single ? Behavior::kIsolated : Behavior::kContiguous, false);
  } else if (type == "Punctuation") {
    const JsonValue behavior = config["behavior"];
    add_split(MakeCharacterPattern(&IsPunctuation),
              behavior.IsNull() ? Behavior::kIsolated : ParseBehavior(behavior), false);
  } else if (type == "WhitespaceSplit") {
    add_split(MakeCharacterPattern(&IsWhitespace), Behavior::kRemoved, false);
  } else if (type == "Whitespace") {
    add_split(MakeWordPattern(), Behavior::kRemoved, true);
  } else if (type == "Metaspace") {
    const MetaspaceStep::Scheme scheme = ParseScheme(config);
    adds_prefix_space_ |= scheme != MetaspaceStep::Scheme::kNever;
    steps_.push_back(std::make_unique<MetaspaceStep>(config["replacement"].Character(), scheme,
                                                     config["split"].Bool(true)));
  } else {
    config["type"].Fail(
        "a supported pre-tokenizer (Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, "
        "WhitespaceSplit, Punctuation)");
  }
}

void PreTokenizer::Run(std::size_t step, const Piece& piece, const WordSink& sink) const {
  if (piece.text.empty()) return;
  if (step == steps_.size()) {
    sink(piece.text);
    return;
  }
  if (step + 1 == steps_.size()) {
    steps_[step]->Apply(piece, [&sink](const Piece& part) {
      if (!part.text.empty()) sink(part.text);
    });
    return;
  }
  steps_[step]->Apply(piece, [&, this](const Piece& part) { Run(step + 1, part, sink); });
}

}  // namespace qlora
