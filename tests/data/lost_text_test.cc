#include "data/audit/lost_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "data/data_test_util.h"

namespace qlora {
namespace {

// Knows a, b and the space.
Tokenizer SmallTokenizer() {
  const TemporaryFolder folder;
  WriteTextFile(folder / "tokenizer.json", R"({
    "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "unk_token": "?", "fuse_unk": false,
              "vocab": {"a": 0, "b": 1, "ab": 2, "?": 3, " ": 4}, "merges": ["a b"]}})");
  return Tokenizer::Load(folder.path());
}

TEST(LostText, CharactersWithoutATokenAreFound) {
  const Tokenizer tokenizer = SmallTokenizer();
  EXPECT_EQ(LostText(tokenizer, "ab ba"), "");
  EXPECT_EQ(LostText(tokenizer, "ab\xC3\xA9z"), "\xC3\xA9z");
}

// White space between words counts, other white space does not.
TEST(LostText, SpacesBetweenWordsAreFound) {
  const TemporaryFolder folder;
  WriteTextFile(folder / "tokenizer.json", R"({
    "version": "1.0", "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
                      "split": false},
    "post_processor": null,
    "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, ",": 3}, "merges": ["a b"]}})");
  const Tokenizer tokenizer = Tokenizer::Load(folder.path());
  EXPECT_EQ(LostText(tokenizer, "a, ab"), "");
  EXPECT_EQ(LostText(tokenizer, "a, ab\nba"), "a,ab ba");
}

TEST(LostText, AllThatIsTrainedOnIsLookedAt) {
  const Tokenizer tokenizer = SmallTokenizer();
  DataFolder folder;
  const auto warning = [&](const std::string& record) {
    DataOptions options = folder.With("d.jsonl", record);
    options.append_eos = false;
    return WarnOfLostText(Dataset::Open(options, tokenizer, nullptr), tokenizer);
  };
  for (const char* record :
       {R"({"text": "ab \u00e9"})", R"({"prompt": "ab \u00e9", "completion": "a"})",
        R"({"prompt": "ab ", "completion": "\u00e9"})",
        R"({"instruction": "a", "output": "\u00e9"})"}) {
    EXPECT_THAT(warning(record), testing::HasSubstr("'\xC3\xA9' does not come back")) << record;
  }
  EXPECT_EQ(warning(R"({"text": "ab ba"})"), "");
  EXPECT_EQ(warning(R"({"prompt": "a ", "completion": "b", "note": "\u00e9"})"), "");
}

}  // namespace
}  // namespace qlora
