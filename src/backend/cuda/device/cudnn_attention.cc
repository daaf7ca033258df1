// Attention of training by cuDNN. Sequences are given as they are: packed, with an offset and a
// length for each. A plan serves all calls with at most as many sequences, and as long ones, as it
// was made for; both numbers are rounded up to a power of two, so that a run makes few plans.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <limits>
#include <map>
#include <string_view>

#include "backend/cuda/device/attention_plan.h"
#include "backend/cuda/device/device_runtime.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

constexpr std::int64_t kLeastRows = 256;    // own kernels are as fast with fewer
constexpr std::int64_t kLeastLength = 512;  // of a plan
constexpr std::int64_t kMostSequences = 2048;
// Rows of a plan (sequences times length) for each row of the call: blocks without work cost time.
constexpr std::int64_t kMostEmptiness = 16;
constexpr std::int64_t kNumbersBytes = std::int64_t{256} << 10;  // counts and offsets of a pass

// For comparisons of the two.
bool WantsOwnKernels() {
  const char* value = std::getenv("QLORA_CUDA_ATTENTION");
  const std::string_view name = value == nullptr ? "" : value;
  if (name.empty() || name == "cudnn") return false;
  if (name == "own") return true;
  ThrowInvalidInput("QLORA_CUDA_ATTENTION: expected cudnn or own, found '{}'", name);
}

// Why cuDNN is not looked for, or empty. Packed log-sum-exps exist for these architectures alone.
std::string ReasonForOwnKernels() {
  if (WantsOwnKernels()) return "QLORA_CUDA_ATTENTION is own";
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess) {
    cudaGetLastError();  // not an error of the next call
    return "there is no device";
  }
  if (major == 9 || major == 10) return "";
  return fmt::format("cuDNN is used with compute capability 9.x and 10.x, found {}.x", major);
}

// The library is opened only where it is used.
CudnnSearch FindUsable() {
  const std::string reason = ReasonForOwnKernels();
  return reason.empty() ? FindCudnn() : CudnnSearch{.cudnn = {}, .problem = reason};
}

