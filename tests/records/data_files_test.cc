// Data sets of a hub, by their names.
#include "records/data_files.h"

#include <cstdlib>
#include <fstream>

#include "io/test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// A cache with the data set org/tales at one commit.
class HubDataTest : public testing::Test {
 protected:
  HubDataTest() {
    setenv("HF_HUB_CACHE", cache_.path().c_str(), 1);
    const fs::path folder = cache_ / "datasets--org--tales";
    fs::create_directories(folder / "refs");
    std::ofstream(folder / "refs" / "main") << "abc";
    Put("README.md");
  }
  ~HubDataTest() override { unsetenv("HF_HUB_CACHE"); }

  fs::path Snapshot() const { return cache_ / "datasets--org--tales" / "snapshots" / "abc"; }
  void Put(const fs::path& name) const {
    fs::create_directories((Snapshot() / name).parent_path());
    std::ofstream(Snapshot() / name) << "x";
  }
  // Names of the files, in order.
  static std::vector<std::string> Found(const std::string& name) {
    std::vector<std::string> names;
    for (const fs::path& file : FindDataFiles(name)) names.push_back(file.filename().string());
    return names;
  }

  TemporaryFolder cache_;
};

using Names = std::vector<std::string>;

TEST_F(HubDataTest, TheTrainingFilesAreTaken) {
  for (const char* name :
       {"data/train-1-of-2.parquet", "data/train-0-of-2.parquet", "data/test-0-of-1.parquet",
        "data/validation.parquet", "data/.hidden.parquet", "dataset_infos.json"}) {
    Put(name);
  }
  EXPECT_EQ(Found("org/tales"), (Names{"train-0-of-2.parquet", "train-1-of-2.parquet"}));
  EXPECT_EQ(Found("org/tales@abc"), Found("org/tales"));
}

TEST_F(HubDataTest, WordsAreWholeAndFoldersCount) {
  Put("latest.jsonl");
  Put("eval/more.jsonl");
  Put("Test.jsonl");
  EXPECT_EQ(Found("org/tales"), Names{"latest.jsonl"});
}

TEST_F(HubDataTest, SeveralKindsAreForTheUserToChoose) {
  Put("en/train.csv");
  Put("fr/train.csv");
  ExpectRefused([] { FindDataFiles("org/tales"); }, "fr/*.csv'");
  ExpectRefused([] { FindDataFiles("org/tales"); }, "several kinds of training files");
}

TEST_F(HubDataTest, AbsentDataComeWithTheCommandToDownloadThem) {
  ExpectRefused([] { FindDataFiles("org/tales"); }, "qlora pull --dataset org/tales");
  ExpectRefused([] { FindDataFiles("org/other@v1"); }, "qlora pull --dataset org/other@v1");
  Put("train.jsonl");
  fs::create_symlink("../../blobs/gone", Snapshot() / "train-2.jsonl");
  ExpectRefused([] { FindDataFiles("org/tales"); }, "is gone");
}

TEST_F(HubDataTest, OtherNamesAreFiles) {
  for (const char* name : {"absent.jsonl", "data/absent.jsonl", "a/b/c", "tales"}) {
    EXPECT_EQ(FindDataFiles(name), std::vector<fs::path>{name});
  }
}

}  // namespace
}  // namespace qlora
