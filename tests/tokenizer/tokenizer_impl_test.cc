// Files that must be refused, and what is read besides the ids.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>

#include "qlora/error.h"
#include "tokenizer/tokenizer_test_util.h"

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

// The key of the list in a Sequence.
const char* ListKey(const std::string& stage) {
  return stage == "normalizer"       ? "normalizers"
         : stage == "pre_tokenizer"  ? "pretokenizers"
         : stage == "post_processor" ? "processors"
                                     : "decoders";
}

// A TemplateProcessing of one item before the text.
json Template(const json& item, const json& special_tokens) {
  return {{"type", "TemplateProcessing"},
          {"single", {item, {{"Sequence", {{"id", "A"}}}}}},
          {"special_tokens", special_tokens}};
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
  ExpectRefused("model.vocab: expected an object", [](json& t) {
    t["model"]["vocab"] = json::array({{"a", 0.5}});
  });
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
  ExpectRefused("model.dropout", [](json& t) { t["model"]["dropout"] = 0.1; });
  ExpectRefused("model.end_of_word_suffix",
                [](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; });
  ExpectRefused("model.fuse_unk", [](json& t) { t["model"]["fuse_unk"] = "yes"; });
  ExpectRefused("version", [](json& t) { t["version"] = "2.0"; });
  ExpectRefused("normalizer.type", [](json& t) { t["normalizer"] = json::object(); });
  ExpectRefused("normalizer", [](json& t) { t["normalizer"] = 1; });
  ExpectRefused("normalizer.normalizers[1].prepend", [](json& t) {
    t["normalizer"] = {{"type", "Sequence"},
                       {"normalizers", {{{"type", "NFC"}}, {{"type", "Prepend"}}}}};
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
  ExpectRefused("post_processor: adds id 9", [](json& t) {
    t["post_processor"] = Template({{"SpecialToken", {{"id", "<s>"}}}}, {{"<s>", {{"ids", {9}}}}});
  });
  ExpectRefused("post_processor.single[0].SpecialToken.id", [](json& t) {
    t["post_processor"] = Template({{"SpecialToken", {{"id", "<s>"}}}}, json::object());
  });
  ExpectRefused("added_tokens[0].id",
                [](json& t) { t["added_tokens"] = json::array({Added(7, "<s>")}); });
  ExpectRefused("added_tokens[0].id",
                [](json& t) { t["added_tokens"] = json::array({Added(1, "a")}); });
  ExpectRefused("added_tokens[1].content", [](json& t) {
    t["added_tokens"] = json::array({Added(3, "<s>"), Added(3, "<s>")});
  });
  ExpectRefused("added_tokens[0].content: expected at most 1024 bytes", [](json& t) {
    t["added_tokens"] = json::array({Added(3, std::string(1025, 'a'))});
  });
  ExpectRefused("added_tokens[0].special", [](json& t) {
    t["added_tokens"] = json::array({Added(3, "<s>")});
    t["added_tokens"][0].erase("special");
  });
}

// Kinds of other models than decoders. The message names the kind that was found and those that
// are supported.
TEST(TokenizerLoad, RefusesUnsupportedKinds) {
  const auto refused = [](const char* stage, const char* kind, const char* supported) {
    json tokenizer = Small();
    tokenizer[stage] = {{"type", "Sequence"},
                        {stage == std::string("model") ? "vocab" : ListKey(stage),
                         json::array({{{"type", kind}}})}};
    if (stage == std::string("model")) tokenizer[stage]["type"] = kind;
    try {
      LoadJson(tokenizer);
      ADD_FAILURE() << "accepted: " << kind;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(std::string("tokenizer.json: ") + stage));
      EXPECT_THAT(e.what(), HasSubstr(fmt::format("found \"{}\"", kind)));
      EXPECT_THAT(e.what(), HasSubstr(supported));
    }
  };
  for (const char* kind : {"Unigram", "WordPiece", "WordLevel"}) refused("model", kind, "\"BPE\"");
  for (const char* kind : {"Precompiled", "Nmt", "StripAccents", "Lowercase", "Strip", "NFD",
                           "NFKD", "ByteLevel", "BertNormalizer"}) {
    refused("normalizer", kind, "(Sequence, NFC, NFKC, Prepend, Replace)");
  }
  for (const char* kind : {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts",
                           "CharDelimiterSplit"}) {
    refused("pre_tokenizer", kind, "(Sequence, ByteLevel, Split, Digits, Punctuation, Metaspace)");
  }
  for (const char* kind : {"BertProcessing", "RobertaProcessing"}) {
    refused("post_processor", kind, "(Sequence, ByteLevel, TemplateProcessing)");
  }
  for (const char* kind : {"WordPiece", "BPEDecoder", "CTC"}) {
    refused("decoder", kind,
            "(Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace)");
  }
}

// Small files that ask for endless work.
TEST(TokenizerLoad, RefusesBombs) {
  const auto sequence = [](const char* stage, const json& step, int count) {
    return json{{"type", "Sequence"}, {ListKey(stage), json(count, step)}};
  };
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  const json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const json everywhere = {
      {"type", "Replace"}, {"pattern", {{"Regex", "a*"}}}, {"content", "aaaa"}};
  const json prepend = {{"type", "Prepend"}, {"prepend", std::string(300, 'a')}};
  for (const char* stage : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    const json step = stage == std::string("pre_tokenizer")    ? digits
                      : stage == std::string("post_processor") ? json{{"type", "ByteLevel"}}
                      : stage == std::string("decoder")        ? json{{"type", "Fuse"}}
                                                               : json{{"type", "NFC"}};
    ExpectRefused(fmt::format("{}.{}[256]: expected at most 256 steps", stage, ListKey(stage)),
                  [&](json& t) { t[stage] = sequence(stage, step, 300); });
  }
  for (const char* stage : {"normalizer", "decoder"}) {
    const std::string list = fmt::format("{}.{}", stage, ListKey(stage));
    ExpectRefused(list + "[8]: expected steps that make a text at most 256 times as long",
                  [&](json& t) { t[stage] = sequence(stage, twice, 100); });
    ExpectRefused(list + "[3]", [&](json& t) { t[stage] = sequence(stage, everywhere, 100); });
  }
  ExpectRefused("normalizer", [&](json& t) { t["normalizer"] = prepend; });
  ExpectRefused("pre_tokenizer",
                [&](json& t) { t["pre_tokenizer"] = sequence("pre_tokenizer", digits, 100000); });
}

TEST(TokenizerLoad, ManySteps) {
  json tokenizer = Small();
  const json fuse = {{"type", "Fuse"}};
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json(256, digits)}};
  tokenizer["decoder"] = {{"type", "Sequence"}, {"decoders", json(256, fuse)}};
  EXPECT_EQ(LoadJson(tokenizer).Encode("abba"), (Ids{2, 1, 0}));
  EXPECT_EQ(LoadJson(tokenizer).Decode(Ids{2, 1, 0}), "abba");
}

