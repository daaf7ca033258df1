#include "report/shared_text.h"

#include <utility>

namespace qlora {

SharedText::SharedText(std::function<std::string()> make, std::chrono::milliseconds share_time)
    : make_(std::move(make)), share_time_(share_time) {}

std::shared_ptr<const std::string> SharedText::Get() {
  const auto now = std::chrono::steady_clock::now();
  if (last_ != nullptr && (now - made_ < share_time_ || !before_.expired())) return last_;
  auto text = std::make_shared<const std::string>(make_());
  before_ = std::exchange(last_, std::move(text));
  made_ = std::chrono::steady_clock::now();
  return last_;
}

}  // namespace qlora
