#include "tokenizer/gguf/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/text.h"
#include "tokenizer/gguf/gguf_roles.h"
#include "tokenizer/lookup_tables.h"
#include "tokenizer/tokenizer_keys.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 22;  // far above any vocabulary

constexpr std::string_view kMergedPieces = "gemma4";

TokenizerKind ReadKind(const TokenizerKeys& keys) {
  const auto* model = keys.Get<std::string>("ggml.model");
  if (model == nullptr) {
    keys.Fail("ggml.model",
              "is missing; expected a file that holds a model's tokenizer (of a model in several "
              "files, the first)");
  }
  if (*model == "gpt2") return TokenizerKind::kByteLevelBpe;
  if (*model == "llama" || *model == kMergedPieces) return TokenizerKind::kSentencePieceBpe;
  constexpr auto kKnown = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"bert", "WordPiece"},
      {"t5", "unigrams"},
      {"rwkv", "greedy"},
      {"plamo2", "PLaMo 2"},
      {"none", "no tokenizer"},
      {"no_vocab", "no tokenizer"},
  });
  const auto known =
      std::ranges::find_if(kKnown, [&](const auto& entry) { return entry.first == *model; });
  keys.Fail("ggml.model",
            fmt::format("'{}'{} is not supported; expected 'gpt2' (byte-level BPE), 'llama' "
                        "(SentencePiece) or 'gemma4'; {}",
                        *model, known == kKnown.end() ? "" : fmt::format(" ({})", known->second),
                        kOtherTokenizer));
}

// Distinct texts; an empty one gets the name that llama.cpp gives it.
std::vector<std::string> ReadTexts(const TokenizerKeys& keys) {
  constexpr const char* kKey = "ggml.tokens";
  std::vector<std::string> texts = keys.Require<std::vector<std::string>>(kKey);
  if (texts.empty() || std::ssize(texts) > kMaxTokens) {
    keys.Fail(kKey, fmt::format("expected 1 to {} tokens, found {}", kMaxTokens, texts.size()));
  }
  PieceTable ids(texts.size());
  for (std::int32_t id = 0; id < std::ssize(texts); ++id) {
    std::string& text = texts[id];
    if (text.empty()) text = fmt::format("[EMPTY_{}]", id);
    std::string storage;
    if (ValidUtf8(text, &storage).data() != text.data()) {
      keys.Fail(kKey, fmt::format("token {} is not UTF-8 ('{}'); expected text", id, storage));
    }
    if (!ids.Insert(text, id)) {
      keys.Fail(kKey,
                fmt::format("'{}' has two ids, {} and {}; expected one", text, ids.Find(text), id));
    }
  }
  return texts;
}

void CheckSize(const TokenizerKeys& keys, std::string_view key, std::size_t found,
               std::size_t tokens) {
  if (found == tokens) return;
  keys.Fail(key, fmt::format("has {} values for {} tokens; expected as many", found, tokens));
}

std::vector<GgufTokenType> ReadTypes(const TokenizerKeys& keys, std::size_t tokens) {
  constexpr const char* kKey = "ggml.token_type";
  std::vector<GgufTokenType> types(tokens, GgufTokenType::kNormal);
  const auto* numbers = keys.Get<std::vector<std::int32_t>>(kKey);
  if (numbers == nullptr) return types;
  CheckSize(keys, kKey, numbers->size(), tokens);
  for (std::size_t id = 0; id < tokens; ++id) {
    const std::int32_t number = (*numbers)[id];
    types[id] =
        number >= 1 && number <= 6 ? static_cast<GgufTokenType>(number) : GgufTokenType::kUndefined;
  }
  return types;
}

std::vector<float> ReadScores(const TokenizerKeys& keys, std::size_t tokens) {
  constexpr const char* kKey = "ggml.scores";
  std::vector<float> scores(tokens, 0.0f);
  if (keys.HoldsArray<std::vector<std::int32_t>>(kKey)) {  // as old files have them
    const auto& numbers = *keys.Get<std::vector<std::int32_t>>(kKey);
    CheckSize(keys, kKey, numbers.size(), tokens);
    std::transform(numbers.begin(), numbers.end(), scores.begin(),
                   [](std::int32_t score) { return static_cast<float>(score); });
  } else if (const auto* numbers = keys.Get<std::vector<float>>(kKey)) {
    CheckSize(keys, kKey, numbers->size(), tokens);
    scores = *numbers;
  }
  const auto bad = std::ranges::find_if(scores, [](float s) { return std::isnan(s); });
  if (bad != scores.end()) {
    // It has no place in an order.
    keys.Fail(kKey,
              fmt::format("token {} has the score NaN; expected a number", bad - scores.begin()));
  }
  return scores;
}

