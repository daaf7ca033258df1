// Slices of device memory through NCCL, in whose place is a library of the tests.
#include "dist/nccl_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/guarded_memory.h"
#include "base/arena.h"
#include "dist/thread_ranks.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

// Sends to everyone, with and without a link.
TEST(NcclLink, ExchangesTheMemoryOfADevice) {
  for (const bool links : {false, true}) {
    OnRanks(3, [&](Communicator& ranks) {
      GuardedMemory memory;
      std::unique_ptr<Communicator::DeviceLink> link;
      if (links) link = MakeNcclLink(ranks, memory, true, QLORA_NCCL_STAND_IN);
      EXPECT_EQ(link != nullptr, links);
      Arena leaving(4 * sizeof(int), memory);
      Arena arriving(3 * 4 * sizeof(int), memory);
      const std::vector<int> mine = {ranks.rank(), 7, 8, 9};
      memory.Upload(mine.data(), leaving.data(), leaving.bytes());
      std::vector<Communicator::Bytes> to_each(3);
      std::vector<Communicator::MutableBytes> from_each(3);
      for (int other = 0; other < 3; ++other) {
        if (other == ranks.rank()) continue;
        to_each[other] = {leaving.data(), leaving.bytes()};
        from_each[other] = {arriving.data() + leaving.bytes() * static_cast<std::size_t>(other),
                            leaving.bytes()};
      }
      ranks.Exchange(to_each, from_each, memory);
      std::vector<int> all(12);
      memory.Download(arriving.data(), all.data(), arriving.bytes());
      for (int other = 0; other < 3; ++other) {
        if (other == ranks.rank()) continue;
        EXPECT_EQ(all[4 * other], other);
        EXPECT_EQ(all[4 * other + 3], 9);
      }
    });
  }
}

TEST(NcclLink, IsMissingWhereOneRankHasNone) {
  OnRanks(2, [](Communicator& ranks) {
    GuardedMemory memory;
    const char* library = ranks.is_root() ? QLORA_NCCL_STAND_IN : "libnone.so.2";
    EXPECT_EQ(MakeNcclLink(ranks, memory, false, library), nullptr);
    EXPECT_THROW(MakeNcclLink(ranks, memory, true, library), Error);
  });
}

TEST(NcclLink, DescribesTheLibrary) {
  EXPECT_EQ(DescribeNccl(QLORA_NCCL_STAND_IN), "NCCL 2.20.5");
  EXPECT_THAT(DescribeNccl("libnone.so.2"), HasSubstr("none: libnone.so.2"));
}

}  // namespace
}  // namespace qlora
