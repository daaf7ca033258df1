#include <malloc.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/data_test_util.h"
#include "records/index_array.h"
#include "test_build.h"

namespace qlora {
namespace {

class SampleIndexTest : public testing::Test {
 protected:
  SampleIndexTest() {
    std::string lines;
    for (int i = 0; i < 300; ++i) {
      lines += "{\"text\": \"" + std::string(i % 20, 'x') + "y\"}\n";
    }
    options_ = data_.With("d.jsonl", lines);
    options_.sources.push_back(data_.Write("e.csv", "text\nz\nxy\n"));
    options_.sources.push_back(data_.Write("f.txt", "some text"));
    options_.max_length = 18;
    options_.index_folder = index_ / "sub";
  }

  Dataset Open(const DataOptions& options) { return Dataset::Open(options, tokenizer_, nullptr); }

  // Path and time of the last change of every index file.
  std::map<std::string, std::filesystem::file_time_type> Files() {
    std::map<std::string, std::filesystem::file_time_type> files;
    for (const auto& file : std::filesystem::directory_iterator(options_.index_folder)) {
      files[file.path().string()] = file.last_write_time();
    }
    return files;
  }

  static std::string ReadBytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static void ExpectEqual(const Dataset& a, const Dataset& b) {
    EXPECT_EQ(ReportToJson(a.report()), ReportToJson(b.report()));
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(a.fingerprint(), b.fingerprint());
    for (std::int64_t i = 0; i < a.size(); ++i) EXPECT_EQ(a.Get(i).ids, b.Get(i).ids);
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  DataFolder data_;
  TemporaryFolder index_;
  DataOptions options_;
};

// Labels and prompts of decisions have other tokens where the tokenizer puts a space before them.
TEST_F(SampleIndexTest, WhoPutsASpaceBeforePromptsIsInTheName) {
  const std::filesystem::path golden = SourceDir() / "tests" / "golden" / "decision";
  const Tokenizer tokenizer = Tokenizer::Load(golden / "tiny-qwen3");
  options_ = data_.With("q.jsonl", ReadBytes((golden / "qwen3" / "eval.jsonl").string()));
  options_.index_folder = index_ / "decisions";
  Dataset::Open(options_, tokenizer, nullptr);
  const std::size_t files = Files().size();
  options_.decision.space = PromptSpace::kOfTokenizer;
  Dataset::Open(options_, tokenizer, nullptr);
  EXPECT_EQ(Files().size(), files + 1);
  Dataset::Open(options_, tokenizer, nullptr);
  EXPECT_EQ(Files().size(), files + 1);  // used again
}

TEST_F(SampleIndexTest, OnDiskEqualsInMemoryAndIsUsedAgain) {
  DataOptions in_memory = options_;
  in_memory.index_folder.clear();
  const Dataset expected = Open(in_memory);
  EXPECT_GT(expected.report().dropped_long, 0);
  ExpectEqual(Open(options_), expected);
  const auto files = Files();
  EXPECT_EQ(files.size(), 4U) << "records and samples of two files; raw texts have none";
  ExpectEqual(Open(options_), expected);
  EXPECT_EQ(Files(), files);

  DataOptions other = options_;
  other.append_eos = false;
  EXPECT_NE(Open(other).fingerprint(), expected.fingerprint());
  EXPECT_EQ(Files().size(), 6U) << "the records are the same, the samples are not";
}

TEST_F(SampleIndexTest, DamagedIndexIsMadeAgain) {
  DataOptions in_memory = options_;
  in_memory.index_folder.clear();
  const Dataset expected = Open(in_memory);
  Open(options_);
  for (const auto& [path, time] : Files()) {
    const std::uintmax_t whole = std::filesystem::file_size(path);
    for (const std::uintmax_t size : {std::uintmax_t{0}, std::uintmax_t{8}, std::uintmax_t{24},
                                      std::uintmax_t{25}, whole / 2}) {
      std::filesystem::resize_file(path, size);
      ExpectEqual(Open(options_), expected);
    }
  }
}

// Values that no index can have, in every eight bytes of every file: made again or, where the
// damage is possible, refused when the sample is read.
TEST_F(SampleIndexTest, DamagedValuesDoNoHarm) {
  Open(options_);
  for (const auto& [path, time] : Files()) {
    const std::string whole = ReadBytes(path);
    for (std::size_t at = 24; at + 8 <= whole.size(); at += 8 * 37) {
      std::string damaged = whole;
      damaged.replace(at, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
      std::ofstream(path, std::ios::binary) << damaged;
      try {
        const Dataset data = Open(options_);
        for (std::int64_t i = 0; i < data.size(); ++i) data.Get(i);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidInput) << error.what();
      }
      std::ofstream(path, std::ios::binary) << whole;
    }
  }
}

TEST_F(SampleIndexTest, SampleOfAnotherIndexIsRefused) {
  // Of the first sample: its hash, its length (18, as max_length), and its trained tokens.
  for (const auto& [at, bytes] : {std::pair(24, "12345678"), {48, "\x12"}, {52, "\x01"}}) {
    std::filesystem::remove_all(options_.index_folder);
    Open(options_);
    for (const auto& [path, time] : Files()) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      if (std::filesystem::file_size(path) < 5000 || path.find("d.jsonl") == std::string::npos)
        continue;
      file.seekp(at);
      file << bytes;
    }
    const Dataset data = Open(options_);
    ExpectRefused([&] { data.Get(0); }, "d.jsonl:1: the sample is not the one that was checked");
    EXPECT_EQ(data.Get(1).ids.front(), kBos);
  }
}

TEST_F(SampleIndexTest, ChangedFileHasItsOwnIndex) {
  Open(options_);
  data_.Write("e.csv", "text\nother\n");
  const Dataset data = Open(options_);
  EXPECT_EQ(data.report().files[1].samples, 1);
}

TEST_F(SampleIndexTest, RefusedDataLeavesNoIndexOfSamples) {
  data_.Write("e.csv", "text\nz\n\"\"\n");
  ExpectRefused([&] { Open(options_); }, "e.csv:3: field 'text' is empty");
  EXPECT_EQ(Files().size(), 3U);
  ExpectRefused([&] { Open(options_); }, "e.csv:3: field 'text' is empty");
}

// Bytes of the heap in use, where the C library counts them; 0 under sanitizers.
std::size_t HeapBytes() { return mallinfo2().uordblks; }

// What a file takes does not grow with the number of others.
TEST_F(SampleIndexTest, MemoryGrowsWithTheNumberOfFiles) {
  DataOptions options;
  for (int i = 0; i < 400; ++i) {
    options.sources.push_back(data_.Write("f" + std::to_string(i) + ".jsonl", R"({"text": "xy"})"));
  }
  const auto bytes_of = [&](std::size_t files) {
    DataOptions some = options;
    some.sources.resize(files);
    const std::size_t before = HeapBytes();
    const Dataset data = Open(some);
    std::vector<Dataset> parts;  // as an evaluation by files holds them
    for (std::size_t f = 0; f < files; ++f) {
      parts.push_back(data.OfFile(static_cast<std::int64_t>(f)));
      EXPECT_EQ(parts.back().size(), 1);
    }
    return HeapBytes() - before;
  };
  bytes_of(400);  // what is allocated once
  const std::size_t few = bytes_of(40);
  if (few == 0) GTEST_SKIP() << "the C library does not count";
  EXPECT_LT(bytes_of(400), 12 * few);
}

// The records of a file have places, of which each is counted from the one before.
TEST_F(SampleIndexTest, PartsHaveThePlacesOfTheirFile) {
  const Dataset data = Open(options_);
  const std::vector<OrderPart> parts = data.parts();
  std::int64_t first = 0;
  for (std::int64_t f = 0; f < std::ssize(parts); ++f) {
    const Dataset part = data.OfFile(f);
    ASSERT_EQ(part.size(), parts[f].samples);
    EXPECT_EQ(part.report().files.size(), 1U);
    for (std::int64_t i = 0; i < part.size(); ++i) {
      EXPECT_EQ(part.Where(i), data.Where(first + i));
      EXPECT_EQ(part.Get(i).ids, data.Get(first + i).ids);
    }
    first += part.size();
  }
  const std::vector<std::uint32_t> some = {1, 5, static_cast<std::uint32_t>(data.size() - 1)};
  const Dataset subset = data.Subset(some);
  EXPECT_EQ(subset.OfFile(0).size(), 2);
  EXPECT_EQ(subset.OfFile(0).Where(1), data.Where(5));
  EXPECT_EQ(subset.OfFile(1).size(), 0);
  EXPECT_EQ(subset.OfFile(2).Get(0).ids, data.Get(data.size() - 1).ids);
}

}  // namespace
}  // namespace qlora
