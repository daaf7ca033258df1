// Steps run depth first: each piece that a step hands on goes through the steps behind it before
// the next piece is cut, so that no list of words is ever built.
#include "tokenizer/split/pre_tokenizer.h"

#include <algorithm>

#include "tokenizer/byte_characters.h"
#include "tokenizer/split/known_pattern.h"
#include "tokenizer/split/split_pattern.h"
#include "tokenizer/stage.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

using Piece = PreTokenizer::Piece;
using PieceSink = PreTokenizer::PieceSink;

// ByteLevel with add_prefix_space.
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

// ByteLevel where other steps follow, which look at byte characters.
class ByteCharactersStep final : public PreTokenizer::Step {
 public:
  void Apply(const Piece& piece, const PieceSink& sink) const override {
    std::string text;
    for (const char c : piece.text) AppendUtf8(ByteCharacter(static_cast<unsigned char>(c)), &text);
    sink({text, piece.at_start});
  }
};

// Writes U+2581 (or another character) for spaces and cuts before each. Llama 2 puts one before the
// text, which may be the whole text or only its start.
class MetaspaceStep final : public PreTokenizer::Step {
 public:
  enum class Scheme { kFirst, kNever, kAlways };

  MetaspaceStep(char32_t replacement, Scheme scheme, bool split) : scheme_(scheme), split_(split) {
    AppendUtf8(replacement, &replacement_);
  }

  void Apply(const Piece& piece, const PieceSink& sink) const override {
    if (piece.text.empty()) return;
    const std::string text = Replaced(piece);
    if (!split_) {
      sink({text, piece.at_start});
      return;
    }
    const std::string_view all = text;
    for (std::size_t begin = 0; begin < all.size();) {
      // From begin + 1 on, since a piece may begin with the character; a search inside that
      // character finds nothing, because no character of UTF-8 begins within another.
      std::size_t end = all.find(replacement_, begin + 1);
      if (end == std::string_view::npos) end = all.size();
      sink({all.substr(begin, end - begin), piece.at_start && begin == 0});
      begin = end;
    }
  }

 private:
  std::string Replaced(const Piece& piece) const {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2 + replacement_.size());
    const bool has_prefix = piece.text.front() == ' ' || piece.text.starts_with(replacement_);
    const bool needs_prefix =
        scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && piece.at_start);
    if (needs_prefix && !has_prefix) text = replacement_;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
    }
    return text;
  }

  std::string replacement_;
  Scheme scheme_;
  bool split_;
};

// Files from before tokenizers 0.15 have add_prefix_space alone, later ones may have both keys.
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

// The treatment of the matches of a pattern. "the-final--countdown" cut at "-":
enum class SplitBehavior {
  kRemoved,             // the final countdown
  kIsolated,            // the - final - - countdown
  kMergedWithPrevious,  // the- final- - countdown
  kMergedWithNext,      // the -final - -countdown
  kContiguous,          // the - final -- countdown
};

