#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "io/test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  std::size_t FilesInFolder() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

TEST_F(FileTest, WritesNothingBeforeCommitAndEverythingAfter) {
  const fs::path path = folder_ / "a.txt";
  AtomicFile file(path);
  file.Write("one ");
  file.Write("two");
  EXPECT_EQ(file.size(), 7u);
  EXPECT_FALSE(fs::exists(path));
  file.Commit();
  EXPECT_EQ(ReadTextFile(path), "one two");
  EXPECT_EQ(FilesInFolder(), 1u);
}

TEST_F(FileTest, DestructorRemovesTheTemporaryAndKeepsTheOldFile) {
  const fs::path path = folder_ / "a.txt";
  WriteTextFile(path, "old");
  {
    AtomicFile file(path);
    file.Write("new");
  }
  EXPECT_EQ(ReadTextFile(path), "old");
  EXPECT_EQ(FilesInFolder(), 1u);
}

TEST_F(FileTest, ANewFileReplacesNothingThatAppearsMeanwhile) {
  const fs::path path = folder_ / "a.txt";
  {
    AtomicFile file(path, OpenMode::kCreate);
    file.Write("ours");
    WriteTextFile(path, "theirs", OpenMode::kCreate);
    EXPECT_EQ(ErrorOf([&] { file.Commit(); }).code(), ErrorCode::kInvalidInput);
  }
  EXPECT_EQ(ReadTextFile(path), "theirs");
  EXPECT_EQ(FilesInFolder(), 1u);
  WriteTextFile(path, "ours");
  EXPECT_EQ(ReadTextFile(path), "ours");
}

