// Where the operands of groups lie, read back as cuDNN reads them: the place of a sequence is the
// address of the operand plus the offset of the sequence.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_room.h"
#include "backend/cuda/device/cudnn_groups.h"

namespace qlora::cuda {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kHeads = 6;  // rows of lse begin at multiples of 24 bytes
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kHeadDim = 64;

// An op on addresses that nothing reads.
class DeviceCudnnGroups : public testing::Test {
 protected:
  static std::vector<AttentionSpan> Packed(const std::vector<std::int64_t>& lengths) {
    std::vector<AttentionSpan> spans;
    std::int64_t begin = 0;
    for (const std::int64_t n : lengths) {
      spans.push_back({begin, n, begin, n});
      begin += n;
    }
    return spans;
  }
  // Each operand has a region of its own. The q of this op are columns of a wider matrix.
  static MatrixView Region(std::int64_t number, DType dtype, std::int64_t rows, std::int64_t cols,
                           std::int64_t stride) {
    return {reinterpret_cast<std::byte*>(number << 32), dtype, rows, cols, stride};
  }
  static ops::AttentionBackward OpOf(const std::vector<AttentionSpan>& spans) {
    const std::int64_t rows = spans.back().q_begin + spans.back().q_rows;
    const std::int64_t q = kHeads * kHeadDim;
    const std::int64_t k = kKvHeads * kHeadDim;
    const auto region = [&](std::int64_t number, std::int64_t cols, std::int64_t stride) {
      return Region(number, DType::kBF16, rows, cols, stride);
    };
    const AttentionShape shape = {.heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .head_dim = kHeadDim,
                                  .scale = 1,
                                  .softcap = 0,
                                  .window = 0};
    return {shape,           spans,
            region(1, q, q), region(2, q, q + 2 * k),
            region(3, k, k), region(4, k, k),
            region(5, q, q), Region(6, DType::kF32, rows, kHeads, kHeads),
            region(7, q, q), region(8, k, k),
            region(9, k, k)};
  }

  std::vector<std::byte> room_ = std::vector<std::byte>(std::size_t{6} << 20);
  std::vector<std::byte> device_ = std::vector<std::byte>(kNumbersBytes);
};

// The operands of a group and the numbers that it reads.
class GroupReader {
 public:
  GroupReader(const CudnnGroup& group, const std::vector<std::int32_t>& numbers,
              const std::byte* device)
      : numbers_(numbers), device_(device) {
    for (const CudnnOperand& operand : group.operands) {
      EXPECT_TRUE(places_.emplace(operand.id, static_cast<const std::byte*>(operand.data)).second);
    }
  }
  const std::byte* place(std::int64_t id) const { return places_.at(id); }
  std::int64_t number(std::int64_t id, std::int64_t index) const {
    const std::int64_t at = (place(id) - device_) / 4 + index;
    EXPECT_LT(at, std::ssize(numbers_));
    return numbers_[at];
  }
  // Sequence i begins at row q_begin of m.
  void ExpectSequence(std::int64_t i, const AttentionSpan& span, std::int64_t id,
                      const ConstMatrixView& m) const {
    const auto* row =
        static_cast<const std::byte*>(m.data) + BytesOf(m.dtype, span.q_begin * m.stride);
    EXPECT_EQ(place(id) + BytesOf(m.dtype, number(kOffsets + id, i)), row) << id;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place(id)) % 16, 0u) << id;
  }

 private:
  std::map<std::int64_t, const std::byte*> places_;
  const std::vector<std::int32_t>& numbers_;
  const std::byte* device_;
};

// The scratch operands of a group: inside the room, apart, and not the rest.
void ExpectScratch(const ops::AttentionBackward& op, const CudnnGroup& group,
                   const GroupReader& reader, const std::vector<std::byte>& room) {
  std::vector<std::pair<const std::byte*, std::int64_t>> used;  // bytes
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < group.shape.sequences; ++i) rows += reader.number(kQueryRows, i);
  used.emplace_back(reader.place(kDelta), op.q.rows * kHeads * 4);
  used.emplace_back(reader.place(kDqSum), rows * op.dq.stride * 4);
  for (const std::int64_t id : {kDkHeads, kDvHeads}) {
    used.emplace_back(reader.place(id), rows * 3 * op.dk.stride * 4);
  }
  used.emplace_back(group.rest.data(), std::ssize(group.rest));
  std::ranges::sort(used);
  EXPECT_GE(used.front().first, room.data());
  for (std::size_t i = 0; i + 1 < used.size(); ++i) {
    EXPECT_LE(used[i].first + used[i].second, used[i + 1].first);
  }
  EXPECT_LE(used.back().first + used.back().second, room.data() + room.size());
  for (const auto& [data, bytes] : used) {
    EXPECT_EQ((data - room.data()) % 256, 0);
  }
}

