// Files that must be refused, and what is read beside the ids.
#include <gmock/gmock.h>

#include <functional>

#include "qlora/error.h"
#include "tokenizer/tokenizer_fixtures.h"

namespace qlora {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

json Small() {
  return json::parse(R"({
    "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

json Added(int id, const std::string& content) {
  return {{"id", id},        {"content", content}, {"special", true},     {"normalized", false},
          {"lstrip", false}, {"rstrip", false},    {"single_word", false}};
}

// Loads Small() after `change` and expects an error that names `key`.
void ExpectRefused(const std::string& key, const std::function<void(json&)>& change) {
  json tokenizer = Small();
  change(tokenizer);
  try {
    LoadJson(tokenizer);
    ADD_FAILURE() << "accepted: " << key;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(e.what(), HasSubstr("tokenizer.json: " + key));
  }
}

TEST(TokenizerLoad, RefusesBadFiles) {
  EXPECT_EQ(LoadJson(Small()).Encode("abba"), (Ids{2, 1, 0}));
  ExpectRefused("model", [](json& t) { t.erase("model"); });
  ExpectRefused("model.vocab", [](json& t) { t["model"].erase("vocab"); });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"] = json::object(); });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"] = 3; });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"]["a"] = "0"; });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"]["a"] = -1; });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"]["a"] = 1.5; });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"]["a"] = json::array({1}); });
  ExpectRefused("model.vocab", [](json& t) {
    t["model"]["vocab"]["a"] = json::object({{"x", 1}});
  });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"]["c"] = 1; });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"]["c"] = 1 << 30; });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"][""] = 3; });
  ExpectRefused("model.vocab", [](json& t) { t["model"]["vocab"] = json::array({{"a", 0.5}}); });
  ExpectRefused("model.merges", [](json& t) { t["model"].erase("merges"); });
  ExpectRefused("model.merges", [](json& t) { t["model"]["merges"] = "a b"; });
  ExpectRefused("model.merges", [](json& t) { t["model"]["merges"][0] = "ab"; });
  ExpectRefused("model.merges", [](json& t) { t["model"]["merges"][0] = "a b c"; });
  ExpectRefused("model.merges", [](json& t) { t["model"]["merges"][0] = 7; });
  ExpectRefused("model.merges", [](json& t) { t["model"]["merges"][0] = {"a"}; });
  ExpectRefused("model.merges", [](json& t) { t["model"]["merges"][0] = {"a", 1}; });
  ExpectRefused("model.merges", [](json& t) { t["model"]["merges"][0] = {"a", "b", "c"}; });
  ExpectRefused("model.merges[1]: 'c'", [](json& t) { t["model"]["merges"][1] = "a c"; });
  ExpectRefused("model.merges[1]: 'ba'", [](json& t) { t["model"]["merges"][1] = "b a"; });
  ExpectRefused("model.type", [](json& t) { t["model"]["type"] = "WordPiece"; });
  ExpectRefused("model.dropout", [](json& t) { t["model"]["dropout"] = 0.1; });
  ExpectRefused("model.end_of_word_suffix",
                [](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; });
  ExpectRefused("model.fuse_unk", [](json& t) { t["model"]["fuse_unk"] = "yes"; });
  ExpectRefused("version", [](json& t) { t["version"] = "2.0"; });
  ExpectRefused("normalizer.type", [](json& t) { t["normalizer"] = {{"type", "BertNormalizer"}}; });
  ExpectRefused("normalizer.type", [](json& t) { t["normalizer"] = json::object(); });
  ExpectRefused("normalizer", [](json& t) { t["normalizer"] = 1; });
  ExpectRefused("normalizer.precompiled_charsmap", [](json& t) {
    t["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}};
  });
  ExpectRefused("normalizer.normalizers[1].prepend", [](json& t) {
    t["normalizer"] = {{"type", "Sequence"},
                       {"normalizers", {{{"type", "NFC"}}, {{"type", "Prepend"}}}}};
  });
  ExpectRefused("pre_tokenizer.type", [](json& t) {
    t["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  });
  ExpectRefused("pre_tokenizer.behavior", [](json& t) {
    t["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", "Keep"}, {"invert", false}};
  });
  ExpectRefused("pre_tokenizer.pattern.Regex", [](json& t) {
    t["pre_tokenizer"] = {{"type", "Split"},
                          {"pattern", {{"Regex", "\\w"}}},
                          {"behavior", "Isolated"},
                          {"invert", false}};
  });
  ExpectRefused("pre_tokenizer.prepend_scheme", [](json& t) {
    t["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "often"}};
  });
  ExpectRefused("post_processor.type", [](json& t) { t["post_processor"] = {{"type", "Other"}}; });
  ExpectRefused("post_processor", [](json& t) {
    t["post_processor"] = {{"type", "BertProcessing"}, {"cls", {"a", 0}}, {"sep", {"x", 9}}};
  });
  ExpectRefused("post_processor.single[0].SpecialToken.id", [](json& t) {
    t["post_processor"] = {{"type", "TemplateProcessing"},
                           {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}}},
                           {"special_tokens", json::object()}};
  });
  ExpectRefused("decoder.type", [](json& t) { t["decoder"] = {{"type", "WordPiece"}}; });
  ExpectRefused("added_tokens[0].id", [](json& t) { t["added_tokens"] = {Added(7, "<s>")}; });
  ExpectRefused("added_tokens[0].id", [](json& t) { t["added_tokens"] = {Added(1, "a")}; });
  ExpectRefused("added_tokens[1].content", [](json& t) {
    t["added_tokens"] = {Added(3, "<s>"), Added(3, "<s>")};
  });
  ExpectRefused("added_tokens[0].special", [](json& t) {
    t["added_tokens"] = {Added(3, "<s>")};
    t["added_tokens"][0].erase("special");
  });
}

TEST(TokenizerLoad, RefusesWhatIsNoTokenizer) {
  const ScratchDir dir;
  EXPECT_THROW(Tokenizer::Load(dir.path()), Error);
  for (const char* text :
       {"", "{", "[]", "null", "{\"model\": {\"vocab\": {\"a\": 0", "\xFF\xFE"}) {
    dir.Write("tokenizer.json", text);
    EXPECT_THROW(Tokenizer::Load(dir.path()), Error) << text;
  }
  dir.Write("tokenizer.json", std::string(100000, '['));
  EXPECT_THROW(Tokenizer::Load(dir.path()), Error);
  dir.Write("tokenizer.json", Small().dump());
  dir.Write("config.json", std::string(100000, '['));
  EXPECT_THROW(Tokenizer::Load(dir.path()), Error);
}

TEST(TokenizerLoad, RefusesDuplicatePieces) {
  const ScratchDir dir;
  dir.Write("tokenizer.json",
            R"({"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}})");
  EXPECT_THROW(Tokenizer::Load(dir.path()), Error);
}

