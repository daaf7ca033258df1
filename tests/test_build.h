// The build that a test runs in.
#ifndef QLORA_TESTS_TEST_BUILD_H_
#define QLORA_TESTS_TEST_BUILD_H_

#include <filesystem>

extern "C" {
void __asan_init() __attribute__((weak));
void __tsan_init() __attribute__((weak));
}

namespace qlora {

// The libraries are instrumented by a sanitizer.
inline bool Sanitized() { return &__asan_init != nullptr || &__tsan_init != nullptr; }

// The program of the same build, which is stored beside the test programs.
inline std::filesystem::path QloraBinary() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "qlora";
}

}  // namespace qlora

#endif  // QLORA_TESTS_TEST_BUILD_H_
