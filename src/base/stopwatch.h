// Wall-clock time since it was made.
#ifndef QLORA_BASE_STOPWATCH_H_
#define QLORA_BASE_STOPWATCH_H_

#include <chrono>

namespace qlora {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace qlora

#endif  // QLORA_BASE_STOPWATCH_H_
