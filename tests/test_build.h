// The build that a test runs in.
#ifndef QLORA_TESTS_TEST_BUILD_H_
#define QLORA_TESTS_TEST_BUILD_H_

#include <cstdlib>
#include <filesystem>

// A function that the run-time library of every sanitizer defines.
extern "C" void __sanitizer_print_stack_trace() __attribute__((weak));

namespace qlora {

// The libraries are instrumented by a sanitizer.
inline bool Sanitized() { return &__sanitizer_print_stack_trace != nullptr; }

// The root of the sources. QLORA_SOURCE_DIR names it where a program runs on another machine.
inline std::filesystem::path SourceDir() {
  const char* moved = std::getenv("QLORA_SOURCE_DIR");
  return moved == nullptr ? QLORA_SOURCE_DIR : moved;
}

// ../shared beside the source tree, or $QLORA_SHARED; may not exist.
inline std::filesystem::path SharedFolder() {
  const char* name = std::getenv("QLORA_SHARED");
  return name != nullptr ? std::filesystem::path(name)
                         : std::filesystem::path(QLORA_SOURCE_DIR) / ".." / "shared";
}

// The program of the same build, which is stored beside the test programs.
inline std::filesystem::path QloraBinary() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "qlora";
}

}  // namespace qlora

#endif  // QLORA_TESTS_TEST_BUILD_H_
