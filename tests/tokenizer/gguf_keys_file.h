// GGUF files with the keys of a tokenizer alone, for tests of what is read from them.
#ifndef QLORA_TESTS_TOKENIZER_GGUF_KEYS_FILE_H_
#define QLORA_TESTS_TOKENIZER_GGUF_KEYS_FILE_H_

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf_writer.h"
#include "qlora/error.h"
#include "tokenizer/byte_characters.h"
#include "tokenizer/tokenizer_test_util.h"
#include "unicode/unicode.h"

namespace qlora {

inline constexpr std::int32_t kNormalType = 1;
inline constexpr std::int32_t kUnknownType = 2;
inline constexpr std::int32_t kControlType = 3;
inline constexpr std::int32_t kUserType = 4;
inline constexpr std::int32_t kUnusedType = 5;
inline constexpr std::int32_t kByteType = 6;

// The tokenizer keys of a file in the making.
struct KeysToWrite {
  std::string model = "gpt2";
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;
  std::vector<std::pair<std::string, GgufValue>> more;  // without "tokenizer."

  std::int32_t Add(const std::string& text, std::int32_t type = kNormalType, float score = 0) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<std::int32_t>(tokens.size()) - 1;
  }
  void Set(const std::string& key, GgufValue value) { more.emplace_back(key, std::move(value)); }
};

inline void WriteKeys(const KeysToWrite& keys, const std::string& name,
                      const std::filesystem::path& file) {
  GgufMetadata metadata;
  metadata.Add("general.name", name);
  const auto add = [&](const std::string& key, GgufValue value) {
    const bool set = std::any_of(keys.more.begin(), keys.more.end(),
                                 [&](const auto& entry) { return entry.first == key; });
    if (!set) metadata.Add("tokenizer." + key, std::move(value));
  };
  add("ggml.model", keys.model);
  add("ggml.tokens", GgufArray(keys.tokens));
  add("ggml.token_type", GgufArray(keys.types));
  if (keys.model == "llama") add("ggml.scores", GgufArray(keys.scores));
  if (keys.model != "llama") add("ggml.merges", GgufArray(keys.merges));
  for (const auto& [key, value] : keys.more) metadata.Add("tokenizer." + key, value);
  CreateGguf(file, metadata, {})->Finish();
}

inline Tokenizer LoadGguf(const KeysToWrite& keys, const std::string& name = "model",
                          const std::filesystem::path& adapter = {}) {
  const TemporaryFolder dir;
  WriteKeys(keys, name, dir.path() / "model.gguf");
  return Tokenizer::Load(dir.path() / "model.gguf", adapter);
}

inline std::string RefusalOf(const KeysToWrite& keys) {
  try {
    LoadGguf(keys);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("model.gguf"));
    return error.what();
  }
  return "accepted";
}

// The 256 byte characters, ids 0 to 255 by byte.
inline KeysToWrite Bytes(const std::string& pre = "gpt-2") {
  KeysToWrite keys;
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    AppendUtf8(ByteCharacter(static_cast<unsigned char>(byte)), &text);
    keys.Add(text);
  }
  keys.Set("ggml.pre", pre);
  return keys;
}

// <unk> <s> </s> and the 256 byte tokens: ids 0 to 258.
inline KeysToWrite Pieces() {
  KeysToWrite keys;
  keys.model = "llama";
  keys.Add("<unk>", kUnknownType);
  keys.Add("<s>", kControlType);
  keys.Add("</s>", kControlType);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", static_cast<unsigned>(byte));
    keys.Add(text, kByteType);
  }
  return keys;
}

}  // namespace qlora

#endif  // QLORA_TESTS_TOKENIZER_GGUF_KEYS_FILE_H_
