#include "inference/stop_texts.h"

#include <algorithm>
#include <utility>

namespace qlora {

std::string StopTexts::Add(std::string_view piece, bool may_end) {
  if (!found_.empty()) return {};
  held_ += piece;
  if (!may_end) passed_ = held_.size();
  std::size_t shown = held_.size();
  for (const std::string& text : texts_) {
    const std::size_t first = passed_ + 1 - std::min(passed_ + 1, text.size());
    const std::size_t at = held_.find(text, first);
    if (at >= shown) continue;  // also npos
    shown = at;
    found_ = text;
  }
  if (found_.empty()) {
    // The longest end of the answer that a stop text begins with stays back.
    std::size_t length = 0;
    for (const std::string& text : texts_) {
      std::size_t begun = std::min(text.size() - 1, held_.size());
      while (!held_.ends_with(std::string_view(text).substr(0, begun))) --begun;
      length = std::max(length, begun);
    }
    shown = held_.size() - length;
  }
  std::string out = held_.substr(0, shown);
  held_.erase(0, shown);
  passed_ -= std::min(passed_, shown);
  return out;
}

std::string StopTexts::Finish() {
  return found_.empty() ? std::exchange(held_, {}) : std::string();
}

}  // namespace qlora
