#include "tokenizer/split_step.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace qlora {
namespace {

// With "-" in "a--b", the spans are a, -, -, b; behaviors differ in the spans that they join or
// drop.
class SplitStep final : public PreTokenizer::Step {
 public:
  SplitStep(std::unique_ptr<SplitPattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Apply(const PreTokenizer::Piece& piece, const PreTokenizer::PieceSink& sink) const override {
    const auto emit = [&](std::int64_t begin, std::int64_t end) {
      sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    };
    if (behavior_ == SplitBehavior::kIsolated) {  // the usual case needs no list
      std::int64_t done = 0;
      pattern_->ForEachMatch(piece.text, [&](std::int64_t begin, std::int64_t end) {
        if (begin > done) emit(done, begin);
        if (end > begin) emit(begin, end);
        done = end;
      });
      if (done < std::ssize(piece.text)) emit(done, std::ssize(piece.text));
      return;
    }
    const bool removes = behavior_ == SplitBehavior::kRemoved;
    // In a list, because what becomes of a span may depend on the next.
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

  // The matches and what is between them.
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

SplitBehavior ParseSplitBehavior(const JsonValue& name) {
  const std::string text = name.String();
  if (text == "Removed") return SplitBehavior::kRemoved;
  if (text == "Isolated") return SplitBehavior::kIsolated;
  if (text == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (text == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (text == "Contiguous") return SplitBehavior::kContiguous;
  name.Fail("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

std::unique_ptr<const PreTokenizer::Step> MakeSplitStep(std::unique_ptr<SplitPattern> pattern,
                                                        SplitBehavior behavior, bool invert) {
  return std::make_unique<SplitStep>(std::move(pattern), behavior, invert);
}

}  // namespace qlora
