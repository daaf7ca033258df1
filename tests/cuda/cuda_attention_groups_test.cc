// Groups of sequences for a library of attention.
#include <gmock/gmock.h>

#include "backend/cuda/attention_groups.h"
#include "backend/test_attention.h"

namespace qlora::cuda {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<AttentionSpan> Packed(const std::vector<std::int64_t>& lengths) {
  return testing_util::Packed(lengths);
}
// The lengths of the sequences of each group.
std::vector<std::vector<std::int64_t>> GroupsOf(const std::vector<std::int64_t>& lengths,
                                                const GroupLimits& limits) {
  std::vector<std::vector<std::int64_t>> found;
  const std::vector<AttentionSpan> spans = Packed(lengths);
  for (const std::span<const AttentionSpan> group : GroupSpans(spans, limits)) {
    std::vector<std::int64_t>& rows = found.emplace_back();
    for (const AttentionSpan& s : group) rows.push_back(s.q_rows);
    std::int64_t sum = 0;
    for (const std::int64_t n : rows) sum += n;
    EXPECT_EQ(RowsIn(group), sum);
    EXPECT_LE(sum, limits.rows);
  }
  return found;
}

TEST(CudaAttentionGroups, HoldAsManyNeighboursAsFit) {
  EXPECT_THAT(GroupsOf({5, 4, 3, 9, 1}, {.rows = 9, .sequences = 8}),
              ElementsAre(ElementsAre(5, 4), ElementsAre(3), ElementsAre(9), ElementsAre(1)));
  EXPECT_THAT(GroupsOf({5, 4, 3}, {.rows = 100, .sequences = 8}),
              ElementsAre(ElementsAre(5, 4, 3)));
  EXPECT_THAT(GroupsOf({1, 1, 1, 1, 1}, {.rows = 100, .sequences = 2}),
              ElementsAre(ElementsAre(1, 1), ElementsAre(1, 1), ElementsAre(1)));
}

TEST(CudaAttentionGroups, AreNoneWhereASequenceDoesNotFit) {
  EXPECT_THAT(GroupsOf({5, 10, 3}, {.rows = 9, .sequences = 8}), IsEmpty());
}

TEST(CudaAttentionGroups, HavePowersOfTwoForAFixedNumberOfSequences) {
  EXPECT_THAT(GroupsOf({7, 6, 5, 4, 3, 2, 1}, {.rows = 100, .sequences = 8, .powers_of_two = true}),
              ElementsAre(ElementsAre(7, 6, 5, 4), ElementsAre(3, 2), ElementsAre(1)));
}

TEST(CudaAttentionGroups, LeaveOutSequencesWithoutRows) {
  const std::vector<AttentionSpan> kept = WithRows(Packed({0, 3, 0, 0, 2, 0}));
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].q_begin, 0);
  EXPECT_EQ(kept[1].q_begin, 3);
  EXPECT_EQ(kept[1].q_rows, 2);
}

}  // namespace
}  // namespace qlora::cuda
