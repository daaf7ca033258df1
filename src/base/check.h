// Formatted errors, and the assertion of internal invariants.
#ifndef QLORA_BASE_CHECK_H_
#define QLORA_BASE_CHECK_H_

#include <fmt/format.h>

#include <cassert>
#include <utility>

#include "qlora/error.h"

namespace qlora {

template <typename... Args>
[[noreturn]] void ThrowInvalidInput(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidInput, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void ThrowRuntime(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kRuntime, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace qlora

// Invariants that only a bug in this library can break; compiled out of release builds.
#define QLORA_DCHECK(condition) assert(condition)

#endif  // QLORA_BASE_CHECK_H_
