#include "io/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "qlora/error.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A cache with org/tiny: main is commit abc, and there is a commit def.
class HubTest : public testing::Test {
 protected:
  HubTest()
      : cache_(fs::path(testing::TempDir()) /
               ("qlora-hub-" +
                std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    fs::remove_all(cache_);
    for (const char* commit : {"abc", "def"}) {
      fs::create_directories(Snapshot(commit));
      WriteTextFile(Snapshot(commit) / "config.json", "{}");
    }
    fs::create_directories(cache_ / "models--org--tiny/refs");
    WriteTextFile(cache_ / "models--org--tiny/refs/main", "abc\n");
    setenv("HF_HUB_CACHE", cache_.c_str(), 1);
  }
  ~HubTest() override {
    unsetenv("HF_HUB_CACHE");
    fs::remove_all(cache_);
  }

  fs::path Snapshot(const std::string& commit) const {
    return cache_ / "models--org--tiny/snapshots" / commit;
  }
  static std::string Refusal(const std::string& name) {
    try {
      ResolveModelDir(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    ADD_FAILURE() << "accepted: " << name;
    return "";
  }

  fs::path cache_;
};

TEST_F(HubTest, NamesResolveToSnapshots) {
  EXPECT_EQ(ResolveModelDir("org/tiny"), Snapshot("abc"));
  EXPECT_EQ(ResolveModelDir("org/tiny@main"), Snapshot("abc"));
  EXPECT_EQ(ResolveModelDir("org/tiny@def"), Snapshot("def"));
  EXPECT_EQ(ResolveModelDir(Snapshot("def").string()), Snapshot("def"));
  EXPECT_THAT(CachedModels(), ElementsAre("org/tiny"));
}

TEST_F(HubTest, MissingModelsComeWithTheCommandToDownloadThem) {
  EXPECT_THAT(Refusal("org/other"), AllOf(HasSubstr(cache_.string()),
                                          HasSubstr("hf download org/other --revision main")));
  EXPECT_THAT(Refusal("org/tiny@v2"), HasSubstr("hf download org/tiny --revision v2"));
  EXPECT_THAT(Refusal("tiny"), HasSubstr("no such model directory"));
  EXPECT_THAT(Refusal(cache_.string()), HasSubstr("no config.json"));
  EXPECT_THAT(Refusal((Snapshot("abc") / "config.json").string()), HasSubstr("found a file"));
  EXPECT_THAT(Refusal(""), HasSubstr("model_name_or_path"));
}

TEST_F(HubTest, ARevisionLeadsToNoOtherFolder) {
  fs::create_directories(cache_ / "elsewhere");
  WriteTextFile(cache_ / "elsewhere/config.json", "{}");
  for (const char* commit : {"../../elsewhere", "..", "", "a/b"}) {
    WriteTextFile(cache_ / "models--org--tiny/refs/main", commit);
    EXPECT_THAT(Refusal("org/tiny"), HasSubstr("expected a commit"));
  }
}

}  // namespace
}  // namespace qlora
