// The limits of one rendering. A template comes with a checkpoint of unknown origin, so every loop
// of the interpreter, of a filter or of a method pays for its work from one budget:
//
//   a step of a statement or an expression           kStepWork
//   a new object (text, list, dict, scope ...)       kObjectWork, and its bytes
//   a byte or an element read, compared or written   1 for each byte
//
// Time and memory of a rendering are therefore proportional to JinjaLimits::work. The stack is
// bounded by JinjaLimits::depth, which counts the levels entered at one time.
#ifndef QLORA_JINJA_WORK_BUDGET_H_
#define QLORA_JINJA_WORK_BUDGET_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "jinja/failure.h"
#include "jinja/jinja.h"

namespace qlora::jinja {

class WorkBudget {
 public:
  static constexpr std::size_t kStepWork = 4;     // a cheap step is some ten nanoseconds
  static constexpr std::size_t kObjectWork = 64;  // about the bytes of an empty container

  explicit WorkBudget(const JinjaLimits& limits) : limits_(limits) {}
  WorkBudget(const WorkBudget&) = delete;
  WorkBudget& operator=(const WorkBudget&) = delete;

  // Errors of both: Failure when less than that is left.
  void Charge(std::size_t work) {
    if (work > limits_.work - spent_) FailSpent();
    spent_ += work;
  }
  // Pays for `count` elements of `size` each; the product may exceed 64 bits.
  void Charge(std::size_t count, std::size_t size) {
    if (size != 0 && count > limits_.work / size) FailSpent();
    Charge(count * size);
  }

  void Append(std::string& out, std::string_view text) {
    Charge(text.size());
    out += text;
  }

  void CheckOutput(std::size_t bytes) const {
    if (bytes > limits_.output) {
      Fail("the output is too large (limit {} bytes)", limits_.output);
    }
  }

  // Held while one more call, statement, operator or nested value is entered.
  DepthLevel Enter() { return DepthLevel(depth_, limits_.depth); }

 private:
  [[noreturn]] void FailSpent() const {
    Fail("the template does too much work (limit {})", limits_.work);
  }

  const JinjaLimits limits_;
  std::size_t spent_ = 0;
  int depth_ = 0;
};

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_WORK_BUDGET_H_