// "left right", where left begins with any character.
std::vector<std::pair<std::string, std::string>> ReadMerges(const TokenizerKeys& keys) {
  constexpr const char* kKey = "ggml.merges";
  std::vector<std::pair<std::string, std::string>> merges;
  const auto& texts = keys.Require<std::vector<std::string>>(kKey);
  merges.reserve(texts.size());
  for (const std::string& text : texts) {
    const std::size_t space = text.find(' ', 1);
    if (space == std::string::npos) {
      keys.Fail(kKey, fmt::format("merge {} is '{}'; expected two tokens and a space between them",
                                  merges.size(), text));
    }
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

// tokenizer.chat_template is the default; others have their names behind it, but for that of
// decisions, which is no template of chats.
std::vector<ChatTemplateText> ReadTemplates(const TokenizerKeys& keys) {
  constexpr std::string_view kPrefix = "tokenizer.chat_template.";
  std::vector<ChatTemplateText> templates;
  const auto* plain = keys.Get<std::string>("chat_template");
  if (plain != nullptr) templates.push_back({"default", *plain});
  for (const GgufEntry& entry : keys.metadata().entries()) {
    if (!entry.key.starts_with(kPrefix) || entry.key == kDecisionTemplateKey) continue;
    const std::string name = entry.key.substr(kPrefix.size());
    const auto& text = *keys.Get<std::string>("chat_template." + name);
    if (name == "default" && plain != nullptr) continue;
    templates.push_back({name, text});
  }
  std::stable_partition(templates.begin(), templates.end(),
                        [](const ChatTemplateText& t) { return t.name == "default"; });
  return templates;
}

// llama.cpp goes by the name of the model.
void ReadStripping(const TokenizerKeys& keys, GgufVocabulary* vocabulary) {
  const GgufValue* value = keys.metadata().Find(kGgufName);
  const auto* name = value == nullptr ? nullptr : std::get_if<std::string>(value);
  if (name == nullptr) return;
  const std::string lower = LowerCase(*name);
  vocabulary->strips_after_special =
      lower.find("phi-3") != std::string::npos || lower.find("phi3") != std::string::npos;
  if (!vocabulary->strips_after_special) return;
  constexpr auto kKeep = std::to_array<std::string_view>({"<unk>", "<s>", "<|endoftext|>"});
  for (std::int32_t id = 0; id < std::ssize(vocabulary->texts); ++id) {
    const bool keeps = std::ranges::find(kKeep, vocabulary->texts[id]) != kKeep.end();
    if (keeps) vocabulary->keeps_space_after.push_back(id);
  }
}

}  // namespace

GgufVocabulary ReadGgufVocabulary(const std::filesystem::path& path) {
  const TokenizerKeys keys(path);
  GgufVocabulary vocabulary;
  vocabulary.where = keys.where();
  vocabulary.kind = ReadKind(keys);
  vocabulary.texts = ReadTexts(keys);
  vocabulary.types = ReadTypes(keys, vocabulary.texts.size());
  if (vocabulary.kind == TokenizerKind::kByteLevelBpe) {
    if (const auto* pre = keys.Get<std::string>("ggml.pre")) vocabulary.pre = *pre;
    const auto rule = FindGgufPreTokenizer(vocabulary.pre);
    if (!rule) {
      keys.Fail("ggml.pre", fmt::format("'{}' is not supported, so that text would be split in "
                                        "another way than the model learnt; expected one of {}; {}",
                                        vocabulary.pre, GgufPreTokenizerNames(), kOtherTokenizer));
    }
    vocabulary.pre_tokenizer = *rule;
    vocabulary.merges = ReadMerges(keys);
  } else if (*keys.Get<std::string>("ggml.model") == kMergedPieces) {
    // The model's name says all; llama.cpp reads no other key of this kind.
    vocabulary.pre = kMergedPieces;
    vocabulary.has_merges = true;
    vocabulary.merges = ReadMerges(keys);
  } else {
    vocabulary.scores = ReadScores(keys, vocabulary.texts.size());
    const auto* add_space = keys.Get<bool>("ggml.add_space_prefix");
    vocabulary.add_space_prefix = add_space == nullptr || *add_space;
  }
  ReadGgufRoles(keys, &vocabulary);
  ReadStripping(keys, &vocabulary);
  vocabulary.chat_templates = ReadTemplates(keys);
  return vocabulary;
}

}  // namespace qlora
