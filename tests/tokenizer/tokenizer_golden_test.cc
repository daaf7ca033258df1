// Ids and texts of the real Hugging Face tokenizers for every kind of tokenizer.json in fixtures/.
#include <map>
#include <vector>

#include "qlora/context.h"
#include "tokenizer/tokenizer_test_util.h"

namespace qlora {
namespace {

using nlohmann::json;

struct Golden {
  Tokenizer tokenizer;
  std::vector<json> lines;  // {"input": text or absent, "ids": [...], "text": "..."}
};

std::map<std::string, Golden> LoadGolden() {
  std::map<std::string, Golden> all;
  std::ifstream file(FixtureDir() / "golden.jsonl");
  for (std::string line; std::getline(file, line);) {
    json item = json::parse(line);
    const std::string name = item["tokenizer"];
    auto at = all.find(name);
    if (at == all.end()) {
      at = all.emplace(name, Golden{Tokenizer::Load(FixtureDir() / name), {}}).first;
    }
    at->second.lines.push_back(std::move(item));
  }
  return all;
}

using Ids = std::vector<std::int32_t>;

TEST(TokenizerGolden, EncodesAndDecodes) {
  const auto all = LoadGolden();
  ASSERT_EQ(all.size(), 19u);
  for (const auto& [name, golden] : all) {
    for (const json& line : golden.lines) {
      const auto ids = line["ids"].get<Ids>();
      if (line.contains("input")) {
        EXPECT_EQ(golden.tokenizer.Encode(line["input"].get<std::string>()), ids)
            << name << ": " << line["input"];
      }
      EXPECT_EQ(golden.tokenizer.Decode(ids), line["text"].get<std::string>())
          << name << ": " << line["ids"];
    }
  }
}

TEST(TokenizerGolden, StreamsTheSameText) {
  for (const auto& [name, golden] : LoadGolden()) {
    for (const json& line : golden.lines) {
      for (const bool skip : {true, false}) {
        Tokenizer::StreamDecoder stream(golden.tokenizer, skip);
        const auto ids = line["ids"].get<Ids>();
        std::string text;
        for (const std::int32_t id : ids) text += stream.Add(id);
        text += stream.Finish();
        EXPECT_EQ(text, golden.tokenizer.Decode(ids, skip)) << name << ": " << line["ids"];
      }
    }
  }
}

TEST(TokenizerGolden, EncodesBatchesOnThreads) {
  Context context(3);
  for (const auto& [name, golden] : LoadGolden()) {
    std::vector<std::string> texts;
    for (int i = 0; i < 40; ++i) {
      for (const json& line : golden.lines) texts.push_back(line.value("input", ""));
    }
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    const std::vector<Ids> batch = golden.tokenizer.EncodeBatch(context, views, false);
    ASSERT_EQ(batch.size(), texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(batch[i], golden.tokenizer.Encode(texts[i], false)) << name << ": " << texts[i];
    }
  }
}

// Real vocabularies. The ids are those of Hugging Face tokenizers 0.23.2.
TEST(TokenizerGolden, EncodesWithRealVocabularies) {
  const std::filesystem::path data = SharedFolder() / "data/tokenizers";
  if (!std::filesystem::exists(data)) GTEST_SKIP() << data << " is not at hand";
  const std::string text = "Hello world, it's 12345  na\u00efve\n\n x";
  EXPECT_EQ(Tokenizer::Load(data / "llama-bpe").Encode(text),
            (Ids{128000, 9906, 1917, 11, 433, 596, 220, 4513, 1774, 220, 95980, 588, 271, 865}));
  EXPECT_EQ(Tokenizer::Load(data / "llama-spm").Encode(text),
            (Ids{1,     15043, 3186,  29892, 372,  29915, 29879, 29871, 29896, 29906,
                 29941, 29946, 29945, 29871, 1055, 30085, 345,   13,    13,    921}));
  EXPECT_EQ(Tokenizer::Load(data / "qwen2").Encode(text),
            (Ids{9707, 1879, 11, 432, 594, 220, 16, 17, 18, 19, 20, 220, 94880, 586, 271, 856}));
}

}  // namespace
}  // namespace qlora
