#include "inference/stop_text.h"

#include <algorithm>
#include <utility>

namespace qlora {

StopText::StopText(std::string text) : text_(std::move(text)) {}

// `held_` is the end of the answer that has not been shown: a beginning of the stop text, or
// nothing.
std::string StopText::Add(std::string_view piece) {
  if (found_) return {};
  held_ += piece;
  if (text_.empty()) return std::exchange(held_, {});
  std::size_t shown = held_.find(text_);
  found_ = shown != std::string::npos;
  if (!found_) {
    // The longest end of the answer that the stop text begins with stays back.
    std::size_t length = std::min(text_.size() - 1, held_.size());
    while (!held_.ends_with(std::string_view(text_).substr(0, length))) --length;
    shown = held_.size() - length;
  }
  std::string out = held_.substr(0, shown);
  held_.erase(0, shown);
  return out;
}

std::string StopText::Finish() { return found_ ? std::string() : std::exchange(held_, {}); }

}  // namespace qlora
