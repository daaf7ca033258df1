// The build that a test runs in.
#ifndef QLORA_TESTS_TEST_BUILD_H_
#define QLORA_TESTS_TEST_BUILD_H_

#include <filesystem>

// A function that the run-time library of every sanitizer defines.
extern "C" void __sanitizer_print_stack_trace() __attribute__((weak));

namespace qlora {

// The libraries are instrumented by a sanitizer.
inline bool Sanitized() { return &__sanitizer_print_stack_trace != nullptr; }

// The root of the sources. QLORA_SOURCE_DIR names it where a program runs on another machine.
std::filesystem::path SourceDir();

// ../shared beside the source tree, or $QLORA_SHARED; may not exist.
std::filesystem::path SharedFolder();

// The program of the same build, which is stored beside the test programs.
inline std::filesystem::path QloraBinary() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "qlora";
}

}  // namespace qlora

#endif  // QLORA_TESTS_TEST_BUILD_H_
