// Common parts of the tokenizer tests: the fixtures, and tokenizers written out on the spot.
#ifndef QLORA_TESTS_TOKENIZER_TOKENIZER_TEST_UTIL_H_
#define QLORA_TESTS_TOKENIZER_TOKENIZER_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/random.h"
#include "temporary_folder.h"
#include "test_build.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

inline std::filesystem::path FixtureDir() { return SourceDir() / "tests/fixtures"; }

inline nlohmann::json ReadFixture(const std::string& name) {
  std::ifstream file(FixtureDir() / name);
  return nlohmann::json::parse(file);
}

// The tokenizer of this tokenizer.json.
inline Tokenizer LoadJson(const nlohmann::json& tokenizer) {
  const TemporaryFolder dir;
  dir.Write("tokenizer.json", tokenizer.dump());
  return Tokenizer::Load(dir.path());
}

// A text of `pieces` picked from what tokenizers treat in different ways.
inline std::string RandomText(std::uint64_t seed, int pieces) {
  static const std::string kPieces[] = {"the",
                                        " the",
                                        "Cat",
                                        "ABC",
                                        "'s",
                                        "'LL",
                                        "'",
                                        "1",
                                        "23",
                                        "4567",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        ".",
                                        ", ",
                                        "--",
                                        "(",
                                        "x1",
                                        "_",
                                        "\u00e9",
                                        "e\u0301",
                                        "\u4e2d\u6587",
                                        "\u00a0",
                                        "\u3000",
                                        "\u0416\u0436",
                                        "\u0661",
                                        "\u2163",
                                        "\u2581",
                                        "\U0001F600",
                                        "\u200d",
                                        "'\u017f",
                                        "/",
                                        "\u01c5",
                                        "\u0300",
                                        "\ufffd",
                                        std::string("\0", 1),
                                        "<|end|>",
                                        "</s>"};
  const RandomKey key = MakeKey(seed, RandomPlace::kTest);
  std::string text;
  for (int i = 0; i < pieces; ++i) {
    text += kPieces[RandomBelow(key, static_cast<std::uint64_t>(i), std::size(kPieces))];
  }
  return text;
}

}  // namespace qlora

#endif  // QLORA_TESTS_TOKENIZER_TOKENIZER_TEST_UTIL_H_
