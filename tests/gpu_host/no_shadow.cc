// Builds without the check of every access.
#include "gpu_host/model.h"
#include "gpu_host/shadow.h"

namespace gpu_host {

bool HasShadow() { return false; }
void ShadowRange(const void*, std::size_t) {}
void ShadowAllocated(const void*, std::size_t) {}
void ShadowFreed(const void*, std::size_t) {}
void ShadowWrittenByHost(const void*, std::size_t) {}
void ShadowLaunch() {}
void ShadowLaunchEnd() {}
void ShadowBlock() {}
void ShadowBlockBarrier() {}
void ShadowWarpBarrier(unsigned) {}
void ShadowRead(const void*, std::size_t) {}
void ShadowWrite(const void*, std::size_t) {}
void ShadowPending(const void*, std::size_t, bool) {}
void ShadowAtomic(const void*, std::size_t) {}

}  // namespace gpu_host
