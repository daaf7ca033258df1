// random.Random of Python: the draws of its sample(), by which evaluation tasks choose their
// examples.
#ifndef QLORA_TASK_PYTHON_RANDOM_H_
#define QLORA_TASK_PYTHON_RANDOM_H_

#include <cstdint>
#include <random>
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
  std::int64_t Below(std::int64_t n);

  std::mt19937 engine_;
};

}  // namespace qlora

#endif  // QLORA_TASK_PYTHON_RANDOM_H_