std::int64_t PowerOfTwo(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

std::int64_t LongestOf(std::span<const AttentionSpan> spans) {
  std::int64_t longest = 0;
  for (const AttentionSpan& s : spans) longest = std::max(longest, s.q_rows);
  return longest;
}

template <typename AnyAttention>
AttentionPlanShape ShapeOf(const AnyAttention& op) {
  const std::int64_t longest = LongestOf(op.spans);
  // A window that no sequence exceeds hides nothing, and the plan without a window serves all
  // layers.
  return {.windowed = op.shape.window > 0 && op.shape.window < longest,
          .sequences = PowerOfTwo(std::ssize(op.spans)),
          .length = std::max(kLeastLength, PowerOfTwo(longest)),
          .heads = op.shape.heads,
          .kv_heads = op.shape.kv_heads,
          .head_dim = op.shape.head_dim,
          .q = op.q.stride,
          .k = op.k.stride,
          .v = op.v.stride,
          .o = op.o.stride,
          .lse = op.lse.stride};
}
AttentionPlanShape PlanOf(const ops::Attention& op) { return ShapeOf(op); }
AttentionPlanShape PlanOf(const ops::AttentionBackward& op) {
  AttentionPlanShape shape = ShapeOf(op);
  shape.backward = true;
  shape.d_o = op.d_o.stride;
  shape.dq = op.dq.stride;
  shape.dk = op.dk.stride;
  shape.dv = op.dv.stride;
  return shape;
}

// Kernels count elements in 32 bits.
bool IsInLimits(const AttentionPlanShape& s, std::int64_t rows) {
  const std::int64_t widest =
      std::max({s.q, s.k, s.v, s.o, s.d_o, s.dq, s.group() * s.dk, s.group() * s.dv, s.lse});
  // kMostSequences also bounds the numbers of a pass: one array of counts and nine of offsets at
  // most, 10 * 2052 integers of the 65536 that kNumbersBytes holds.
  return rows >= kLeastRows && s.sequences <= kMostSequences && s.head_dim % 16 == 0 &&
         s.head_dim <= 256 && s.sequences * s.length <= kMostEmptiness * std::max(rows, s.length) &&
         rows * widest <= std::numeric_limits<std::int32_t>::max();
}

struct Operand {
  std::int64_t id;
  const void* data;
  std::int64_t stride = 0;  // 0: without offsets
};

// Parts of the room, one after the other.
class Room {
 public:
  explicit Room(std::span<std::byte> bytes) : bytes_(bytes) {}
  // Null where the room is too small, from then on.
  void* Take(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 256;
    const std::int64_t begin = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return fits() ? bytes_.data() + begin : nullptr;
  }
  bool fits() const { return used_ <= std::ssize(bytes_); }

 private:
  std::span<std::byte> bytes_;
  std::int64_t used_ = 0;
};

class CudnnAttention final : public AttentionLibrary {
 public:
  explicit CudnnAttention(const Cudnn& cudnn) : cudnn_(cudnn) {
    cudnn_.Check("cudnnCreate, which needs all libraries of cuDNN", cudnn_.create(&target_.handle));
    void* numbers = nullptr;
    if (cudaMalloc(&numbers, 2 * kNumbersBytes) != cudaSuccess) {
      cudnn_.destroy(target_.handle);
      throw Error(ErrorCode::kOutOfMemory, "cuda: no memory for the offsets of cuDNN");
    }
    for (std::int64_t i = 0; i < 2; ++i) {
      numbers_[i].device = static_cast<std::byte*>(numbers) + i * kNumbersBytes;
    }
  }
  ~CudnnAttention() override {
    // Before the handle, with which they were made.
    plans_.clear();
    cudaFree(numbers_[0].device);
    cudnn_.destroy(target_.handle);
  }

  bool Run(Stream stream, const ops::Attention& op, std::span<std::byte> room) override {
    const std::vector<Operand> operands = {{kQ, op.q.data, op.q.stride},
                                           {kK, op.k.data, op.k.stride},
                                           {kV, op.v.data, op.v.stride},
                                           {kO, op.o.data, op.o.stride},
                                           {kLse, op.lse.data, op.lse.stride}};
    return RunPlan(stream, op, operands, Room(room));
  }

  bool Run(Stream stream, const ops::AttentionBackward& op, std::span<std::byte> bytes) override {
    Room room(bytes);
    const std::int64_t group = op.shape.heads / op.shape.kv_heads;
    const auto floats = [&](std::int64_t stride) {
      return room.Take(op.q.rows * stride * std::int64_t{sizeof(float)});
    };
    std::vector<Operand> operands = {
        {kQ, op.q.data, op.q.stride},      {kK, op.k.data, op.k.stride},
        {kV, op.v.data, op.v.stride},      {kO, op.o.data, op.o.stride},
        {kDo, op.d_o.data, op.d_o.stride}, {kLse, op.lse.data, op.lse.stride},
        {kDq, op.dq.data, op.dq.stride},   {kDk, op.dk.data, op.dk.stride},
        {kDv, op.dv.data, op.dv.stride},   {kDelta, floats(op.lse.stride)},
        {kDqSum, floats(op.dq.stride)}};
    if (group > 1) {
      operands.push_back({kDkHeads, floats(group * op.dk.stride)});
      operands.push_back({kDvHeads, floats(group * op.dv.stride)});
    }
    return RunPlan(stream, op, operands, room);
  }

 private:
  // The numbers of a pass on the device, which all layers share.
  struct Numbers {
    std::byte* device = nullptr;
    std::vector<std::int32_t> host;
  };

  template <typename AnyAttention>
  bool RunPlan(Stream stream, const AnyAttention& op, std::vector<Operand> operands, Room room) {
    const AttentionPlanShape shape = PlanOf(op);
    // The caller then runs its own kernels: a shape that the library does not take is no error.
    if (!IsInLimits(shape, op.q.rows) || !room.fits()) return false;
    const AttentionPlan* plan = PlanFor(shape);
    if (plan == nullptr) return false;
    void* workspace = room.Take(plan->workspace());
    if (!room.fits()) return false;

    AddNumbers(stream, shape, op.spans, operands);
    const float one = 1;
    // exp(-infinity) = 0: what is hidden has no part in sums, and no gradient.
    const float hidden = -std::numeric_limits<float>::infinity();
    const auto window = static_cast<float>(op.shape.window);
    operands.push_back({kScale, &op.shape.scale});
    if (shape.backward) operands.push_back({kOne, &one});
    if (shape.windowed) operands.push_back({kWindow, &window});
    for (const std::int64_t id : {kHiddenPadding, kHiddenFuture}) operands.push_back({id, &hidden});
    if (shape.windowed) operands.push_back({kHiddenPast, &hidden});

    std::vector<std::int64_t> ids;
    std::vector<void*> data;
    for (const Operand& operand : operands) {
      ids.push_back(operand.id);
      data.push_back(const_cast<void*>(operand.data));
    }
    cudnn_.Check("cudnnSetStream",
                 cudnn_.set_stream(target_.handle, static_cast<cudaStream_t>(stream)));
    plan->Run(target_.handle, ids, data, workspace);
    return true;
  }

  // Null where there is none, which is found out once.
  const AttentionPlan* PlanFor(const AttentionPlanShape& shape) {
    const auto known = plans_.find(shape);
    if (known != plans_.end()) return known->second.get();
    std::unique_ptr<AttentionPlan> plan;
    try {
      plan = std::make_unique<AttentionPlan>(cudnn_, target_, shape);
    } catch (const Error&) {
      cudaGetLastError();  // not an error of the next call
    }
    return plans_.emplace(shape, std::move(plan)).first->second.get();
  }

  // Rows of the sequences, and where each begins in every operand that has a stride. Sequences of
  // the plan behind the last have no rows.
  void AddNumbers(Stream stream, const AttentionPlanShape& shape,
                  std::span<const AttentionSpan> spans, std::vector<Operand>& operands) {
    Numbers& numbers = numbers_[shape.backward ? 1 : 0];
    std::vector<std::int32_t> host;
    // A new array, and its place. Arrays begin at multiples of 16 bytes.
    const auto begin = [&](std::int64_t count) {
      const std::int64_t at = std::ssize(host);
      host.resize(at + (count + 3) / 4 * 4);
      return at;
    };
    const auto device = [&](std::int64_t at) {
      return numbers.device + at * std::int64_t{sizeof(std::int32_t)};
    };
    const std::int64_t rows = begin(shape.sequences);
    for (std::int64_t i = 0; i < std::ssize(spans); ++i) {
      host[rows + i] = static_cast<std::int32_t>(spans[i].q_rows);
    }
    // A copy, because the loop below adds operands to the list that it would otherwise walk over.
    const std::vector<Operand> given = operands;
    operands.push_back({kQueryRows, device(rows)});
    operands.push_back({kKeyRows, device(rows)});
    std::map<std::int64_t, std::int64_t> places;  // of the offsets, by stride
    for (const Operand& operand : given) {
      if (operand.stride == 0) continue;
      const auto [place, is_new] = places.try_emplace(operand.stride, std::ssize(host));
      operands.push_back({kOffsets + operand.id, device(place->second)});
      if (!is_new) continue;
      const std::int64_t at = begin(shape.sequences + 1);
      const std::int64_t end = spans.back().q_begin + spans.back().q_rows;
      for (std::int64_t i = 0; i <= shape.sequences; ++i) {
        const std::int64_t row = i < std::ssize(spans) ? spans[i].q_begin : end;
        host[at + i] = static_cast<std::int32_t>(row * operand.stride);
      }
    }
    // All layers of a pass have the same sequences and strides: the first one copies, the others
    // compare. Plans queued before have read the old numbers when the stream comes to the copy.
    if (host == numbers.host) return;
    numbers.host = std::move(host);
    const cudaError_t error = cudaMemcpyAsync(
        numbers.device, numbers.host.data(), numbers.host.size() * sizeof(std::int32_t),
        cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) {
      ThrowRuntime("cuda: copy the offsets of attention: {}", cudaGetErrorString(error));
    }
  }

  const Cudnn cudnn_;
  AttentionTarget target_;
  std::array<Numbers, 2> numbers_;  // forward, backward
  std::map<AttentionPlanShape, std::unique_ptr<AttentionPlan>> plans_;
};

}  // namespace

std::unique_ptr<AttentionLibrary> MakeDeviceAttention() {
  const CudnnSearch found = FindUsable();
  if (!found.problem.empty()) return nullptr;
  try {
    return std::make_unique<CudnnAttention>(found.cudnn);
  } catch (const Error&) {
    cudaGetLastError();  // not an error of the next call
    return nullptr;
  }
}

std::string DescribeAttention() {
  const CudnnSearch found = FindUsable();
  if (!found.problem.empty()) return "own kernels: " + found.problem;
  try {
    const CudnnAttention made(found.cudnn);
  } catch (const Error& error) {
    cudaGetLastError();  // not an error of the next call
    return fmt::format("own kernels: {}", error.what());
  }
  const std::size_t version = found.cudnn.version;
  return fmt::format("cuDNN {}.{}.{} for training in bfloat16, own kernels elsewhere",
                     version / 10000, version / 100 % 100, version % 100);
}

}  // namespace qlora::cuda
