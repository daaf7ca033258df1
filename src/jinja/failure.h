// The exception of this folder, which says what is wrong with a template and where, and the guard
// against deep nesting. Only jinja.cc catches the exception, and throws an Error with line and
// column instead.
#ifndef QLORA_JINJA_FAILURE_H_
#define QLORA_JINJA_FAILURE_H_

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace qlora::jinja {

struct Failure {
  std::string what;
  std::optional<std::size_t> offset;  // byte of the source; none: the interpreter's current place
};

template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{fmt::format(format, std::forward<Args>(args)...), std::nullopt};
}

template <typename... Args>
[[noreturn]] void FailAt(std::size_t offset, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{fmt::format(format, std::forward<Args>(args)...), offset};
}

// Held while one more level is entered; whoever recurses holds one. Errors: Failure.
class DepthLevel {
 public:
  DepthLevel(int& depth, int limit, std::optional<std::size_t> offset = std::nullopt)
      : depth_(depth) {
    if (depth >= limit) throw Failure{fmt::format("nested too deeply (limit {})", limit), offset};
    ++depth_;
  }
  ~DepthLevel() { --depth_; }
  DepthLevel(const DepthLevel&) = delete;
  DepthLevel& operator=(const DepthLevel&) = delete;

 private:
  int& depth_;
};

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_FAILURE_H_
