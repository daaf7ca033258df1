// An op of attention as cuDNN is given it: groups of sequences, each with a plan of its own shape,
// the places of all operands, and the numbers of rows and offsets that plans read on the device.
#ifndef QLORA_BACKEND_CUDA_DEVICE_CUDNN_GROUPS_H_
#define QLORA_BACKEND_CUDA_DEVICE_CUDNN_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device/attention_plan.h"
#include "backend/ops.h"

namespace qlora::cuda {

// Most bytes of the counts and offsets of an op.
inline constexpr std::int64_t kNumbersBytes = std::int64_t{256} << 10;

struct CudnnOperand {
  std::int64_t id;  // an AttentionOperand, or kOffsets + one
  const void* data;
};
struct CudnnGroup {
  AttentionPlanShape shape;
  std::vector<CudnnOperand> operands;  // all but those in host memory
  std::span<std::byte> rest;           // of the room: for the workspace of the plan
};
struct CudnnGroups {
  std::string problem;  // why cuDNN is not given the op; or empty
  std::vector<CudnnGroup> groups;
  std::vector<std::int32_t> numbers;  // at most kNumbersBytes
};

// room: memory for the groups, one after the other, aligned to 256 bytes. takes_empty:
// Cudnn::TakesEmptySequences. numbers: where the numbers will be on the device.
CudnnGroups GroupsOf(const ops::Attention& op, std::span<std::byte> room, bool takes_empty,
                     const std::byte* numbers);
CudnnGroups GroupsOf(const ops::AttentionBackward& op, std::span<std::byte> room, bool takes_empty,
                     const std::byte* numbers);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_CUDNN_GROUPS_H_