// The time is linear in the number of objects, which a parser with callbacks is not.
TEST(TokenizerLoad, ManyAddedTokens) {
  json tokenizer = Small();
  for (int i = 0; i < 20000; ++i) {
    tokenizer["added_tokens"].push_back(Added(3 + i, fmt::format("<{}>", i)));
  }
  EXPECT_EQ(LoadJson(tokenizer).Encode("<19999>"), (Ids{20002}));
}

// Deep values in the wrong place: refused before anything recurses over them.
TEST(TokenizerLoad, RefusesDeepFiles) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const TemporaryFolder dir;
  for (const std::string& text :
       {deep, "{\"normalizer\": " + deep + "}", "{\"model\": {\"vocab\": " + deep + "}}",
        "{\"model\": {\"merges\": " + deep + "}}", "{\"added_tokens\": " + deep + "}"}) {
    dir.Write("tokenizer.json", text);
    EXPECT_THROW(Tokenizer::Load(dir.path()), Error);
  }
  dir.Write("tokenizer.json", Small().dump());
  for (const char* name : {"config.json", "tokenizer_config.json"}) {
    for (const std::string& text : {deep, "{\"eos_token\": " + deep + "}"}) {
      if (name == std::string("config.json") && text != deep) continue;
      dir.Write(name, text);
      EXPECT_THROW(Tokenizer::Load(dir.path()), Error);
      std::filesystem::remove(dir.path() / name);
    }
  }
}

TEST(TokenizerLoad, RefusesWhatIsNoTokenizer) {
  const TemporaryFolder dir;
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

TEST(TokenizerLoad, RefusesDuplicates) {
  const TemporaryFolder dir;
  for (const char* text :
       {R"({"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}})",
        R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "vocab": {"b": 1}}})",
        R"({"model": {"vocab": {"a": 0}, "merges": []}, "model": {}})"}) {
    dir.Write("tokenizer.json", text);
    EXPECT_THROW(Tokenizer::Load(dir.path()), Error) << text;
  }
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
  t["added_tokens"] =
      json::array({Added(3, "<s>"), Added(4, "</s>"), Added(5, "<eot>"), Added(6, "<pad>")});
  return t;
}

TEST(TokenizerLoad, FindsRolesInTheSiblingFiles) {
  const TemporaryFolder dir;
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
  const TemporaryFolder dir;
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
}

}  // namespace
}  // namespace qlora
