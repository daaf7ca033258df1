#include "backend/cuda/device/cudnn_groups.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <utility>

#include "backend/cuda/attention_groups.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

constexpr std::int64_t kLeastRows = 256;    // own kernels are as fast with fewer
constexpr std::int64_t kLeastLength = 512;  // of a plan
constexpr std::int64_t kMostSequences = 2048;
// Rows of a plan (sequences times length) for each row of the call: blocks without work cost time.
constexpr std::int64_t kMostEmptiness = 16;

// Bytes of the workspace of a plan, besides the operands that it is given. Plans of cuDNN 9.19
// need less than 0.5 KiB for each sequence, whatever its length.
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

// Names a number that exceeds the limits of kernels or of this file; or empty. op_rows: of all
// groups; rows: of this one.
std::string UnsupportedReason(const AttentionPlanShape& s, std::int64_t op_rows,
                              std::int64_t rows) {
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

// An operand that exists while an op runs: rows of `stride` elements, which begin where the rows of
// another operand with the same stride do.
struct Scratch {
  std::int64_t id, stride;
};
// Bytes of an element of any of them. dk and dv of heads are bfloat16, and NVIDIA's own programs
// reserve as much for them as for float32 all the same.
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
  std::span<std::byte> Rest() const { return fits() ? bytes_.subspan(used_) : bytes_.first(0); }
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

// Adds to `host` the rows of the sequences, and where each begins in every operand that has a
// stride; and to the operands of the group, where these numbers will be on the device. Sequences of
// the plan behind the last have no rows.
void AddNumbers(std::span<const AttentionSpan> spans, const std::vector<Operand>& operands,
                const std::byte* device, CudnnGroup& group, std::vector<std::int32_t>& host) {
  // A new array, and its place. Arrays begin at multiples of 16 bytes.
  const auto begin = [&](std::int64_t count) {
    const std::int64_t at = std::ssize(host);
    host.resize(at + (count + 3) / 4 * 4);
    return at;
  };
  const auto place_of = [&](std::int64_t at) {
    return device + at * std::int64_t{sizeof(std::int32_t)};
  };
  const std::int64_t rows = begin(group.shape.sequences);
  for (std::int64_t i = 0; i < std::ssize(spans); ++i) {
    host[rows + i] = static_cast<std::int32_t>(spans[i].q_rows);
  }
  group.operands.push_back({kQueryRows, place_of(rows)});
  group.operands.push_back({kKeyRows, place_of(rows)});
  std::map<std::pair<std::int64_t, bool>, std::int64_t> places;  // of offsets that are equal
  for (const Operand& operand : operands) {
    if (operand.stride == 0) continue;
    const auto [place, is_new] =
        places.try_emplace({operand.stride, operand.counts_in_op}, std::ssize(host));
    group.operands.push_back({kOffsets + operand.id, place_of(place->second)});
    if (!is_new) continue;
    const std::int64_t at = begin(group.shape.sequences + 1);
    const std::int64_t end = spans.back().q_begin + spans.back().q_rows;
    const std::int64_t first = operand.counts_in_op ? 0 : spans.front().q_begin;
    for (std::int64_t i = 0; i <= group.shape.sequences; ++i) {
      const std::int64_t row = i < std::ssize(spans) ? spans[i].q_begin : end;
      host[at + i] = static_cast<std::int32_t>((row - first) * operand.stride);
    }
  }
}

template <typename AnyAttention>
CudnnGroups Groups(const AnyAttention& op, std::span<std::byte> bytes, bool takes_empty,
                   const std::byte* device) {
  Room room(bytes);
  std::vector<Operand> operands = OperandsOf(op);
  if (std::is_same_v<AnyAttention, ops::AttentionBackward>) {
    // Shares the offsets of lse, so it has a place for every row.
    operands.push_back(
        {kDelta, room.Take(op.q.rows * op.lse.stride * std::int64_t{sizeof(float)})});
  }
  const std::vector<Scratch> scratch = ScratchOf(op);
  const std::vector<AttentionSpan> spans = WithRows(op.spans);
  const auto parts = GroupSpans(
      spans,
      {.rows = room.RowsOf(scratch), .sequences = kMostSequences, .powers_of_two = !takes_empty});
  CudnnGroups made;
  if (parts.empty()) {
    made.problem =
        fmt::format("the workspace is too small for a sequence of {} tokens", LongestOf(op.spans));
  }
  for (const std::span<const AttentionSpan> part : parts) {
    CudnnGroup group = {.shape = PlanOf(op, part), .operands = {}, .rest = {}};
    made.problem = UnsupportedReason(group.shape, op.q.rows, RowsIn(part));
    if (!made.problem.empty()) break;
    for (const Operand& operand : operands) {
      const bool moves = operand.stride > 0 && !operand.counts_in_op;
      const std::int64_t skipped = moves ? part.front().q_begin * operand.stride : 0;
      group.operands.push_back({operand.id, static_cast<const std::byte*>(operand.data) +
                                                BytesOf(DType::kBF16, skipped)});
    }
    AddNumbers(part, operands, device, group, made.numbers);
    Room rest = room;
    for (const Scratch& s : scratch) {
      group.operands.push_back({s.id, rest.Take(RowsIn(part) * s.stride * kScratchSize)});
    }
    group.rest = rest.Rest();
    made.groups.push_back(std::move(group));
  }
  if (std::ssize(made.numbers) * std::int64_t{sizeof(std::int32_t)} > kNumbersBytes) {
    made.problem = fmt::format("too many sequences, {}", spans.size());
  }
  return made;
}

}  // namespace

CudnnGroups GroupsOf(const ops::Attention& op, std::span<std::byte> room, bool takes_empty,
                     const std::byte* numbers) {
  return Groups(op, room, takes_empty, numbers);
}
CudnnGroups GroupsOf(const ops::AttentionBackward& op, std::span<std::byte> room, bool takes_empty,
                     const std::byte* numbers) {
  return Groups(op, room, takes_empty, numbers);
}

}  // namespace qlora::cuda
