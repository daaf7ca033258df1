// Data sets of a hub, folders and patterns.
#include "records/data_files.h"

#include <sys/stat.h>

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
    for (const fs::path& file : FindDataFiles(name).files)
      names.push_back(file.filename().string());
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

TEST_F(HubDataTest, EvaluationReadsTheFilesForIt) {
  Put("data/train.jsonl");
  Put("data/test.jsonl");
  const DataSearch search = {.purpose = DataPurpose::kEvaluation};
  EXPECT_EQ(FindDataFiles("org/tales", search).files, std::vector{Snapshot() / "data/test.jsonl"});
  Put("data/dev.jsonl");
  EXPECT_EQ(FindDataFiles("org/tales", search).files, std::vector{Snapshot() / "data/dev.jsonl"});
  EXPECT_EQ(FindDataFiles("org/tales").evaluation, std::vector{Snapshot() / "data/dev.jsonl"});
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
    EXPECT_EQ(FindDataFiles(name).files, std::vector<fs::path>{name});
  }
}

// A folder with files of some bytes.
class FolderDataTest : public testing::Test {
 protected:
  void Put(const fs::path& name, const std::string& text = "x") const {
    fs::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << text;
  }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  Names NamesOf(const std::vector<fs::path>& files) const {
    Names names;
    for (const fs::path& file : files) {
      names.push_back(file.lexically_relative(folder_.path()).string());
    }
    return names;
  }
  DataFiles Find(const std::string& name = "", DataPurpose purpose = DataPurpose::kTraining) const {
    return FindDataFiles(name.empty() ? folder_.path() : folder_ / name, {.purpose = purpose});
  }
  // "name: reason" of the files that are left out.
  static Names LeftOutOf(const DataFiles& found) {
    Names names;
    for (const LeftOut& file : found.left_out) {
      names.push_back(file.name + ": " + std::string(file.reason));
    }
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(FolderDataTest, FilesAreDividedByTheirNames) {
  for (const char* name : {"train.jsonl", "more-latest.jsonl.gz", "valid.jsonl", "test-1.jsonl",
                           "LICENSE.txt", "README.md", ".hidden.jsonl", "dataset_infos.json"}) {
    Put(name);
  }
  Put("empty.csv", "");
  const DataFiles found = Find();
  EXPECT_EQ(NamesOf(found.files), (Names{"more-latest.jsonl.gz", "train.jsonl"}));
  EXPECT_EQ(NamesOf(found.evaluation), Names{"valid.jsonl"});
  EXPECT_EQ(LeftOutOf(found),
            (Names{"LICENSE.txt: not data", "README.md: not data", "dataset_infos.json: not data",
                   "empty.csv: empty", "test-1.jsonl: test data"}));
  EXPECT_EQ(found.named, Names{});

  const DataFiles for_evaluation = Find("", DataPurpose::kEvaluation);
  EXPECT_EQ(NamesOf(for_evaluation.files), Names{"valid.jsonl"});
  fs::remove(folder_ / "valid.jsonl");
  EXPECT_EQ(NamesOf(Find("", DataPurpose::kEvaluation).files), Names{"test-1.jsonl"});
  fs::remove(folder_ / "test-1.jsonl");
  EXPECT_EQ(NamesOf(Find("", DataPurpose::kEvaluation).files),
            (Names{"more-latest.jsonl.gz", "train.jsonl"}));
}

TEST_F(FolderDataTest, TheKindOfMostFilesIsRead) {
  Put("a.jsonl");
  Put("remarks.txt");
  EXPECT_EQ(LeftOutOf(Find()), Names{"remarks.txt: plain text beside records"});
  Put("b.txt");
  EXPECT_EQ(NamesOf(Find().files), (Names{"b.txt", "remarks.txt"}));
  EXPECT_EQ(LeftOutOf(Find()), Names{"a.jsonl: records beside plain texts"});
  EXPECT_EQ(FindDataFiles(folder_.path(), {.all_as_text = true}).files.size(), 3U);
}

TEST_F(FolderDataTest, AFolderOfHeldOutFilesAloneIsRefused) {
  Put("test.jsonl");
  Put("README.md");
  ExpectRefused([&] { Find(); }, "holds no training data");
  EXPECT_EQ(NamesOf(Find("", DataPurpose::kEvaluation).files), Names{"test.jsonl"});
  EXPECT_EQ(NamesOf(Find("test.jsonl").files), Names{"test.jsonl"});
}

TEST_F(FolderDataTest, FoldersWithinAFolderAreSearchedWhenItHasNoData) {
  Put("README.md");
  Put("data/train/0.jsonl");
  Put("data/validation/0.jsonl");
  EXPECT_EQ(NamesOf(Find().files), Names{"data/train/0.jsonl"});
  EXPECT_EQ(NamesOf(Find().evaluation), Names{"data/validation/0.jsonl"});
  Put("fr/0.jsonl");
  ExpectRefused([&] { Find(); }, "several kinds of training files");
}

TEST_F(FolderDataTest, PatternsAreDividedToo) {
  Put("a/train.jsonl");
  Put("a/dev.jsonl");
  Put("a/test.jsonl");
  Put("a/notes.txt");
  Put("a/inner/x.jsonl");
  const DataFiles all = Find("a/*");
  EXPECT_EQ(NamesOf(all.files), Names{"a/train.jsonl"});
  EXPECT_EQ(NamesOf(all.evaluation), Names{"a/dev.jsonl"});
  EXPECT_EQ(LeftOutOf(all),
            (Names{"notes.txt: plain text beside records", "test.jsonl: test data"}));
  EXPECT_EQ(NamesOf(Find("a/*", DataPurpose::kEvaluation).files), Names{"a/dev.jsonl"});
}

TEST_F(FolderDataTest, PatternsThatNameHeldOutFilesAreTakenAsTheyAre) {
  Put("a/train.jsonl");
  Put("a/test-1.jsonl");
  Put("a/test-2.jsonl");
  const DataFiles named = Find("a/test*.jsonl");
  EXPECT_EQ(NamesOf(named.files), (Names{"a/test-1.jsonl", "a/test-2.jsonl"}));
  EXPECT_EQ(named.named, (Names{"test-1.jsonl", "test-2.jsonl"}));
  EXPECT_EQ(Find("a/?es*.jsonl").named.size(), 2U) << "nothing else matches";
  EXPECT_EQ(Find("a/*train*").named, Names{});
  Put("test/0.jsonl");
  EXPECT_EQ(Find("test").named, Names{"test"});
  EXPECT_EQ(Find("test/*.jsonl").named, Names{"test"});
  Put("dev/0.jsonl");
  EXPECT_EQ(Find("dev/*.jsonl").named, Names{}) << "as often a folder for development";
}

TEST_F(FolderDataTest, StandardInputIsNoFile) {
  ExpectRefused([] { FindDataFiles("-"); }, "standard input is not read");
}

TEST_F(FolderDataTest, ListsOfNamesAreShort) {
  EXPECT_EQ(ListOfNames({"a", "b", "c", "d"}), "a, b, c, d");
  EXPECT_EQ(ListOfNames({"a", "b", "c", "d", "e"}), "a, b, c and 2 more");
}

// Links to the folder itself, to one above it, and to one beside it.
TEST_F(FolderDataTest, LinksToFoldersAreNotFollowed) {
  Put("all/deep/a.jsonl");
  Put("all/deep/b.jsonl");
  Put("secret.jsonl");
  Put("beside/c.jsonl");
  for (int i = 0; i < 30; ++i) {
    fs::create_symlink(i % 2 == 0 ? "." : "..", folder_ / ("all/link" + std::to_string(i)));
  }
  fs::create_symlink("../beside", folder_ / "all/beside");
  const DataFiles found = Find("all");
  EXPECT_EQ(NamesOf(found.files), (Names{"all/deep/a.jsonl", "all/deep/b.jsonl"}));
  EXPECT_EQ(found.left_out.size(), 31U);
  EXPECT_EQ(LeftOutOf(found).front(), "beside: a link to a folder");
  // The folder itself may be named by a link, and files may be links.
  fs::create_symlink("all", folder_ / "named");
  fs::create_symlink("../../secret.jsonl", folder_ / "all/deep/c.jsonl");
  EXPECT_EQ(Find("named").files.size(), 3U);
}

TEST_F(FolderDataTest, FoldersThatAreNotReadAreSaid) {
  Put("flat/a.jsonl");
  Put("flat/more/b.jsonl");
  EXPECT_EQ(LeftOutOf(Find("flat")), Names{"more: a folder"});
  Put("deep/1/2/3/4/5/a.jsonl");
  ExpectRefused([&] { Find("deep"); }, "not read: 1/2/3/4/5 (a folder)");
}

TEST_F(FolderDataTest, WhatIsNoFileIsSaid) {
  ASSERT_EQ(mkfifo((folder_ / "pipe.jsonl").c_str(), 0600), 0);
  ExpectRefused([&] { Find(); }, "holds no data file");
  ExpectRefused([&] { Find(); }, "not read: pipe.jsonl (not a regular file)");
  Put("a.jsonl");
  EXPECT_EQ(LeftOutOf(Find()), Names{"pipe.jsonl: not a regular file"});
}

}  // namespace
}  // namespace qlora
