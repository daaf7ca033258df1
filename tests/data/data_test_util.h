// What the tests of data sets share: a tokenizer of bytes, and files written for one test.
#ifndef QLORA_TESTS_DATA_DATA_TEST_UTIL_H_
#define QLORA_TESTS_DATA_DATA_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "io/test_util.h"
#include "test_build.h"
#include "tokenizer/byte_characters.h"

namespace qlora {

inline constexpr std::int32_t kBos = 0;      // <s>, put before text
inline constexpr std::int32_t kEos = 1;      // </s>
inline constexpr std::int32_t kImStart = 2;  // <|im_start|>, special
inline constexpr std::int32_t kImEnd = 3;    // <|im_end|>, special, not listed as EOS
inline constexpr std::int32_t kByte = 4;     // byte b is token kByte + b
inline constexpr std::int32_t kAb = 260;     // "ab"
inline constexpr std::int32_t kTestVocab = 261;

using Ids = std::vector<std::int32_t>;

struct TestTokenizerOptions {
  bool bos = true;                        // the post-processor adds it
  bool chat = true;                       // <|im_start|> and <|im_end|> are tokens
  std::vector<std::string> special = {};  // further special tokens, from kTestVocab on
  std::string chat_template = {};         // of tokenizer_config.json
  std::vector<std::string> stops = {};    // of `special`, which generation_config.json lists as EOS
};

inline std::string ReadFixture(const std::string& name) {
  std::ifstream file(SourceDir() / "tests/fixtures" / name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A byte-level BPE tokenizer with the ids above and one merge.
inline Tokenizer MakeTestTokenizer(TestTokenizerOptions options = {}) {
  const auto special = [](std::int32_t id, const std::string& text) {
    return nlohmann::json{{"id", id},           {"content", text}, {"special", true},
                          {"lstrip", false},    {"rstrip", false}, {"single_word", false},
                          {"normalized", false}};
  };
  nlohmann::json vocab = {{"<s>", kBos},
                          {"</s>", kEos},
                          {options.chat ? "<|im_start|>" : "<a>", kImStart},
                          {options.chat ? "<|im_end|>" : "<b>", kImEnd},
                          {"ab", kAb}};
  for (int byte = 0; byte < 256; ++byte) {
    utf8proc_uint8_t text[4];
    const auto length = utf8proc_encode_char(
        static_cast<utf8proc_int32_t>(ByteCharacter(static_cast<unsigned char>(byte))), text);
    vocab[std::string(text, text + length)] = kByte + byte;
  }
  nlohmann::json json = {
      {"added_tokens", {special(kBos, "<s>"), special(kEos, "</s>")}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}}};
  if (options.chat) {
    json["added_tokens"].push_back(special(kImStart, "<|im_start|>"));
    json["added_tokens"].push_back(special(kImEnd, "<|im_end|>"));
  }
  for (std::size_t i = 0; i < options.special.size(); ++i) {
    json["added_tokens"].push_back(
        special(kTestVocab + static_cast<std::int32_t>(i), options.special[i]));
  }
  if (options.bos) {
    json["post_processor"] = nlohmann::json::parse(R"({
      "type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}})");
  }
  const TemporaryFolder folder;
  std::ofstream(folder / "tokenizer.json") << json;
  nlohmann::json config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  if (!options.chat_template.empty()) config["chat_template"] = options.chat_template;
  std::ofstream(folder / "tokenizer_config.json") << config;
  if (!options.stops.empty()) {
    nlohmann::json ids = {kEos};
    for (std::size_t i = 0; i < options.special.size(); ++i) {
      if (std::ranges::count(options.stops, options.special[i]) > 0) ids.push_back(kTestVocab + i);
    }
    std::ofstream(folder / "generation_config.json") << nlohmann::json{{"eos_token_id", ids}};
  }
  return Tokenizer::Load(folder.path());
}

// The tokens of a text without "ab" and special tokens.
inline Ids Bytes(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(kByte + static_cast<unsigned char>(c));
  return ids;
}

inline Ids Join(std::initializer_list<Ids> parts) {
  Ids ids;
  for (const Ids& part : parts) ids.insert(ids.end(), part.begin(), part.end());
  return ids;
}

inline Ids Masked(std::size_t count) { return Ids(count, kIgnoreLabel); }

// Data files that live as long as the test.
class DataFolder {
 public:
  DataSource Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    DataSource source;
    source.path = folder_ / name;
    return source;
  }
  // Options with one file.
  DataOptions With(const std::string& name, const std::string& text) {
    DataOptions options;
    options.sources.push_back(Write(name, text));
    return options;
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_DATA_DATA_TEST_UTIL_H_