TEST_F(DeviceCudnnGroups, HaveEverySequenceWhereItIs) {
  for (const bool takes_empty : {false, true}) {
    const std::vector<AttentionSpan> spans = Packed({190, 0, 77, 33, 210, 1, 65});
    const ops::AttentionBackward op = OpOf(spans);
    const std::pair<std::int64_t, ConstMatrixView> operands[] = {
        {kQ, op.q},     {kK, op.k},   {kV, op.v},   {kO, op.o},  {kDo, op.d_o},
        {kLse, op.lse}, {kDq, op.dq}, {kDk, op.dk}, {kDv, op.dv}};
    const CudnnGroups made = GroupsOf(op, room_, takes_empty, device_.data());
    ASSERT_EQ(made.problem, "");
    ASSERT_GT(made.groups.size(), 1u);
    std::size_t next = 0;  // span
    for (const CudnnGroup& group : made.groups) {
      const GroupReader reader(group, made.numbers, device_.data());
      ExpectScratch(op, group, reader, room_);
      std::int64_t first = -1;
      for (std::int64_t i = 0; i < group.shape.sequences; ++i) {
        EXPECT_EQ(reader.number(kQueryRows, i), reader.number(kKeyRows, i));
        if (reader.number(kQueryRows, i) == 0) {
          EXPECT_TRUE(takes_empty);
          continue;
        }
        while (spans[next].q_rows == 0) ++next;
        const AttentionSpan& span = spans[next++];
        EXPECT_EQ(reader.number(kQueryRows, i), span.q_rows);
        if (first < 0) first = span.q_begin;
        for (const auto& [id, m] : operands) reader.ExpectSequence(i, span, id, m);
        // Those without offsets of their own.
        EXPECT_EQ(reader.number(kOffsets + kDq, i), (span.q_begin - first) * op.dq.stride);
        EXPECT_EQ(reader.number(kOffsets + kLse, i), span.q_begin * kHeads);
      }
    }
    EXPECT_EQ(next, spans.size());
  }
}

TEST_F(DeviceCudnnGroups, OfTheForwardPassHaveEverySequenceWhereItIs) {
  const std::vector<AttentionSpan> spans = Packed({190, 77, 33, 210, 1, 65});
  const ops::AttentionBackward inputs = OpOf(spans);
  const std::int64_t rows = inputs.q.rows;
  const std::int64_t q = kHeads * kHeadDim;
  const ops::Attention op = {inputs.shape,
                             spans,
                             inputs.q,
                             inputs.k,
                             inputs.v,
                             Region(5, DType::kBF16, rows, q, q),
                             Region(6, DType::kF32, rows, kHeads, kHeads)};
  const std::pair<std::int64_t, ConstMatrixView> operands[] = {
      {kQ, op.q}, {kK, op.k}, {kV, op.v}, {kO, op.o}, {kLse, op.lse}};
  const CudnnGroups made = GroupsOf(op, room_, false, device_.data());
  ASSERT_EQ(made.problem, "");
  ASSERT_GT(made.groups.size(), 1u);
  std::size_t next = 0;  // span
  for (const CudnnGroup& group : made.groups) {
    const GroupReader reader(group, made.numbers, device_.data());
    for (std::int64_t i = 0; i < group.shape.sequences; ++i, ++next) {
      EXPECT_EQ(reader.number(kQueryRows, i), spans[next].q_rows);
      for (const auto& [id, m] : operands) reader.ExpectSequence(i, spans[next], id, m);
    }
  }
  EXPECT_EQ(next, spans.size());
}

TEST_F(DeviceCudnnGroups, AreOneWhereEverythingFits) {
  const std::vector<AttentionSpan> spans = Packed({150, 100, 50});
  EXPECT_EQ(GroupsOf(OpOf(spans), room_, true, device_.data()).groups.size(), 1u);
  EXPECT_EQ(GroupsOf(OpOf(spans), room_, false, device_.data()).groups.size(), 2u);
}

// The longest sequence of a run, whose gradients are separate matrices, or columns of one.
TEST_F(DeviceCudnnGroups, FitIntoTheRoomThatIsPlanned) {
  const std::vector<AttentionSpan> spans = Packed({1000});
  const std::int64_t fused = (kHeads + 2 * kKvHeads) * kHeadDim;
  for (const std::int64_t qkv_stride : {std::int64_t{0}, fused}) {
    ops::AttentionBackward op = OpOf(spans);
    op.dq.stride = qkv_stride > 0 ? qkv_stride : kHeads * kHeadDim;
    op.dk.stride = op.dv.stride = qkv_stride > 0 ? qkv_stride : kKvHeads * kHeadDim;
    const BackendLimits limits = {.heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .head_dim = kHeadDim,
                                  .qkv_stride = qkv_stride,
                                  .gradient_rows = 1000,
                                  .gradient_length = 1000};
    std::vector<std::byte> room(LibraryRoom(limits));
    const CudnnGroups made = GroupsOf(op, room, true, device_.data());
    EXPECT_EQ(made.problem, "") << qkv_stride;
    EXPECT_EQ(made.groups.size(), 1u);
  }
}

TEST_F(DeviceCudnnGroups, SayWhyThereAreNone) {
  const auto problem = [&](const std::vector<std::int64_t>& lengths) {
    const std::vector<AttentionSpan> spans = Packed(lengths);
    return GroupsOf(OpOf(spans), room_, true, device_.data()).problem;
  };
  EXPECT_THAT(problem({100}), HasSubstr("fewer than 256 rows"));
  EXPECT_THAT(problem({100, 4000}), HasSubstr("too small for a sequence of 4000 tokens"));
  std::vector<AttentionSpan> spans = Packed({300});
  ops::AttentionBackward op = OpOf(spans);
  op.shape.head_dim = 24;
  EXPECT_THAT(GroupsOf(op, room_, true, device_.data()).problem, HasSubstr("head_dim 24"));
}

}  // namespace
}  // namespace qlora::cuda