// Errors: InvalidInput when the name is not among the five.
SplitBehavior ParseSplitBehavior(const JsonValue& name) {
  const std::string text = name.String();
  if (text == "Removed") return SplitBehavior::kRemoved;
  if (text == "Isolated") return SplitBehavior::kIsolated;
  if (text == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (text == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (text == "Contiguous") return SplitBehavior::kContiguous;
  name.Fail("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

// Cuts text at the matches of a pattern: Split, Digits, Punctuation and the regular expression of
// ByteLevel. With "-" in "a--b", the spans are a, -, -, b; behaviors differ in the spans that they
// join or drop.
class SplitStep final : public PreTokenizer::Step {
 public:
  SplitStep(std::unique_ptr<SplitPattern> pattern, SplitBehavior behavior, bool invert = false)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Apply(const Piece& piece, const PieceSink& sink) const override {
    const auto emit = [&](std::int64_t begin, std::int64_t end) {
      sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    };
    if (behavior_ == SplitBehavior::kIsolated) {  // the usual case needs no list
      std::int64_t done = 0;
      pattern_->ForEachMatch(piece.text, [&](std::int64_t begin, std::int64_t end) {
        if (begin > done) emit(done, begin);
        // Expressions such as a* match without a character; such a match cuts but is not a word.
        if (end > begin) emit(begin, end);
        done = end;
      });
      if (done < std::ssize(piece.text)) emit(done, std::ssize(piece.text));
      return;
    }
    const bool removes = behavior_ == SplitBehavior::kRemoved;
    // In a list, because the split of a span may depend on the next.
    std::vector<Span> spans = Spans(piece.text);
    if (!removes) spans = Joined(std::move(spans));
    for (const Span& span : spans) {
      if (span.end > span.begin && !(removes && span.is_match)) emit(span.begin, span.end);
    }
  }

 private:
  struct Span {
    std::int64_t begin;
    std::int64_t end;
    bool is_match;
  };

  // The matches and the text between them.
  std::vector<Span> Spans(std::string_view text) const {
    std::vector<Span> spans;
    std::int64_t done = 0;
    pattern_->ForEachMatch(text, [&](std::int64_t begin, std::int64_t end) {
      if (begin > done) spans.push_back({done, begin, invert_});
      spans.push_back({begin, end, !invert_});
      done = end;
    });
    if (done < std::ssize(text)) spans.push_back({done, std::ssize(text), invert_});
    return spans;
  }

  // Joins each match to its neighbour, or, with kContiguous, neighbours of the same kind. "Merged
  // with next" is "merged with previous" read backwards.
  std::vector<Span> Joined(std::vector<Span> spans) const {
    const bool backwards = behavior_ == SplitBehavior::kMergedWithNext;
    if (backwards) std::reverse(spans.begin(), spans.end());
    std::vector<Span> joined;
    bool previous = false;
    for (const Span& span : spans) {
      // The second of two consecutive matches does not join the word before it (final-, -), as in
      // Hugging Face.
      const bool joins = behavior_ == SplitBehavior::kContiguous ? span.is_match == previous
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
  SplitBehavior behavior_;
  bool invert_;
};

}  // namespace

// ByteLevel at the end is left to the model; see AddByteLevel.
PreTokenizer PreTokenizer::Parse(const JsonValue& config) {
  PreTokenizer result;
  const std::vector<JsonValue> steps = StepsOf(config, "pretokenizers");
  for (const JsonValue& step : steps) result.Add(step, &step == &steps.back());
  return result;
}

void PreTokenizer::Add(const JsonValue& step, bool is_last) {
  const std::string type = step["type"].String();
  if (type == "ByteLevel") {
    AddByteLevel(step, is_last);
  } else if (type == "Split") {
    AddSplit(step);
  } else if (type == "Digits") {
    const bool single = step["individual_digits"].Bool();
    steps_.push_back(std::make_unique<SplitStep>(
        MakeCharacterPattern(&IsNumeric),
        single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  } else if (type == "Punctuation") {
    const JsonValue behavior = step["behavior"];
    steps_.push_back(std::make_unique<SplitStep>(
        MakeCharacterPattern(&IsPunctuation),
        behavior.IsNull() ? SplitBehavior::kIsolated : ParseSplitBehavior(behavior)));
  } else if (type == "Metaspace") {
    AddMetaspace(step);
  } else {
    step["type"].Fail(
        "a supported pre-tokenizer (Sequence, ByteLevel, Split, Digits, Punctuation, Metaspace)");
  }
}

// ByteLevel does three things: it may put a space before the text, may split like GPT-2, and writes
// bytes as byte characters.
void PreTokenizer::AddByteLevel(const JsonValue& step, bool is_last) {
  if (step["add_prefix_space"].Bool()) {
    adds_prefix_space_ = true;
    steps_.push_back(std::make_unique<PrefixSpaceStep>());
  }
  if (step["use_regex"].Bool(true)) {
    steps_.push_back(
        std::make_unique<SplitStep>(MakeKnownPattern(kGpt2Regex), SplitBehavior::kIsolated));
  }
  // Byte characters need not be written out when nothing looks at the text after them: the model
  // then takes the bytes themselves.
  if (is_last) {
    byte_level_ = true;
  } else {
    steps_.push_back(std::make_unique<ByteCharactersStep>());
  }
}

void PreTokenizer::AddSplit(const JsonValue& step) {
  const JsonValue pattern = step["pattern"];
  steps_.push_back(std::make_unique<SplitStep>(
      ParsePattern(pattern), ParseSplitBehavior(step["behavior"]), step["invert"].Bool()));
}

void PreTokenizer::AddMetaspace(const JsonValue& step) {
  const MetaspaceStep::Scheme scheme = ParseScheme(step);
  adds_prefix_space_ |= scheme != MetaspaceStep::Scheme::kNever;
  steps_.push_back(std::make_unique<MetaspaceStep>(step["replacement"].Character(), scheme,
                                                   step["split"].Bool(true)));
}

// Applies the steps from `step` on.
void PreTokenizer::Run(std::int64_t step, const Piece& piece, const WordSink& sink) const {
  if (piece.text.empty()) return;
  const std::int64_t left = std::ssize(steps_) - step;
  if (left == 0) {
    sink(piece.text);
  } else if (left == 1) {  // spares a call for each word
    steps_[step]->Apply(piece, [&sink](const Piece& part) {
      if (!part.text.empty()) sink(part.text);
    });
  } else {
    steps_[step]->Apply(piece, [&, this](const Piece& part) { Run(step + 1, part, sink); });
  }
}

}  // namespace qlora
