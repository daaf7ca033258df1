// Wall-clock time: how much has passed, and what it is.
#ifndef QLORA_BASE_STOPWATCH_H_
#define QLORA_BASE_STOPWATCH_H_

#include <chrono>
#include <cstdint>

namespace qlora {

// Since it was made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline std::int64_t SecondsSince1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace qlora

#endif  // QLORA_BASE_STOPWATCH_H_
