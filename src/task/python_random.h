// random.Random of Python: the draws of its sample(), by which evaluation tasks choose their
// examples.
#ifndef QLORA_TASK_PYTHON_RANDOM_H_
#define QLORA_TASK_PYTHON_RANDOM_H_

#include <array>
#include <cstdint>
#include <vector>

namespace qlora {

// The Mersenne Twister MT19937, seeded as Python seeds it with a whole number.
class PythonRandom {
 public:
  // random.seed(seed), which takes the absolute value.
  explicit PythonRandom(std::int64_t seed);

  // The indices that random.sample(range(n), k) returns. Errors: InvalidInput where k exceeds n.
  std::vector<std::int64_t> Sample(std::int64_t n, std::int64_t k);

 private:
  static constexpr std::size_t kWords = 624;

  void Mix(std::uint32_t seed);
  std::uint32_t Next();
  std::int64_t Below(std::int64_t n);

  std::array<std::uint32_t, kWords> state_;
  std::size_t at_ = kWords;
};

}  // namespace qlora

#endif  // QLORA_TASK_PYTHON_RANDOM_H_