TEST(TokenizerLoad, ReadsOldAndNewSpellings) {
  json tokenizer = Small();
  tokenizer["model"].erase("type");
  tokenizer["model"]["merges"] = json::array({json::array({"a", "b"})});
  EXPECT_EQ(LoadJson(tokenizer).Encode("ab"), (Ids{2}));
  tokenizer["truncation"] = {{"max_length", 1}};
  tokenizer["padding"] = {{"pad_id", 0}};
  EXPECT_EQ(LoadJson(tokenizer).Encode("abab"), (Ids{2, 2}));
}

json WithSpecials() {
  json t = Small();
  t["added_tokens"] = {Added(3, "<s>"), Added(4, "</s>"), Added(5, "<eot>"), Added(6, "<pad>")};
  return t;
}

TEST(TokenizerLoad, FindsRolesInTheSiblingFiles) {
  const ScratchDir dir;
  dir.Write("tokenizer.json", WithSpecials().dump());
  const auto load = [&] { return Tokenizer::Load(dir.path()); };
  EXPECT_EQ(load().bos_id(), std::nullopt);
  EXPECT_THAT(load().eos_ids(), ElementsAre());

  dir.Write("config.json", R"({"bos_token_id": 3, "eos_token_id": [4, 5], "pad_token_id": -1})");
  EXPECT_EQ(load().bos_id(), 3);
  EXPECT_EQ(load().eos_id(), 4);
  EXPECT_EQ(load().pad_id(), std::nullopt);
  EXPECT_THAT(load().eos_ids(), ElementsAre(4, 5));

  dir.Write("generation_config.json", R"({"eos_token_id": 5})");
  dir.Write("special_tokens_map.json",
            R"({"eos_token": "</s>", "pad_token": {"content": "<pad>"}})");
  EXPECT_EQ(load().eos_id(), 4);
  EXPECT_EQ(load().pad_id(), 6);
  EXPECT_THAT(load().eos_ids(), ElementsAre(4, 5));

  dir.Write("tokenizer_config.json", R"({"eos_token": {"content": "<eot>"}, "unk_token": "none"})");
  EXPECT_EQ(load().eos_id(), 5);
  EXPECT_EQ(load().unk_id(), std::nullopt);
  EXPECT_THAT(load().eos_ids(), ElementsAre(5));

  dir.Write("tokenizer_config.json", R"({"eos_token": "<none>"})");
  EXPECT_THROW(load(), Error);
  dir.Write("tokenizer_config.json", R"({"eos_token": 4})");
  EXPECT_THROW(load(), Error);
  dir.Write("tokenizer_config.json", R"([])");
  EXPECT_THROW(load(), Error);
}

