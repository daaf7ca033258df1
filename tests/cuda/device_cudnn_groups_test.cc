// Where the operands of groups lie, read back as cuDNN reads them: the place of a sequence is the
// address of the operand plus the offset of the sequence.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

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

TEST_F(DeviceCudnnGroups, HaveEverySequenceWhereItIs) {
  for (const bool takes_empty : {false, true}) {
    const std::vector<AttentionSpan> spans = Packed({190, 0, 77, 33, 210, 1, 65});
    const ops::AttentionBackward op = OpOf(spans);
    const CudnnGroups made = GroupsOf(op, room_, takes_empty, device_.data());
    ASSERT_EQ(made.problem, "");
    ASSERT_GT(made.groups.size(), 1u);
    std::size_t next = 0;  // span
    for (const CudnnGroup& group : made.groups) {
      std::map<std::int64_t, const std::byte*> places;
      for (const CudnnOperand& operand : group.operands) {
        EXPECT_TRUE(places.emplace(operand.id, static_cast<const std::byte*>(operand.data)).second);
      }
      const auto number = [&](std::int64_t id, std::int64_t index) {
        const std::int64_t at = (places.at(id) - device_.data()) / 4 + index;
        EXPECT_LT(at, std::ssize(made.numbers));
        return made.numbers[at];
      };
      // The bytes of the scratch operands of this group: inside the room, apart, and not the rest.
      std::vector<std::pair<const std::byte*, std::int64_t>> used;
      std::int64_t rows = 0;
      for (std::int64_t i = 0; i < group.shape.sequences; ++i) rows += number(kQueryRows, i);
      used.emplace_back(places.at(kDelta), op.q.rows * kHeads * 4);
      used.emplace_back(places.at(kDqSum), rows * op.dq.stride * 4);
      for (const std::int64_t id : {kDkHeads, kDvHeads}) {
        used.emplace_back(places.at(id), rows * 3 * op.dk.stride * 4);
      }
      used.emplace_back(group.rest.data(), std::ssize(group.rest));
      std::ranges::sort(used);
      EXPECT_GE(used.front().first, room_.data());
      for (std::size_t i = 0; i + 1 < used.size(); ++i) {
        EXPECT_LE(used[i].first + used[i].second, used[i + 1].first);
      }
      EXPECT_LE(used.back().first + used.back().second, room_.data() + room_.size());
      for (const auto& [data, bytes] : used) {
        EXPECT_EQ((data - room_.data()) % 256, 0);
      }

      std::int64_t first = -1;
      for (std::int64_t i = 0; i < group.shape.sequences; ++i) {
        EXPECT_EQ(number(kQueryRows, i), number(kKeyRows, i));
        if (number(kQueryRows, i) == 0) {
          EXPECT_TRUE(takes_empty);
          continue;
        }
        while (spans[next].q_rows == 0) ++next;
        const AttentionSpan& span = spans[next++];
        EXPECT_EQ(number(kQueryRows, i), span.q_rows);
        if (first < 0) first = span.q_begin;
        const auto expect_at = [&](std::int64_t id, std::int64_t offsets,
                                   const ConstMatrixView& m) {
          const auto* row =
              static_cast<const std::byte*>(m.data) + BytesOf(m.dtype, span.q_begin * m.stride);
          EXPECT_EQ(places.at(id) + BytesOf(m.dtype, number(kOffsets + offsets, i)), row) << id;
          if (id != kLse) {
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(places.at(id)) % 16, 0u) << id;
          }
        };
        expect_at(kQ, kQ, op.q);
        expect_at(kK, kK, op.k);
        expect_at(kV, kV, op.v);
        expect_at(kO, kO, op.o);
        expect_at(kDo, kDo, op.d_o);
        expect_at(kLse, kLse, op.lse);
        expect_at(kDq, kDq, op.dq);
        expect_at(kDk, kDk, op.dk);
        expect_at(kDv, kDv, op.dv);
        // Those without offsets of their own.
        EXPECT_EQ(number(kOffsets + kDq, i), (span.q_begin - first) * op.dq.stride);
        EXPECT_EQ(number(kOffsets + kLse, i), span.q_begin * kHeads);
      }
    }
    EXPECT_EQ(next, spans.size());
  }
}

TEST_F(DeviceCudnnGroups, AreOneWhereEverythingFits) {
  const std::vector<AttentionSpan> spans = Packed({150, 100, 50});
  EXPECT_EQ(GroupsOf(OpOf(spans), room_, true, device_.data()).groups.size(), 1u);
  EXPECT_EQ(GroupsOf(OpOf(spans), room_, false, device_.data()).groups.size(), 2u);
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
