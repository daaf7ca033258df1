#include "hub/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "bound_by_permissions.h"
#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A cache with org/tiny: main is commit abc, and there is a commit def.
class HubTest : public testing::Test {
 protected:
  HubTest() {
    for (const char* commit : {"abc", "def"}) {
      fs::create_directories(Snapshot(commit));
      WriteTextFile(Snapshot(commit) / "config.json", "{}");
      WriteTextFile(Snapshot(commit) / "model.safetensors", "");
    }
    fs::create_directories(cache_ / "models--org--tiny/refs");
    WriteTextFile(cache_ / "models--org--tiny/refs/main", "abc\n");
    setenv("HF_HUB_CACHE", cache_.c_str(), 1);
  }
  ~HubTest() override { unsetenv("HF_HUB_CACHE"); }

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

  TemporaryFolder folder_;
  fs::path cache_ = folder_.path();
};

TEST_F(HubTest, NamesResolveToSnapshots) {
  EXPECT_EQ(ResolveModelDir("org/tiny"), Snapshot("abc"));
  EXPECT_EQ(ResolveModelDir("org/tiny@main"), Snapshot("abc"));
  EXPECT_EQ(ResolveModelDir("org/tiny@def"), Snapshot("def"));
  EXPECT_EQ(ResolveModelDir(Snapshot("def").string()), Snapshot("def"));
  EXPECT_THAT(CachedModels(), ElementsAre("org/tiny"));
}

TEST_F(HubTest, AGgufFileIsAModel) {
  const fs::path folder = cache_ / "gguf";
  fs::create_directories(folder);
  WriteTextFile(folder / "m.gguf", "GGUF");
  EXPECT_EQ(ResolveModelDir((folder / "m.gguf").string()), folder / "m.gguf");
  EXPECT_EQ(ResolveModelDir(folder.string()), folder / "m.gguf");
  // A repository of GGUF files has no config.json.
  fs::remove(Snapshot("abc") / "config.json");
  fs::remove(Snapshot("abc") / "model.safetensors");
  WriteTextFile(Snapshot("abc") / "m.gguf", "GGUF");
  EXPECT_EQ(ResolveModelDir("org/tiny"), Snapshot("abc") / "m.gguf");
}

TEST_F(HubTest, MissingModelsComeWithTheCommandToDownloadThem) {
  EXPECT_THAT(Refusal("org/other"),
              AllOf(HasSubstr(cache_.string()), HasSubstr("qlora pull org/other")));
  EXPECT_THAT(Refusal("org/tiny@v2"), HasSubstr("qlora pull org/tiny@v2"));
  EXPECT_THAT(Refusal("tiny"), HasSubstr("no such model directory"));
  EXPECT_THAT(Refusal("Llama-3.2-1B"), HasSubstr("qlora pull meta-llama/Llama-3.2-1B"));
  EXPECT_THAT(Refusal("gemma-3-1b-it@v2"), HasSubstr("qlora pull google/gemma-3-1b-it@v2"));
  // The name of a family is that of no repository.
  EXPECT_THAT(Refusal("gpt-oss"),
              AllOf(HasSubstr("Models of such names: gpt-oss-20b, gpt-oss-120b."),
                    HasSubstr("To download gpt-oss-20b: qlora pull openai/gpt-oss-20b")));
  EXPECT_THAT(Refusal("gptoss-20b"), HasSubstr("qlora pull openai/gpt-oss-20b"));
  EXPECT_EQ(Refusal("unheard-of.gguf"), "unheard-of.gguf: no such file");
  EXPECT_THAT(Refusal("unheard-of"), HasSubstr("qlora pull ORG/unheard-of"));
  EXPECT_THAT(Refusal(cache_.string()), HasSubstr("no config.json"));
  WriteTextFile(cache_ / "adapter_config.json", "{}");
  EXPECT_THAT(Refusal(cache_.string()), HasSubstr("found an adapter"));
  EXPECT_THAT(Refusal((Snapshot("abc") / "config.json").string()), HasSubstr("found a file"));
  EXPECT_THAT(Refusal(""), HasSubstr("model_name_or_path"));
}

TEST_F(HubTest, MissingPermissionIsNoMissingModel) {
  const BoundByPermissions bound;
  if (!bound.holds()) GTEST_SKIP() << "root may enter every folder";
  fs::permissions(Snapshot("abc"), fs::perms::none);
  EXPECT_THAT(Refusal(Snapshot("abc").string()), HasSubstr("no permission"));
  fs::permissions(Snapshot("abc"), fs::perms::owner_all);
}

TEST_F(HubTest, IncompleteSnapshotsSayHowToCompleteThem) {
  fs::remove(Snapshot("abc") / "model.safetensors");
  EXPECT_THAT(Refusal("org/tiny"),
              AllOf(HasSubstr("no safetensors weights"), HasSubstr("qlora pull org/tiny")));
  fs::create_symlink("../../blobs/gone", Snapshot("abc") / "model.safetensors");
  EXPECT_THAT(Refusal("org/tiny"),
              AllOf(HasSubstr("model.safetensors is gone"), HasSubstr("qlora pull org/tiny")));
  WriteTextFile(Snapshot("abc") / "tokenizer.json", "{}");
  EXPECT_EQ(ResolveTokenizerDir("org/tiny"), Snapshot("abc"));
}

TEST_F(HubTest, NamesAndRevisionsStayInTheCache) {
  EXPECT_EQ(ParseHubRepository("gpt2").Folder(), cache_ / "models--gpt2");
  EXPECT_EQ(ParseHubRepository("a/b@refs/pr/1", HubType::kDataset).Folder(),
            cache_ / "datasets--a--b");
  EXPECT_THAT(Refusal("org/tiny@../../models--a--b"), HasSubstr("no branch, tag or commit"));
  for (const char* name : {"../evil", "a/b/c", "-x/y", "a/..", "a--b/c", "a/b@/x/y", "a/b@x/../y",
                           "a/b@.x", "a/b@x y"}) {
    EXPECT_THROW(ParseHubRepository(name), Error) << name;
  }
}

TEST_F(HubTest, NamesOfDataSetsHaveAnOrganisation) {
  EXPECT_EQ(AsHubDataset("a/b@v1").value().Folder(), cache_ / "datasets--a--b");
  for (const char* text : {"b", "a/b/c", "./a", "/a/b", "a/b@../c", "data/*.jsonl", ""}) {
    EXPECT_FALSE(AsHubDataset(text)) << text;
  }
  EXPECT_FALSE(CachedSnapshot(*AsHubDataset("a/b")));
}

TEST_F(HubTest, FoldersWithoutSnapshotsAreNotListed) {
  fs::create_directories(cache_ / "models--org--half/blobs");
  EXPECT_THAT(CachedModels(), ElementsAre("org/tiny"));
}

TEST_F(HubTest, VariablesAreExpandedAsInPython) {
  setenv("QLORA_TEST_DIR", "/data", 1);
  EXPECT_EQ(ExpandPath("$QLORA_TEST_DIR/hub"), "/data/hub");
  EXPECT_EQ(ExpandPath("${QLORA_TEST_DIR}hub"), "/datahub");
  EXPECT_EQ(ExpandPath("~/hub"), std::string(std::getenv("HOME")) + "/hub");
  EXPECT_EQ(ExpandPath("/a~b"), "/a~b");
  unsetenv("QLORA_TEST_DIR");
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
