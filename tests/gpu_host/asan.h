// AddressSanitizer's view of stacks and memory; nothing in other builds.
#ifndef QLORA_TESTS_GPU_HOST_ASAN_H_
#define QLORA_TESTS_GPU_HOST_ASAN_H_

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GPU_HOST_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define GPU_HOST_ASAN 1
#endif

#if defined(GPU_HOST_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace gpu_host {

#if defined(GPU_HOST_ASAN)
inline void Poison(const void* p, std::size_t n) { __asan_poison_memory_region(p, n); }
inline void Unpoison(const void* p, std::size_t n) { __asan_unpoison_memory_region(p, n); }
inline bool IsPoisoned(const void* p, std::size_t n) {
  return n > 0 && __asan_region_is_poisoned(const_cast<void*>(p), n) != nullptr;
}
inline void StartSwitch(void** fake_stack, const void* bottom, std::size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
inline void FinishSwitch(void* fake_stack, const void** bottom, std::size_t* size) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
}
#else
inline void Poison(const void*, std::size_t) {}
inline void Unpoison(const void*, std::size_t) {}
inline bool IsPoisoned(const void*, std::size_t) { return false; }
inline void StartSwitch(void**, const void*, std::size_t) {}
inline void FinishSwitch(void*, const void**, std::size_t*) {}
#endif

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_ASAN_H_