TEST(TokenizerLoad, TellsWhatThePostProcessorAdds) {
  const auto fixture = [](const char* name) { return Tokenizer::Load(FixtureDir() / name); };
  EXPECT_TRUE(fixture("llama3").adds_bos());
  EXPECT_FALSE(fixture("llama3").adds_eos());
  EXPECT_TRUE(fixture("llama2").adds_bos());
  EXPECT_FALSE(fixture("qwen2").adds_bos());
  EXPECT_TRUE(fixture("o200k").adds_bos());  // no config names a BOS token: the template's counts
  EXPECT_EQ(fixture("o200k").bos_id(), fixture("o200k").IdOf("<|begin|>"));
}

TEST(TokenizerLoad, ReadsChatTemplates) {
  const ScratchDir dir;
  dir.Write("tokenizer.json", Small().dump());
  const auto names = [&] {
    std::vector<std::string> all;
    const Tokenizer tokenizer = Tokenizer::Load(dir.path());
    for (const ChatTemplateText& t : tokenizer.spec().chat_templates) {
      all.push_back(t.name + "=" + t.text);
    }
    return all;
  };
  EXPECT_THAT(names(), ElementsAre());
  dir.Write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_THAT(names(), ElementsAre("default=one"));
  dir.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_THAT(names(), ElementsAre("default=d", "tool_use=t"));
  dir.Write("chat_template.jinja", "file");
  dir.Write("additional_chat_templates/rag.jinja", "r");
  EXPECT_THAT(names(), ElementsAre("default=file", "rag=r", "tool_use=t"));
}

TEST(TokenizerLoad, DescribesItself) {
  const Tokenizer llama3 = Tokenizer::Load(FixtureDir() / "llama3");
  const TokenizerSpec& spec = llama3.spec();
  EXPECT_EQ(spec.kind, TokenizerKind::kByteLevelBpe);
  EXPECT_TRUE(spec.ignore_merges);
  EXPECT_FALSE(spec.add_prefix_space);
  EXPECT_THAT(spec.split_regex, HasSubstr("{1,3}"));
  EXPECT_THAT(spec.pre_tokenizer, HasSubstr("ByteLevel"));
  EXPECT_EQ(llama3.vocab_size(), static_cast<std::int64_t>(spec.pieces.size()));
  EXPECT_EQ(spec.added_tokens.back().id + 1, llama3.vocab_size());
  EXPECT_EQ(spec.merges.size(), 150u);
  EXPECT_EQ(llama3.TokenText(*llama3.bos_id()), "<|begin|>");
  EXPECT_TRUE(llama3.IsSpecial(*llama3.bos_id()));
  EXPECT_FALSE(llama3.IsSpecial(*llama3.IdOf("<|pad|>")));
  EXPECT_FALSE(llama3.IsSpecial(-1));
  EXPECT_EQ(llama3.TokenText(1 << 20), "");
  EXPECT_EQ(llama3.IdOf("no such token"), std::nullopt);

  EXPECT_EQ(Tokenizer::Load(FixtureDir() / "llama2").spec().kind, TokenizerKind::kSentencePieceBpe);
  EXPECT_TRUE(Tokenizer::Load(FixtureDir() / "llama2").spec().add_prefix_space);
  EXPECT_TRUE(Tokenizer::Load(FixtureDir() / "llama2-metaspace").spec().add_prefix_space);
  EXPECT_FALSE(Tokenizer::Load(FixtureDir() / "gemma").spec().add_prefix_space);
  const Tokenizer unigram = Tokenizer::Load(FixtureDir() / "unigram");
  EXPECT_EQ(unigram.spec().kind, TokenizerKind::kUnigram);
  EXPECT_EQ(unigram.spec().scores.size() + 1, unigram.spec().pieces.size());
}

}  // namespace
}  // namespace qlora
