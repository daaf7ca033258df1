#include "jinja/text_marks.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace qlora::jinja {
namespace {

// Returns the marks of `result` where the function of each part of the text gives the whole result.
std::optional<Marks> OfParts(const Marks& marks, std::string_view text, std::string_view result,
                             const TextMarks::Apply& apply) {
  std::string whole;
  Marks moved;
  std::size_t at = 0;
  const auto add = [&](std::size_t end) {
    const std::optional<std::string> part = apply(text.substr(at, end - at));
    at = end;
    if (part) whole += *part;
    return part.has_value();
  };
  for (const JinjaSpan& span : marks.spans) {
    if (!add(span.begin)) return std::nullopt;
    const std::size_t begin = whole.size();
    if (!add(span.end)) return std::nullopt;
    if (whole.size() > begin) moved.spans.push_back({begin, whole.size(), span.message});
  }
  if (!add(text.size()) || whole != result) return std::nullopt;
  return moved;
}

// Returns the marks of `result` where it is a part of the text that occurs there once.
std::optional<Marks> OfPiece(const Marks& marks, std::string_view text, std::string_view result) {
  const std::size_t at = text.find(result);
  const bool once = at != std::string_view::npos && text.find(result, at + 1) == text.npos;
  if (!once && text != result) return std::nullopt;
  Marks moved;
  for (const JinjaSpan& span : marks.spans) {
    const std::size_t begin = std::max(span.begin, at);
    const std::size_t end = std::min(span.end, at + result.size());
    if (begin < end) moved.spans.push_back({begin - at, end - at, span.message});
  }
  return moved;
}

}  // namespace

void Marks::Append(const Marks& marks, std::size_t offset) {
  for (const JinjaSpan& span : marks.spans) {
    spans.push_back({span.begin + offset, span.end + offset, span.message});
  }
  lost = lost || marks.lost;
}

const Marks* TextMarks::Of(const SharedText& text) const {
  const auto found = known_.find(text.get());
  return found == known_.end() ? nullptr : &found->second.marks;
}

void TextMarks::Set(const SharedText& text, Marks marks) {
  if (!marks.empty()) known_[text.get()] = {text, std::move(marks)};
}

void TextMarks::Follow(const SharedText& text, const SharedText& result, const Apply& apply) {
  const Marks* found = Of(text);
  if (found == nullptr || text == result || result->empty()) return;
  const Marks marks = *found;
  std::optional<Marks> moved;
  if (!marks.lost && *text == *result) moved = marks;
  if (!marks.lost && !moved && apply) moved = OfParts(marks, *text, *result, apply);
  if (!marks.lost && !moved) moved = OfPiece(marks, *text, *result);
  Set(result, moved ? std::move(*moved) : Marks{.spans = {}, .lost = true});
}

}  // namespace qlora::jinja
