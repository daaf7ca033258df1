// What the model tells the check of every access of the kernels (shadow.cc), which needs kernels
// that are compiled for it. In other builds no_shadow.cc hears it.
#ifndef QLORA_TESTS_GPU_HOST_SHADOW_H_
#define QLORA_TESTS_GPU_HOST_SHADOW_H_

#include <cstddef>

namespace gpu_host {

// Whether accesses are checked.
bool HasShadow();

// The addresses of device and shared memory, before any other call.
void ShadowRange(const void* begin, std::size_t bytes);
// Memory begins, unwritten, or ends.
void ShadowAllocated(const void* p, std::size_t bytes);
void ShadowFreed(const void* p, std::size_t bytes);
void ShadowWrittenByHost(const void* p, std::size_t bytes);

void ShadowLaunch();
void ShadowLaunchEnd();
void ShadowBlock();
void ShadowBlockBarrier();
void ShadowWarpBarrier(unsigned warp);
// Accesses that the compiler does not see, by the thread that runs.
void ShadowRead(const void* p, std::size_t bytes);
void ShadowWrite(const void* p, std::size_t bytes);
// A cp.async copy to p is under way, or has arrived.
void ShadowPending(const void* p, std::size_t bytes, bool pending);

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_SHADOW_H_
