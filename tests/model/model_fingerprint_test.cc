// The hash of all weights.
#include "model/model_fingerprint.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "base/random.h"
#include "io/test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

class HashWeightsTest : public testing::Test {
 protected:
  HashWeightsTest() {
    fs::copy(SourceDir() / "tests/golden/llama-tiny", folder_ / "m");
    weights_ = ReadTextFile(folder_ / "m" / "model.safetensors");
  }

  std::uint64_t Hash(int threads = 1) {
    Context context(threads);
    return HashWeights(context, folder_ / "m");
  }

  TemporaryFolder folder_;
  std::string weights_;
};

TEST_F(HashWeightsTest, SeesEveryBit) {
  const std::uint64_t hash = Hash();
  std::uint64_t header = 0;
  std::memcpy(&header, weights_.data(), sizeof(header));
  const std::uint64_t begin = sizeof(header) + header;
  const RandomKey random = MakeKey(1, RandomPlace::kTest);
  for (std::uint64_t i = 0; i < 50; ++i) {
    std::string changed = weights_;
    const std::uint64_t bit = RandomBelow(random, i, 8 * (weights_.size() - begin));
    char& byte = changed[begin + bit / 8];
    byte = static_cast<char>(byte ^ 1 << bit % 8);
    WriteTextFile(folder_ / "m" / "model.safetensors", changed);
    EXPECT_NE(Hash(), hash) << "bit " << bit;
  }
}

TEST_F(HashWeightsTest, IsThatOfAnyThreadsAndParts) {
  const std::uint64_t hash = Hash();
  EXPECT_EQ(Hash(3), hash);
  Context context(2);
  for (const int parts : {1, 2, 7}) {
    std::uint64_t sum = 0;
    for (int part = 0; part < parts; ++part) {
      sum += HashWeights(context, folder_ / "m", part, parts);
    }
    EXPECT_EQ(sum, hash) << parts;
  }
}

}  // namespace
}  // namespace qlora
