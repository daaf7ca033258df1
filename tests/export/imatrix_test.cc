// Importance matrices in both layouts of llama.cpp.
#include "export/gguf/imatrix.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "io/test_util.h"
#include "qlora/error.h"
#include "test_build.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ImatrixTest : public testing::Test {
 protected:
  std::string Refusal(const std::string& bytes) {
    WriteTextFile(folder_ / "bad.dat", bytes);
    try {
      ReadImatrix(folder_ / "bad.dat");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  TemporaryFolder folder_;
};

template <typename T>
std::string Bytes(const T& value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// The older layout of one entry: means (2, 6) over 4 calls.
std::string OldFile(float first = 8) {
  return Bytes(std::int32_t{1}) + Bytes(std::int32_t{1}) + "w" + Bytes(std::int32_t{4}) +
         Bytes(std::int32_t{2}) + Bytes(first) + Bytes(24.0f);
}

TEST_F(ImatrixTest, ReadsTheOlderLayout) {
  const std::string trailer = Bytes(std::int32_t{4}) + Bytes(std::int32_t{9}) + "dir/a.txt";
  for (const std::string& end : {std::string(), trailer}) {
    WriteTextFile(folder_ / "importance", OldFile() + end);
    ASSERT_TRUE(IsImatrixFile(folder_ / "importance"));
    const ImportanceMatrix matrix = ReadImatrix(folder_ / "importance");
    ASSERT_EQ(matrix.entries.size(), 1U);
    EXPECT_THAT(matrix.entries.at("w").mean_squares, ElementsAre(2, 6));
    EXPECT_EQ(matrix.chunks, end.empty() ? 0 : 4);
    EXPECT_EQ(matrix.dataset, end.empty() ? "" : "a.txt");
  }
}

TEST_F(ImatrixTest, RefusesDamagedFiles) {
  const std::string whole = OldFile();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(Refusal(whole.substr(0, size)), HasSubstr("ends before")) << size;
  }
  EXPECT_THAT(Refusal(OldFile(-8)), HasSubstr("'w' has the value -2"));
  EXPECT_THAT(Refusal(OldFile(std::nanf(""))), HasSubstr("'w' has the value nan"));
}

TEST_F(ImatrixTest, ReadsWhatItWrites) {
  ImportanceMatrix matrix;
  matrix.dataset = "text.txt";
  matrix.chunks = 3;
  matrix.entries["blk.0.attn_q.weight"] = {{0.5f, 4, 0}, {8}};
  // The second expert saw nothing.
  matrix.entries["blk.0.ffn_up_exps.weight"] = {{2, 3, 1, 1}, {16, 0}};
  WriteImatrix(matrix, folder_ / "a.gguf", OpenMode::kCreate);
  EXPECT_TRUE(IsImatrixFile(folder_ / "a.gguf"));
  const ImportanceMatrix read = ReadImatrix(folder_ / "a.gguf");
  EXPECT_EQ(read.entries, matrix.entries);
  EXPECT_EQ(read.dataset, "text.txt");
  EXPECT_EQ(read.chunks, 3);
  EXPECT_EQ(read.chunk_size, 512);
}

TEST_F(ImatrixTest, CountsAreNumbersOfTokens) {
  const auto read = [&](std::vector<float> counts) {
    ImportanceMatrix matrix;
    matrix.entries["w"] = {{2, 3, 4, 5}, std::move(counts)};
    WriteImatrix(matrix, folder_ / "counts.gguf", OpenMode::kReplace);
    return ReadImatrix(folder_ / "counts.gguf");
  };
  // No token met the matrix, or none of the experts.
  EXPECT_EQ(read({0}).Find("w"), nullptr);
  EXPECT_EQ(read({0, 0}).Find("w"), nullptr);
  EXPECT_THAT(*read({0, 2}).Find("w"), ElementsAre(1, 1, 4, 5));
  for (const float bad : {-1.0F, std::nanf(""), HUGE_VALF}) {
    try {
      read({2, bad});
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("'w' has the count"));
    }
  }
}

TEST_F(ImatrixTest, TellsTextsFromMatrices) {
  WriteTextFile(folder_ / "text", "Once upon a time");
  EXPECT_FALSE(IsImatrixFile(folder_ / "text"));
  EXPECT_FALSE(IsImatrixFile(folder_ / "missing"));
}

TEST_F(ImatrixTest, ReadsTheFilesOfLlamaCpp) {
  const std::filesystem::path golden = SharedFolder() / "golden" / "gguf" / "imatrix";
  if (!std::filesystem::exists(golden)) GTEST_SKIP() << "there are no shared golden files";
  const auto expected = nlohmann::json::parse(std::ifstream(golden / "expected.json"));
  for (const char* layout : {"gguf", "dat"}) {
    const ImportanceMatrix matrix = ReadImatrix(golden / (std::string("tiny.") + layout));
    ASSERT_EQ(matrix.entries.size(), expected.at(layout).size());
    EXPECT_EQ(matrix.dataset, "calibration.txt");
    EXPECT_EQ(matrix.chunks, 3);
    for (const auto& [name, values] : expected.at(layout).items()) {
      EXPECT_EQ(matrix.entries.at(name).mean_squares, values.get<std::vector<float>>())
          << layout << " " << name;
    }
  }
}

}  // namespace
}  // namespace qlora