TEST_F(FileTest, ANewFileIsRefusedAtOnceWhereTheNameIsTaken) {
  const fs::path path = folder_ / "a.txt";
  const auto refusal = [&] { return ErrorOf([&] { AtomicFile file(path, OpenMode::kCreate); }); };
  WriteTextFile(path, "theirs");
  EXPECT_EQ(refusal().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(refusal().what(), HasSubstr("a.txt: exists and is not replaced"));
  fs::remove(path);
  fs::create_symlink(folder_ / "absent", path);
  EXPECT_EQ(refusal().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(refusal().what(), HasSubstr("a.txt: is a symbolic link and is not replaced"));
  WriteTextFile(path, "ours");
  EXPECT_FALSE(fs::is_symlink(path));
}

TEST_F(FileTest, SmallAndLargePiecesAndPlacesComeOutInOrder) {
  std::string expected;
  const fs::path path = folder_ / "a.bin";
  AtomicFile file(path);
  for (const std::size_t size : {1u, 1000u, 0u, (1u << 20) - 1, 1u << 20, 3u, (3u << 20) + 7, 5u}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    file.Write(piece);
    expected += piece;
    ASSERT_EQ(file.size(), expected.size());
  }
  file.WriteAt(2, std::as_bytes(std::span("XYZ", 3)));
  expected.replace(2, 3, "XYZ");
  file.Write("end");
  expected += "end";
  file.WriteAt(expected.size() + 4, std::as_bytes(std::span("gap", 3)));
  expected += std::string(4, '\0') + "gap";
  file.Commit();
  EXPECT_TRUE(ReadTextFile(path) == expected);
}

TEST_F(FileTest, ReservationDoesNotShowInTheResult) {
  const fs::path path = folder_ / "a.bin";
  AtomicFile file(path);
  file.Reserve(1 << 20);
  file.Write("abc");
  file.Commit();
  EXPECT_EQ(fs::file_size(path), 3u);
}

TEST_F(FileTest, ReservingMoreThanTheDiskHoldsFailsAtOnce) {
  AtomicFile file(folder_ / "a.bin");
  try {
    file.Reserve(std::uint64_t{1} << 52);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRuntime);
    EXPECT_THAT(error.what(), HasSubstr("bytes are free"));
    return;
  }
  GTEST_SKIP() << "this file system cannot reserve space";
}

TEST_F(FileTest, FullDiskIsARuntimeErrorWithPathAndSizes) {
  const int fd = open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  const std::string text(1234, 'x');
  const Error error = ErrorOf([&] {
    internal::WriteAll(fd, folder_ / "model.safetensors", -1, std::as_bytes(std::span(text)));
  });
  close(fd);
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  EXPECT_THAT(error.what(), HasSubstr("model.safetensors"));
  EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
  EXPECT_THAT(error.what(), HasSubstr("1234 more bytes are needed"));
  EXPECT_THAT(error.what(), HasSubstr("bytes are free"));
}

TEST_F(FileTest, ShortWriteFailsAndLeavesNothing) {
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {5000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  // The kernel takes the first 5000 bytes and refuses the rest.
  const Error error = ErrorOf([&] { WriteTextFile(folder_ / "a.txt", std::string(9000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  EXPECT_THAT(error.what(), HasSubstr("a.txt"));
  EXPECT_THAT(error.what(), HasSubstr("4000 more bytes are needed"));
  EXPECT_EQ(FilesInFolder(), 0u);
}

TEST_F(FileTest, NoFileLeftToOpenIsNotBadInput) {
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit none = old;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Error error = ErrorOf([&] { AtomicFile file(folder_ / "a.txt"); });
  setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  EXPECT_THAT(error.what(), HasSubstr("Too many open files"));
}

TEST_F(FileTest, ANameMayBeAsLongAsTheSystemAllows) {
  const fs::path path = folder_ / std::string(255, 'n');
  WriteTextFile(path, "old");
  WriteTextFile(path, "new");
  EXPECT_EQ(ReadTextFile(path), "new");
  WriteTextFile(folder_ / std::string(254, 'n'), "created", OpenMode::kCreate);
}

TEST_F(FileTest, MissingFolderIsAnError) {
  const Error error = ErrorOf([&] { AtomicFile file(folder_ / "no" / "a.txt"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(error.what(), HasSubstr("No such file or directory"));
}

// Names that another user of a shared folder may have taken in advance.
TEST_F(FileTest, FollowsNoLinksAndReplacesNoDevices) {
  const fs::path path = folder_ / "a.txt";
  const fs::path precious = folder_ / "precious";
  WriteTextFile(precious, "mine");
  for (const OpenMode mode : {OpenMode::kCreate, OpenMode::kAppend}) {
    fs::create_symlink(precious, path);
    EXPECT_EQ(ErrorOf([&] { OpenForWriting(path, mode); }).code(), ErrorCode::kInvalidInput);
    fs::remove(path);
  }
  fs::create_symlink(precious, path);
  close(OpenForWriting(path, OpenMode::kReplace));
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(ReadTextFile(precious), "mine");
  EXPECT_THAT(ErrorOf([] { WriteTextFile("/dev/null", "x"); }).what(),
              HasSubstr("is not a regular file"));
}

// In a container, each process may have the number of one that was killed.
TEST_F(FileTest, WhatAKilledProcessHasLeftIsInNobodysWay) {
  const fs::path path = folder_ / "a.txt";
  const fs::path precious = folder_ / "precious";
  WriteTextFile(precious, "mine");
  fs::create_symlink(precious, path.string() + ".tmp-" + std::to_string(getpid()));
  WriteTextFile(path, "whole");
  EXPECT_EQ(ReadTextFile(path), "whole");
  EXPECT_EQ(ReadTextFile(precious), "mine");
  EXPECT_EQ(FilesInFolder(), 3u);
}

TEST_F(FileTest, AddsAWholeTextOrNothing) {
  const fs::path path = folder_ / "a.jsonl";
  EXPECT_TRUE(AppendWhole(path, "one\n"));
  EXPECT_FALSE(AppendWhole(path, "two\n", 7));
  EXPECT_TRUE(AppendWhole(path, "two\n", 8));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 10;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Error error = ErrorOf([&] { AppendWhole(path, "three\n"); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  EXPECT_EQ(ReadTextFile(path), "one\ntwo\n");
}

TEST_F(FileTest, NeverUsesTheStandardDescriptors) {
  const int kept = dup(STDIN_FILENO);
  close(STDIN_FILENO);
  const int fd = OpenForWriting(folder_ / "a.txt", OpenMode::kCreate);
  AtomicFile file(folder_ / "b.txt");
  EXPECT_GT(fd, STDERR_FILENO);
  EXPECT_EQ(fcntl(STDIN_FILENO, F_GETFD), -1);
  close(fd);
  dup2(kept, STDIN_FILENO);
  close(kept);
}

TEST_F(FileTest, ReadsPipesThatAProgramWritesTo) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf([&] { ReadTextFile(pipe); }).what(),
              HasSubstr("is a pipe that no program writes to"));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "text", 4), 4);
  close(ends[1]);
  EXPECT_EQ(ReadTextFile("/proc/self/fd/" + std::to_string(ends[0])), "text");
  close(ends[0]);
}

TEST_F(FileTest, MapsWholeFiles) {
  const fs::path path = folder_ / "a.bin";
  const std::string text(20000, 'q');
  WriteTextFile(path, text);
  MappedFile file(path);
  EXPECT_EQ(AsString(file.bytes()), text);
  EXPECT_EQ(file.path(), path);
  MappedFile moved(std::move(file));
  EXPECT_EQ(moved.bytes().size(), text.size());
  moved.Release(1, 9000);
  moved.Release(0, 20000);
  moved.Release(20000, 0);
  EXPECT_EQ(AsString(moved.bytes()), text);
  MappedFile assigned;
  EXPECT_TRUE(assigned.bytes().empty());
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes().size(), text.size());
}

// Kilobytes of mapped file pages that count as this process's memory.
long MappedKilobytes() {
  const std::string status = ReadTextFile("/proc/self/status");
  const std::size_t at = status.find("RssFile:");
  return at == std::string::npos ? -1 : std::stol(status.substr(at + 8));
}

TEST_F(FileTest, ReleasedPagesDoNotCountAsMemory) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  WriteTextFile(folder_ / "a.bin", "x");
  fs::resize_file(folder_ / "a.bin", kBytes);
  if (MappedKilobytes() < 0) GTEST_SKIP() << "/proc/self/status has no RssFile";
  const MappedFile file(folder_ / "a.bin");
  const long before = MappedKilobytes();
  int sum = 0;
  for (const std::byte byte : file.bytes()) sum += static_cast<int>(byte);
  EXPECT_EQ(sum, 'x');
  EXPECT_GE(MappedKilobytes() - before, 31 << 10);
  file.Release(100, kBytes - 200);
  EXPECT_LE(MappedKilobytes() - before, 1 << 10);
}

TEST_F(FileTest, MapsEmptyFiles) {
  WriteTextFile(folder_ / "a.bin", "");
  const MappedFile file(folder_ / "a.bin");
  EXPECT_EQ(file.bytes().size(), 0u);
  file.Release(0, 0);
}

TEST_F(FileTest, ReadingWhatIsNotAFileIsInvalidInput) {
  for (const auto& [entry, reason] :
       {std::pair(folder_ / "missing", "No such file"), std::pair(folder_, "is a directory")}) {
    const fs::path& path = entry;
    const Error mapped = ErrorOf([&] { MappedFile file(path); });
    EXPECT_EQ(mapped.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(mapped.what(), HasSubstr(reason));
    EXPECT_THAT(mapped.what(), HasSubstr(path.string()));
    const Error read = ErrorOf([&] { ReadTextFile(path); });
    EXPECT_EQ(read.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(read.what(), HasSubstr(reason));
  }
  EXPECT_EQ(ErrorOf([] { MappedFile file("/dev/null"); }).code(), ErrorCode::kInvalidInput);
}

// Neither a device nor a long file is read until memory ends.
TEST_F(FileTest, ReadsNoTextWithoutEnd) {
  const fs::path sparse = folder_ / "sparse";
  WriteTextFile(sparse, "x");
  fs::resize_file(sparse, std::uintmax_t{1} << 40);
  for (const auto& [path, reason] : {std::pair(fs::path("/dev/zero"), "is a device"),
                                     std::pair(sparse, "has more than 268435456 bytes")}) {
    const Error error = ErrorOf([&, &path = path] { ReadTextFile(path); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(error.what(), HasSubstr(reason));
  }
  // The size of such files is not known before they are read.
  EXPECT_THAT(ErrorOf([] { ReadTextFile("/proc/self/status", 10); }).what(),
              HasSubstr("has more than 10 bytes"));
  EXPECT_THAT(ErrorOf([] { OpenRegularFile("/dev/zero"); }).what(), HasSubstr("regular file"));
}

TEST_F(FileTest, UpdatesAFileInPlaceAndFollowsNoLink) {
  const fs::path path = folder_ / "a";
  WriteTextFile(path, "old");
  close(OpenForWriting(path, OpenMode::kUpdate));
  EXPECT_EQ(ReadTextFile(path), "old");
  fs::create_symlink(path, folder_ / "link");
  fs::create_symlink(folder_ / "nothing", folder_ / "dangling");
  for (const char* link : {"link", "dangling"}) {
    EXPECT_THAT(ErrorOf([&] { OpenForWriting(folder_ / link, OpenMode::kUpdate); }).what(),
                HasSubstr("is a symbolic link"));
  }
  EXPECT_FALSE(fs::exists(folder_ / "nothing"));
}

TEST_F(FileTest, ReadsFilesOfUnknownSize) {
  EXPECT_EQ(ReadTextFile("/dev/null"), "");
  EXPECT_THAT(ReadTextFile("/proc/self/status"), HasSubstr("VmRSS"));  // st_size says 0
}

}  // namespace
}  // namespace qlora
