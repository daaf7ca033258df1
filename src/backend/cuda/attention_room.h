// The memory that attention works in, for plans on machines without a GPU as well.
#ifndef QLORA_BACKEND_CUDA_ATTENTION_ROOM_H_
#define QLORA_BACKEND_CUDA_ATTENTION_ROOM_H_

#include <cstdint>

#include "backend/backend.h"

namespace qlora::cuda {

// Elements of float32 that AttentionForward or AttentionBackward needs at a time.
std::int64_t AttentionRoom(const BackendLimits& limits);
// Bytes with which a library computes the gradient of the longest sequence; 0 where none is asked
// for gradients.
std::int64_t LibraryRoom(const BackendLimits& limits);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ATTENTION_ROOM_H_
