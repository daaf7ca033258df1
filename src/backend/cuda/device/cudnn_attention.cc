// Attention of training by cuDNN. Sequences are given as they are: packed, with an offset and a
// length for each. A plan serves all calls with at most as many sequences, and as long ones, as it
// was made for; both numbers are rounded up to a power of two, so that a run makes few plans. What
// does not fit into the room at once is computed in groups of sequences.
#include "backend/cuda/device/cudnn_attention.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <mutex>

#include "backend/cuda/attention_groups.h"
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

// Of a plan, beside what is given to it. Plans of cuDNN 9.19 need less than 0.5 KiB for each
// sequence, whatever its length.
constexpr std::int64_t kPlanBytes = std::int64_t{4} << 20;

std::int64_t PowerOfTwo(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

std::int64_t LongestOf(std::span<const AttentionSpan> spans) {
  std::int64_t longest = 0;
  for (const AttentionSpan& s : spans) longest = std::max(longest, s.q_rows);
  return longest;
}

// The plan of a group of sequences.
template <typename AnyAttention>
AttentionPlanShape ShapeOf(const AnyAttention& op, std::span<const AttentionSpan> spans) {
  const std::int64_t longest = LongestOf(spans);
  // A window that no sequence exceeds hides nothing, and the plan without a window serves all
  // layers.
  return {.windowed = op.shape.window > 0 && op.shape.window < longest,
          .sequences = PowerOfTwo(std::ssize(spans)),
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
AttentionPlanShape PlanOf(const ops::Attention& op, std::span<const AttentionSpan> spans) {
  return ShapeOf(op, spans);
}
AttentionPlanShape PlanOf(const ops::AttentionBackward& op, std::span<const AttentionSpan> spans) {
  AttentionPlanShape shape = ShapeOf(op, spans);
  shape.backward = true;
  shape.d_o = op.d_o.stride;
  shape.dq = op.dq.stride;
  shape.dk = op.dk.stride;
  shape.dv = op.dv.stride;
  return shape;
}

// What is out of the limits of kernels and of this file, or empty. op_rows: of all groups; rows: of
// this one.
std::string ProblemOf(const AttentionPlanShape& s, std::int64_t op_rows, std::int64_t rows) {
  const std::int64_t widest =
      std::max({s.q, s.k, s.v, s.o, s.d_o, s.dq, s.group() * s.dk, s.group() * s.dv, s.lse});
  if (op_rows < kLeastRows) return fmt::format("fewer than {} rows", kLeastRows);
  if (s.head_dim % 16 != 0 || s.head_dim > 256) return fmt::format("head_dim {}", s.head_dim);
  if (s.sequences * s.length > kMostEmptiness * std::max(rows, s.length)) {
    return fmt::format("{} sequences of very different lengths", s.sequences);
  }
  // Kernels count elements in 32 bits.
  if (op_rows * widest > std::numeric_limits<std::int32_t>::max()) return "too many elements";
  return "";
}

struct Operand {
  std::int64_t id;
  const void* data;
  std::int64_t stride = 0;    // 0: without offsets
  bool counts_in_op = false;  // offsets count from the first row of the op, not of the group
};

// An operand that exists while an op runs: rows of `stride` elements, which begin where those of
// another operand with the same stride do.
struct Scratch {
  std::int64_t id, stride;
};
// Of an element of any of them. dk and dv of heads are bfloat16, and NVIDIA's own programs reserve
// as much for them as for float32 all the same.
constexpr std::int64_t kScratchSize = sizeof(float);

// Rows of an lse need not begin at multiples of 16 bytes, so the lse of a group is not an operand
// of its own.
std::vector<Operand> OperandsOf(const ops::Attention& op) {
  return {{kQ, op.q.data, op.q.stride},
          {kK, op.k.data, op.k.stride},
          {kV, op.v.data, op.v.stride},
          {kO, op.o.data, op.o.stride},
          {kLse, op.lse.data, op.lse.stride, true}};
}
std::vector<Operand> OperandsOf(const ops::AttentionBackward& op) {
  return {{kQ, op.q.data, op.q.stride},      {kK, op.k.data, op.k.stride},
          {kV, op.v.data, op.v.stride},      {kO, op.o.data, op.o.stride},
          {kDo, op.d_o.data, op.d_o.stride}, {kLse, op.lse.data, op.lse.stride, true},
          {kDq, op.dq.data, op.dq.stride},   {kDk, op.dk.data, op.dk.stride},
          {kDv, op.dv.data, op.dv.stride}};
}
std::vector<Scratch> ScratchOf(const ops::Attention&) { return {}; }
std::vector<Scratch> ScratchOf(const ops::AttentionBackward& op) {
  const std::int64_t group = op.shape.heads / op.shape.kv_heads;
  std::vector<Scratch> scratch = {{kDqSum, op.dq.stride}};
  if (group > 1) {
    scratch.push_back({kDkHeads, group * op.dk.stride});
    scratch.push_back({kDvHeads, group * op.dv.stride});
  }
  return scratch;
}

// Parts of the room, one after the other.
class Room {
 public:
  explicit Room(std::span<std::byte> bytes) : bytes_(bytes) {}
  // Null where the room is too small, from then on.
  std::byte* Take(std::int64_t bytes) {
    const std::int64_t begin = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return fits() ? bytes_.data() + begin : nullptr;
  }
  bool fits() const { return used_ <= std::ssize(bytes_); }
  // Rows of these operands that fit beside a plan.
  std::int64_t RowsOf(const std::vector<Scratch>& scratch) const {
    std::int64_t left = std::ssize(bytes_) - used_ - kPlanBytes;
    std::int64_t row = 0;
    for (const Scratch& s : scratch) {
      row += s.stride * kScratchSize;
      left -= kAlignment;
    }
    if (row == 0) return std::numeric_limits<std::int64_t>::max();
    return std::max<std::int64_t>(0, left) / row;
  }

 private:
  static constexpr std::int64_t kAlignment = 256;
  std::span<std::byte> bytes_;
  std::int64_t used_ = 0;
};

class CudnnAttention final : public AttentionLibrary {
 public:
  CudnnAttention(const Cudnn& cudnn, bool required) : cudnn_(cudnn), required_(required) {
    cudnn_.Check("cudnnCreate, which needs all libraries of cuDNN", cudnn_.create(&target_.handle));
    void* numbers = nullptr;
    if (cudaMalloc(&numbers, 2 * kNumbersBytes) != cudaSuccess) {
      cudaGetLastError();  // not an error of the next call
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
    return RunAny(stream, op, Room(room));
  }
  bool Run(Stream stream, const ops::AttentionBackward& op, std::span<std::byte> room) override {
    return RunAny(stream, op, Room(room));
  }

 private:
  // The numbers of a pass on the device, which all layers share.
  struct Numbers {
    std::byte* device = nullptr;
    std::vector<std::int32_t> host;
  };
  // A plan, or why there is none.
  struct Planned {
    std::unique_ptr<AttentionPlan> plan;
    std::string problem;
  };
  // A group of sequences, ready to run.
  struct Group {
    AttentionPlanShape shape;
    const AttentionPlan* plan;
    std::vector<Operand> operands;
    void* workspace;
  };

  template <typename AnyAttention>
  bool RunAny(Stream stream, const AnyAttention& op, Room room) {
    // The backends of a device may run on several threads; a handle of cuDNN serves one at a time,
    // and the numbers of an op must stay until its plans are queued.
    const std::lock_guard lock(mutex_);
    const std::string problem = Try(stream, op, room);
    if (problem.empty()) return true;
    // The caller then runs its own kernels: what the library does not take is no error.
    if (!required_) return false;
    ThrowRuntime(
        "cuda: QLORA_CUDA_ATTENTION is cudnn, and cuDNN does not run the {} of attention ({} rows, "
        "{} heads of {}): {}",
        std::is_same_v<AnyAttention, ops::Attention> ? "forward pass" : "gradient", op.q.rows,
        op.shape.heads, op.shape.head_dim, problem);
  }

  // Queues the op; or says why not, and has queued nothing.
  template <typename AnyAttention>
  std::string Try(Stream stream, const AnyAttention& op, Room room) {
    std::vector<Operand> operands = OperandsOf(op);
    constexpr bool kBackward = std::is_same_v<AnyAttention, ops::AttentionBackward>;
    if (kBackward) {  // shares the offsets of lse, so it has a place for every row
      operands.push_back(
          {kDelta, room.Take(op.q.rows * op.lse.stride * std::int64_t{sizeof(float)})});
    }
    const std::vector<Scratch> scratch = ScratchOf(op);
    const std::vector<AttentionSpan> spans = WithRows(op.spans);
    const auto parts = GroupSpans(spans, {.rows = room.RowsOf(scratch),
                                          .sequences = kMostSequences,
                                          .powers_of_two = !cudnn_.TakesEmptySequences()});
    if (parts.empty()) {
      return fmt::format("the workspace is too small for a sequence of {} tokens",
                         LongestOf(op.spans));
    }
    std::vector<std::int32_t> numbers;
    std::vector<Group> groups;
    for (const std::span<const AttentionSpan> part : parts) {
      Group group = {PlanOf(op, part), nullptr, operands, nullptr};
      for (Operand& operand : group.operands) {
        // Bytes of a row of bfloat16.
        if (!operand.counts_in_op && operand.stride > 0) {
          operand.data = static_cast<const std::byte*>(operand.data) +
                         BytesOf(DType::kBF16, part.front().q_begin * operand.stride);
        }
      }
      std::string problem = ProblemOf(group.shape, op.q.rows, RowsIn(part));
      if (!problem.empty()) return problem;
      const Planned& planned = PlanFor(group.shape);
      if (planned.plan == nullptr) return planned.problem;
      group.plan = planned.plan.get();
      Room rest = room;
      AddNumbers(part, group, numbers);
      for (const Scratch& s : scratch) {
        group.operands.push_back({s.id, rest.Take(RowsIn(part) * s.stride * kScratchSize)});
      }
      group.workspace = rest.Take(group.plan->workspace());
      if (!rest.fits()) return "the workspace is too small for a plan of cuDNN";
      groups.push_back(std::move(group));
    }
    if (std::ssize(numbers) * std::int64_t{sizeof(std::int32_t)} > kNumbersBytes) {
      return fmt::format("too many sequences, {}", spans.size());
    }
    Upload(stream, numbers_[kBackward ? 1 : 0], std::move(numbers));
    cudnn_.Check("cudnnSetStream",
                 cudnn_.set_stream(target_.handle, static_cast<cudaStream_t>(stream)));
    for (const Group& group : groups) RunPlan(group, op.shape);
    return "";
  }

  void RunPlan(const Group& group, const AttentionShape& attention) {
    std::vector<Operand> operands = group.operands;
    const float one = 1;
    // exp(-infinity) = 0: what is hidden has no part in sums, and no gradient.
    const float hidden = -std::numeric_limits<float>::infinity();
    const auto window = static_cast<float>(attention.window);
    operands.push_back({kScale, &attention.scale});
    if (group.shape.backward) operands.push_back({kOne, &one});
    if (group.shape.windowed) operands.push_back({kWindow, &window});
    for (const std::int64_t id : {kHiddenPadding, kHiddenFuture}) operands.push_back({id, &hidden});
    if (group.shape.windowed) operands.push_back({kHiddenPast, &hidden});

    std::vector<std::int64_t> ids;
    std::vector<void*> data;
    for (const Operand& operand : operands) {
      ids.push_back(operand.id);
      data.push_back(const_cast<void*>(operand.data));
    }
    group.plan->Run(target_.handle, ids, data, group.workspace);
  }

  // Whether there is a plan is found out once.
  const Planned& PlanFor(const AttentionPlanShape& shape) {
    const auto known = plans_.find(shape);
    if (known != plans_.end()) return known->second;
    Planned planned;
    try {
      planned.plan = std::make_unique<AttentionPlan>(cudnn_, target_, shape);
    } catch (const Error& error) {
      cudaGetLastError();  // not an error of the next call
      planned.problem = error.what();
    }
    return plans_.emplace(shape, std::move(planned)).first->second;
  }

  // Adds to `host` the rows of the sequences, and where each begins in every operand that has a
  // stride; and to the operands, where these numbers will be on the device. Sequences of the plan
  // behind the last have no rows.
  void AddNumbers(std::span<const AttentionSpan> spans, Group& group,
                  std::vector<std::int32_t>& host) const {
    const AttentionPlanShape& shape = group.shape;
    const Numbers& numbers = numbers_[shape.backward ? 1 : 0];
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
    const std::vector<Operand> given = group.operands;
    group.operands.push_back({kQueryRows, device(rows)});
    group.operands.push_back({kKeyRows, device(rows)});
    std::map<std::pair<std::int64_t, bool>, std::int64_t> places;  // of offsets that are equal
    for (const Operand& operand : given) {
      if (operand.stride == 0) continue;
      const auto [place, is_new] =
          places.try_emplace({operand.stride, operand.counts_in_op}, std::ssize(host));
      group.operands.push_back({kOffsets + operand.id, device(place->second)});
      if (!is_new) continue;
      const std::int64_t at = begin(shape.sequences + 1);
      const std::int64_t end = spans.back().q_begin + spans.back().q_rows;
      const std::int64_t first = operand.counts_in_op ? 0 : spans.front().q_begin;
      for (std::int64_t i = 0; i <= shape.sequences; ++i) {
        const std::int64_t row = i < std::ssize(spans) ? spans[i].q_begin : end;
        host[at + i] = static_cast<std::int32_t>((row - first) * operand.stride);
      }
    }
  }

  // All layers of a pass have the same sequences and strides: the first one copies, the others
  // compare. Plans queued before have read the old numbers when the stream comes to the copy.
  static void Upload(Stream stream, Numbers& numbers, std::vector<std::int32_t> host) {
    if (host == numbers.host) return;
    numbers.host = std::move(host);
    CheckCuda("copy the offsets of attention",
              cudaMemcpyAsync(numbers.device, numbers.host.data(),
                              numbers.host.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                              static_cast<cudaStream_t>(stream)));
  }

  const Cudnn cudnn_;
  const bool required_;
  std::mutex mutex_;
  AttentionTarget target_;
  std::array<Numbers, 2> numbers_;  // forward, backward
  std::map<AttentionPlanShape, Planned> plans_;
};

}  // namespace

std::unique_ptr<AttentionLibrary> MakeCudnnAttention(const Cudnn& cudnn, bool required) {
  return std::make_unique<CudnnAttention>(cudnn, required);
}

}  // namespace qlora::cuda
