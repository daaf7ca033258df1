// A large text for many readers, made when one asks.
#ifndef QLORA_CLI_REPORT_SHARED_TEXT_H_
#define QLORA_CLI_REPORT_SHARED_TEXT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace qlora {

// At most two are in memory, while one is made: whoever asks within `share_time`, or while a reader
// still has the text before the last, gets the last one. For one thread.
class SharedText {
 public:
  SharedText(std::function<std::string()> make, std::chrono::milliseconds share_time);

  std::shared_ptr<const std::string> Get();

 private:
  std::function<std::string()> make_;
  std::chrono::milliseconds share_time_;
  std::shared_ptr<const std::string> last_;
  std::weak_ptr<const std::string> before_;
  std::chrono::steady_clock::time_point made_;
};

}  // namespace qlora

#endif  // QLORA_CLI_REPORT_SHARED_TEXT_H_
