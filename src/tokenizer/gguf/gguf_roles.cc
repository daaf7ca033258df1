#include "tokenizer/gguf/gguf_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "base/text.h"

namespace qlora {
namespace {

// A key that names a token, or else `missing`, if there is such a token.
std::optional<std::int32_t> ReadId(const TokenizerKeys& keys, std::string_view key,
                                   std::optional<std::int32_t> missing, std::int64_t tokens,
                                   bool must_exist) {
  if (missing && *missing >= tokens) missing = std::nullopt;
  const auto* id = keys.Get<std::uint32_t>(key);
  if (id == nullptr) return missing;
  if (*id < tokens) return static_cast<std::int32_t>(*id);
  if (must_exist) {
    keys.Fail(
        key, fmt::format("names token {}, but the file has {} tokens; expected less", *id, tokens));
  }
  return missing;
}

// The tokens whose texts end a generation, in the files of many models.
constexpr auto kEndTexts =
    std::to_array<std::string_view>({"<|eot_id|>",
                                     "<|im_end|>",
                                     "<|end|>",
                                     "<|return|>",
                                     "<|call|>",
                                     "<|flush|>",
                                     "<|calls|>",
                                     "<end_of_turn>",
                                     "<|endoftext|>",
                                     "</s>",
                                     "<|eom_id|>",
                                     "<EOT>",
                                     "_<EOT>",
                                     "[EOT]",
                                     "[EOS]",
                                     "<|end_of_text|>",
                                     "<end_of_utterance>",
                                     "<eos>",
                                     "<turn|>",
                                     "<|tool_response>",
                                     "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
                                     "[e~["});

// Tokens for filling in the middle: their key and their texts. The first token with one of them has
// the role where the key is missing, and is a control token.
struct FillRole {
  std::string_view key;
  std::string_view old_key;  // or ""
  bool ends_generation;
  std::array<std::string_view, 8> texts;  // "" behind the last
};
constexpr auto kFillRoles = std::to_array<FillRole>({
    {"ggml.fim_pre_token_id",
     "ggml.prefix_token_id",
     false,
     {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uFF5Cfim\u2581begin\uFF5C>", "<PRE>",
      "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>"}},
    {"ggml.fim_suf_token_id",
     "ggml.suffix_token_id",
     false,
     {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uFF5Cfim\u2581hole\uFF5C>", "<SUF>",
      "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>"}},
    {"ggml.fim_mid_token_id",
     "ggml.middle_token_id",
     false,
     {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uFF5Cfim\u2581end\uFF5C>", "<MID>",
      "\u2581<MID>", "<|code_middle|>", "<|middle|>"}},
    {"ggml.fim_pad_token_id",
     "",
     true,
     {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
    {"ggml.fim_rep_token_id",
     "",
     true,
     {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    {"ggml.fim_sep_token_id", "", true, {"<|file_sep|>"}},
});

// Always shown, though files call them control tokens (gpt-oss).
constexpr auto kShownTexts =
    std::to_array<std::string_view>({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"});

// The tokens that end a generation. Files name one or two of them; the others are known by their
// texts, which also decide the types of some tokens.
class Ends {
 public:
  Ends(const TokenizerKeys& keys, GgufVocabulary* vocabulary)
      : keys_(keys), vocabulary_(*vocabulary) {
    for (const auto& list : {std::span<const std::string_view>(kEndTexts),
                             std::span<const std::string_view>(kShownTexts)}) {
      wanted_.insert(list.begin(), list.end());
    }
    for (const FillRole& role : kFillRoles) wanted_.insert(role.texts.begin(), role.texts.end());
    for (std::int32_t id = 0; id < std::ssize(vocabulary_.texts); ++id) {
      if (wanted_.contains(vocabulary_.texts[id])) ids_.emplace(vocabulary_.texts[id], id);
    }
  }

  std::vector<std::int32_t> Find() {
    for (const FillRole& role : kFillRoles) FindFillRole(role);
    for (const std::string_view text : kEndTexts) {
      if (const auto id = IdOf(text)) {
        ends_.insert(*id);
        TypeOf(*id) = GgufTokenType::kControl;
      }
    }
    for (const std::string_view text : kShownTexts) {
      if (const auto id = IdOf(text)) TypeOf(*id) = GgufTokenType::kUserDefined;
    }
    if (vocabulary_.roles.eos) ends_.insert(*vocabulary_.roles.eos);
    for (const char* key : {"ggml.eot_token_id", "ggml.eom_token_id"}) {
      const std::int64_t tokens = std::ssize(vocabulary_.texts);
      if (const auto id = ReadId(keys_, key, std::nullopt, tokens, true)) ends_.insert(*id);
    }
    // Of models with these ends, <|end|> ends a part of the answer only, and </s> is plain text.
    const bool calls = Ended("<|call|>") || Ended("<|calls|>");
    if (calls && (Ended("<|return|>") || Ended("<|flush|>"))) {
      Remove("<|end|>", GgufTokenType::kUserDefined);
    }
    if (Ended("<|tool_response>")) Remove("</s>", GgufTokenType::kNormal);
    return {ends_.begin(), ends_.end()};
  }

 private:
  std::optional<std::int32_t> IdOf(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  GgufTokenType& TypeOf(std::int32_t id) { return vocabulary_.types[id]; }
  bool Ended(std::string_view text) const {
    const auto id = IdOf(text);
    return id && ends_.contains(*id);
  }
  void Remove(std::string_view text, GgufTokenType type) {
    if (!Ended(text)) return;
    ends_.erase(*IdOf(text));
    TypeOf(*IdOf(text)) = type;
  }

  void FindFillRole(const FillRole& role) {
    const std::int64_t tokens = std::ssize(vocabulary_.texts);
    auto id = ReadId(keys_, role.key, std::nullopt, tokens, false);
    if (!role.old_key.empty()) id = ReadId(keys_, role.old_key, id, tokens, false);
    for (std::size_t i = 0; !id && i < role.texts.size() && !role.texts[i].empty(); ++i) {
      id = IdOf(role.texts[i]);
      if (id) TypeOf(*id) = GgufTokenType::kControl;
    }
    if (id && role.ends_generation) ends_.insert(*id);
  }

  const TokenizerKeys& keys_;
  GgufVocabulary& vocabulary_;
  std::set<std::string_view> wanted_;
  std::map<std::string_view, std::int32_t> ids_;  // of the texts that decide
  std::set<std::int32_t> ends_;
};

}  // namespace

bool EndsByText(std::string_view text) {
  return std::find(kEndTexts.begin(), kEndTexts.end(), text) != kEndTexts.end();
}

void ReadGgufRoles(const TokenizerKeys& keys, GgufVocabulary* vocabulary) {
  const std::int64_t tokens = std::ssize(vocabulary->texts);
  const bool scores =
      vocabulary->kind == TokenizerKind::kSentencePieceBpe && !vocabulary->has_merges;
  TokenRoles& roles = vocabulary->roles;
  // Without keys, byte-level files have BOS and EOS in token 11, as Falcon's, which came first. In
  // other vocabularies it is a piece of text, which is no role that anyone gave it.
  const auto falcon = [&]() -> std::optional<std::int32_t> {
    if (vocabulary->has_merges || tokens <= 11 || vocabulary->types[11] != GgufTokenType::kControl)
      return std::nullopt;
    return 11;
  };
  const bool has_bos = vocabulary->pre_tokenizer.has_bos;
  const auto bos = scores ? 1 : has_bos ? falcon() : std::nullopt;
  roles.bos = ReadId(keys, "ggml.bos_token_id", bos, tokens, true);
  roles.eos = ReadId(keys, "ggml.eos_token_id", scores ? 2 : falcon(), tokens, true);
  roles.unk = ReadId(keys, "ggml.unknown_token_id", scores ? std::optional(0) : std::nullopt,
                     tokens, false);
  // Files of models whose vocabulary was cut name padding beyond it.
  roles.pad = ReadId(keys, "ggml.padding_token_id", std::nullopt, tokens, false);

  const auto adds = [&](const char* key, bool missing, const std::optional<std::int32_t>& id,
                        const char* name) {
    const auto* value = keys.Get<bool>(key);
    const bool result = value == nullptr ? missing : *value;
    if (result && !id) {
      keys.Fail(key,
                fmt::format("is true{}, but the file names no {}; expected "
                            "tokenizer.ggml.{}_token_id",
                            value == nullptr ? " where it is missing" : "", name, LowerCase(name)));
    }
    return result;
  };
  const bool adds_bos = scores || vocabulary->pre_tokenizer.adds_bos;
  vocabulary->adds.bos = adds("ggml.add_bos_token", adds_bos, roles.bos, "BOS");
  // Whatever the key says, which early files have wrong.
  if (vocabulary->has_merges && roles.bos) vocabulary->adds.bos = true;
  vocabulary->adds.eos = adds("ggml.add_eos_token", false, roles.eos, "EOS");
  roles.all_eos = Ends(keys, vocabulary).Find();
}

}  // namespace qlora
