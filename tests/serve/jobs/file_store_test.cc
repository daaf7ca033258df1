#include "serve/jobs/file_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "base/file.h"
#include "serve/api_error.h"
#include "serve/jobs/record_files.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

int StatusOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const ApiError& error) {
    return error.status;
  }
  return 200;
}

class FileStoreTest : public testing::Test {
 protected:
  StoredFile Add(FileStore& store, const std::string& text, const std::string& name = "a.jsonl") {
    const fs::path upload = store.NewUpload();
    WriteTextFile(upload, text);
    return store.Add(upload, name, kTrainingPurpose);
  }

  FileStore Open(const fs::path& folder) {
    return FileStore(folder, [this](const std::string& line) { log_ += line + "\n"; });
  }

  TemporaryFolder folder_;
  std::string log_;
};

TEST_F(FileStoreTest, KeepsFilesOverARestart) {
  StoredFile file;
  {
    FileStore store = Open(folder_ / "files");
    file = Add(store, "bytes\n", "möre.jsonl");
    Add(store, "second\n");
  }
  const FileStore store = Open(folder_ / "files");
  const StoredFile again = store.Get(file.id);
  EXPECT_EQ(again.filename, "möre.jsonl");
  EXPECT_EQ(again.bytes, 6);
  EXPECT_EQ(again.created_at, file.created_at);
  EXPECT_EQ(ReadTextFile(store.PathOf(again)), "bytes\n");
  ASSERT_EQ(store.All().size(), 2);
  EXPECT_EQ(store.All().back().id, file.id);  // newest first
  EXPECT_EQ(log_, "");
}

TEST_F(FileStoreTest, ARemovedFileIsGone) {
  FileStore store = Open(folder_.path());
  const StoredFile file = Add(store, "x");
  store.Remove(file.id);
  EXPECT_EQ(StatusOf([&] { store.Get(file.id); }), 404);
  EXPECT_EQ(StatusOf([&] { store.Remove(file.id); }), 404);
  EXPECT_FALSE(Exists(store.PathOf(file)));
  EXPECT_TRUE(Open(folder_.path()).All().empty());
}

TEST_F(FileStoreTest, NoIdLeadsToAnotherFile) {
  WriteTextFile(folder_.path() / "secret.jsonl", "secret");
  FileStore store = Open(folder_ / "files");
  for (const std::string& id :
       {std::string("../secret"), std::string("/etc/passwd"), std::string("file-../../secret"),
        std::string(""), std::string("."), std::string(5000, 'x')}) {
    EXPECT_EQ(StatusOf([&] { store.Get(id); }), 404) << id;
    EXPECT_EQ(StatusOf([&] { store.Remove(id); }), 404) << id;
  }
  EXPECT_TRUE(Exists(folder_.path() / "secret.jsonl"));
}

TEST_F(FileStoreTest, NamesLoseTheirFolders) {
  EXPECT_EQ(PlainFilename("../../evil.jsonl"), "evil.jsonl");
  EXPECT_EQ(PlainFilename("C:\\data\\evil.jsonl"), "evil.jsonl");
  EXPECT_EQ(PlainFilename("a\nb\x7F.jsonl"), "ab.jsonl");
  EXPECT_EQ(PlainFilename("a/"), "file");
  EXPECT_EQ(StatusOf([] { PlainFilename("\xFF.jsonl"); }), 400);
  EXPECT_EQ(StatusOf([] { PlainFilename(std::string(300, 'x')); }), 400);
}

TEST_F(FileStoreTest, LeavesOutWhatIsDamagedAndRemovesWhatWasCutOff) {
  std::string changed, odd, empty, good;
  fs::path upload, nobodys;
  {
    FileStore store = Open(folder_.path());
    changed = Add(store, "as it was").id;
    odd = Add(store, "x").id;
    empty = Add(store, "x").id;
    good = Add(store, "y").id;
    upload = store.NewUpload();
    WriteTextFile(upload, "half of");
    nobodys = store.PathOf({.id = NewId("file-")});
    WriteTextFile(nobodys, "without a record");
    std::ofstream(store.PathOf({.id = changed}), std::ios::app) << "more";
  }
  WriteTextFile(folder_ / (odd + ".json"), "{\"number\": -1");
  WriteTextFile(folder_ / (empty + ".json"), "{}");
  WriteTextFile(folder_ / "notes.json", "{}");
  const FileStore store = Open(folder_.path());
  ASSERT_EQ(store.All().size(), 1);
  EXPECT_EQ(store.All().front().id, good);
  for (const std::string& id : {changed, odd, empty}) {
    EXPECT_THAT(log_, testing::HasSubstr((folder_ / (id + ".json: ")).string()));
    EXPECT_THAT(log_, testing::HasSubstr(id + " is left out: mend the file, or remove it"));
  }
  EXPECT_EQ(std::ranges::count(log_, '\n'), 3) << log_;
  EXPECT_FALSE(Exists(upload));
  EXPECT_FALSE(Exists(nobodys));
  EXPECT_TRUE(Exists(store.PathOf({.id = odd})));
}

TEST_F(FileStoreTest, BytesThatSomebodyHasRemovedAreNotThere) {
  FileStore store = Open(folder_ / "files");
  const StoredFile file = Add(store, "x");
  EXPECT_EQ(store.BytesOf(file.id), store.PathOf(file));
  fs::remove_all(folder_ / "files");
  try {
    store.BytesOf(file.id, "training_file");
    ADD_FAILURE() << "there";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 404);
    EXPECT_EQ(error.code, "file_gone");
    EXPECT_EQ(error.param, "training_file");
  }
}

TEST(NewIdTest, IdsAreLettersAndDigits) {
  const std::string id = NewId("file-");
  EXPECT_TRUE(IsId(id, "file-"));
  EXPECT_NE(id, NewId("file-"));
  for (const std::string& other : {std::string("file-"), "ftjob-" + id.substr(5), id + "x",
                                   id.substr(0, 10) + "/" + id.substr(11)}) {
    EXPECT_FALSE(IsId(other, "file-")) << other;
  }
}

}  // namespace
}  // namespace qlora
