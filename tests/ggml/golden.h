// Golden blocks of ggml, and what ggml decodes (tests/golden/README.md).
#ifndef QLORA_TESTS_GGML_GOLDEN_H_
#define QLORA_TESTS_GGML_GOLDEN_H_

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ggml/block_format.h"
#include "test_build.h"

namespace qlora {

inline const std::filesystem::path kGgmlGolden = SourceDir() / "tests" / "golden" / "ggml";

template <typename T>
std::vector<T> ReadArray(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

inline void PrintTo(const BlockFormatInfo& info, std::ostream* out) { *out << info.name; }

inline auto FormatName(const testing::TestParamInfo<BlockFormatInfo>& test) {
  return std::string(test.param.name);
}

}  // namespace qlora

#endif  // QLORA_TESTS_GGML_GOLDEN_H_
