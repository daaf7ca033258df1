// What the lanes of a warp compute together.
#ifndef QLORA_TESTS_GPU_HOST_WARP_H_
#define QLORA_TESTS_GPU_HOST_WARP_H_

#include <array>

#include "gpu_host/model.h"

namespace gpu_host {

// Fills `out` of the lanes of mine.mask, which all have arrived.
void Complete(std::array<Exchange, 32>& lanes, const Exchange& mine);

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_WARP_H_
