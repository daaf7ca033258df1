// Files of data by position: their names for what is in them, lines, and many at a time.
#include "records/file_bytes.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "base/random.h"
#include "io/test_util.h"
#include "records/derived_text.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

void Put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string RandomLines(std::uint64_t seed, std::size_t size) {
  const RandomKey random = MakeKey(seed, RandomPlace::kTest);
  std::string text;
  for (std::uint64_t i = 0; text.size() < size; ++i) {
    text.append(RandomBelow(random, i, i % 7 == 0 ? 5000 : 3), 'x') += '\n';
  }
  return text;
}

// In any order of places, the numbers are those of a walk through the text.
TEST(FileBytesTest, CountsLinesAndColumns) {
  const TemporaryFolder folder;
  const std::string text = RandomLines(1, 300'000);
  Put(folder / "d.jsonl", text);
  const FileBytes of_file(folder / "d.jsonl");
  const FileBytes of_memory = FileBytes::FromMemory("d.jsonl", text);
  const RandomKey random = MakeKey(2, RandomPlace::kTest);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::uint64_t at = i == 0 ? text.size() : RandomBelow(random, i, text.size());
    const std::string before = text.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const auto column = static_cast<std::int64_t>(at - (before.rfind('\n') + 1)) + 1;
    for (const FileBytes* file : {&of_file, &of_memory}) {
      ASSERT_EQ(file->LineAt(at), line) << at;
      ASSERT_EQ(file->ColumnAt(at), column) << at;
    }
  }
}

// The bytes that this process has read by system calls so far.
std::int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  std::int64_t bytes = -1;
  io >> name >> bytes;
  return bytes;
}

// The places of all lines of a file take one walk and a part of 16 KiB for each.
TEST(FileBytesTest, ManyPlacesTakeOneWalk) {
  if (BytesRead() < 0) GTEST_SKIP() << "this system does not count what is read";
  const TemporaryFolder folder;
  const std::string text = RandomLines(3, 4 << 20);
  Put(folder / "d.jsonl", text);
  const FileBytes file(folder / "d.jsonl");
  const std::int64_t before = BytesRead();
  constexpr std::int64_t kPlaces = 100;
  for (std::int64_t i = 0; i < kPlaces; ++i) {
    file.LineAt(text.size() - 1 - static_cast<std::uint64_t>(i) * 1000);
  }
  EXPECT_LE(BytesRead() - before, std::ssize(text) + kPlaces * 16384 + 4096);
}

// Another file of the same size and time in the same place, as archives with fixed times make it.
TEST(FileBytesTest, KeysTellAnotherFileOfTheSameTime) {
  const TemporaryFolder folder;
  const fs::path path = folder / "d.jsonl";
  const auto time = fs::file_time_type::clock::now() - std::chrono::hours(100);
  std::vector<std::string> keys;
  struct stat status = {};
  const auto changed = [&] {
    struct stat now = {};
    EXPECT_EQ(stat(path.c_str(), &now), 0);
    const bool is_other = now.st_ctim.tv_nsec != status.st_ctim.tv_nsec;
    status = now;
    return is_other;
  };
  for (const char* text : {"{}\n", "[]\n", "{}\n"}) {
    do {  // the clock of the system may stand still for some milliseconds
      if (text[0] == '[') fs::remove(path);
      Put(path, text);
      fs::last_write_time(path, time);
    } while (!changed());
    keys.push_back(FileBytes(path).key());
  }
  EXPECT_NE(keys[0], keys[1]);
  EXPECT_NE(keys[1], keys[2]);
  EXPECT_EQ(FileBytes(path).key(), keys[2]);
}

// A text stands for the bytes that it was made of, wherever they lie and whatever their time is.
TEST(DerivedTextTest, IsThatOfTheBytes) {
  const TemporaryFolder folder;
  const fs::path index = folder / "index";
  const auto time = fs::file_time_type::clock::now() - std::chrono::hours(100);
  int made = 0;
  const auto text_of = [&](const fs::path& path, const std::string& bytes) {
    fs::create_directories(path.parent_path());
    Put(path, bytes);
    fs::last_write_time(path, time);
    const FileBytes file(path);
    const FileBytes text = MakeText(file, "doubled", index, [&](const TextSink& sink) {
      ++made;
      sink(file.Read(0, file.size()));
      sink(file.Read(0, file.size()));
    });
    EXPECT_EQ(text.name(), path.string());
    return std::pair(text.Read(0, text.size()), text.key());
  };
  const auto first = text_of(folder / "d.gz", "abc");
  const auto other = text_of(folder / "d.gz", "xyz");
  EXPECT_EQ(first.first, "abcabc");
  EXPECT_EQ(other.first, "xyzxyz");
  EXPECT_NE(first.second, other.second);
  EXPECT_EQ(made, 2);
  // A data set that was moved is known again.
  EXPECT_EQ(text_of(folder / "moved" / "d.gz", "abc"), first);
  EXPECT_EQ(made, 2);
}

TEST(DerivedTextTest, HashesSeeEveryByte) {
  const std::string text = RandomLines(4, 3 << 20);
  const std::uint64_t hash = FileBytes::FromMemory("d", text).HashOfContent();
  const RandomKey random = MakeKey(5, RandomPlace::kTest);
  for (std::uint64_t i = 0; i < 20; ++i) {
    std::string changed = text;
    const std::uint64_t at = RandomBelow(random, i, text.size());
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_NE(FileBytes::FromMemory("d", changed).HashOfContent(), hash) << at;
  }
}

// As many files as a process may not keep open.
TEST(FileBytesTest, ThereMayBeMoreThanMayBeOpen) {
  const TemporaryFolder folder;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {64, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<FileBytes> files;
  for (int i = 0; i < 200; ++i) {
    const fs::path path = folder / std::to_string(i);
    Put(path, "text " + std::to_string(i));
    files.emplace_back(path);
  }
  for (int i = 0; i < 200; ++i) EXPECT_EQ(files[i].Read(5, 10), std::to_string(i));
  Put(folder / "150", "text 15");
  ExpectRefused([&] { files[150].Read(0, 1); }, "was changed while it was in use");
  fs::remove(folder / "151");
  ExpectRefused([&] { files[151].Read(0, 1); }, "cannot open the data file again");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace qlora
