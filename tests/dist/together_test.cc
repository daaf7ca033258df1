// Ranks come to one outcome.
#include "dist/together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "dist/agreement.h"
#include "dist/folder_copy.h"
#include "dist/thread_ranks.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What each rank was told by work(communicator).
std::vector<std::string> MessagesOf(int ranks, const std::function<void(Communicator&)>& work) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  OnRanks(ranks, [&](Communicator& communicator) {
    try {
      work(communicator);
    } catch (const Error& error) {
      messages[communicator.rank()] =
          fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
      EXPECT_TRUE(communicator.ends_together());
    }
  });
  return messages;
}

TEST(Together, AnErrorOfOneRankIsAnErrorOfAll) {
  const auto messages = MessagesOf(3, [](Communicator& communicator) {
    Together(communicator, [&] {
      if (communicator.rank() == 1) ThrowInvalidInput("data.jsonl: no such file");
    });
  });
  for (const std::string& message : messages) {
    EXPECT_EQ(message, "2: rank 1 of 3 (host): data.jsonl: no such file");
  }
}

TEST(Together, AnErrorOfAllRanksIsToldOnce) {
  const auto messages = MessagesOf(2, [](Communicator& communicator) {
    Together(communicator, [] { ThrowRuntime("the disk is full"); });
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "1: the disk is full");
}

TEST(Together, OtherExceptionsAreToldToo) {
  const auto messages = MessagesOf(2, [](Communicator& communicator) {
    Together(communicator, [&] {
      if (communicator.rank() == 0) throw std::bad_alloc();
    });
  });
  for (const std::string& message : messages) {
    EXPECT_EQ(message, "3: rank 0 of 2 (host): memory ran out");
  }
}

TEST(Together, NoErrorLetsAllGoOn) {
  const auto messages = MessagesOf(3, [](Communicator& communicator) {
    EXPECT_EQ(MakeTogether(communicator, [&] { return communicator.rank() + 1; }),
              communicator.rank() + 1);
    EXPECT_EQ(
        GatherTexts(communicator, std::string(static_cast<std::size_t>(communicator.rank()), 'x')),
        (std::vector<std::string>{"", "x", "xx"}));
    EXPECT_EQ(BroadcastText(communicator, communicator.is_root() ? "root" : ""), "root");
    for (const std::string text : {"", "ab", "abc", "abcd", "abcdefgh"}) {
      EXPECT_EQ(BroadcastLongText(communicator, communicator.is_root() ? text : "", 3), text);
    }
    EXPECT_TRUE(AnyRank(communicator, communicator.rank() == 2));
    EXPECT_FALSE(AnyRank(communicator, false));
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST(AgreeOn, NamesWhatDiffersAndWhere) {
  const auto messages = MessagesOf(3, [](Communicator& communicator) {
    AgreeOn(communicator, {{"seed", "42"},
                           {"kernels", communicator.rank() == 2 ? "avx2" : "avx512"},
                           {"data", "a:b"}});
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("2: "),
                               HasSubstr("kernels: 'avx512' on rank 0 of 3 (host), 'avx2' "
                                         "on rank 2 of 3 (host)"),
                               Not(HasSubstr("seed")), Not(HasSubstr("data:"))));
  }
}

TEST(AgreeOn, GoesOnWhereAllIsTheSame) {
  const auto messages = MessagesOf(2, [](Communicator& communicator) {
    AgreeOn(communicator, {{"seed", ""}, {"", "1:2"}});
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

// Ranks of one disk read the folder itself; a rank with another folder of that name gets a copy.
TEST(ShareFolder, CopiesWhereTheFolderIsAnother) {
  namespace fs = std::filesystem;
  const TemporaryFolder both;
  const fs::path root = both / "checkpoint-3";
  const fs::path other = both / "other/checkpoint-3";
  fs::create_directories(root);
  fs::create_directories(other);
  std::ofstream(root / "key") << "new";
  std::ofstream(root / "values") << std::string(100000, 'v');
  std::ofstream(other / "key") << "old";
  for (const bool shared : {true, false}) {
    OnRanks(2, [&](Communicator& communicator) {
      const fs::path mine = communicator.is_root() || shared ? root : other;
      const auto folder = ShareFolder(communicator, mine.string(), "key");
      EXPECT_EQ(folder->path() == mine, communicator.is_root() || shared);
      EXPECT_EQ(folder->path().filename(), "checkpoint-3");
      std::ifstream file(folder->path() / "values");
      EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), std::string(100000, 'v'));
    });
  }
}

}  // namespace
}  // namespace qlora
