#include "tokenizer/gguf/gguf_tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "io/json_fwd.h"
#include "tokenizer/lookup_tables.h"
#include "tokenizer/score_merges.h"
#include "tokenizer/tokenizer_impl.h"

namespace qlora {
namespace {

std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

// A list or an object of items that are JSON already.
std::string Joined(const std::vector<std::string>& items, std::string_view brackets) {
  std::string text(1, brackets[0]);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += ",\n";
    text += items[i];
  }
  return text + brackets[1];
}

using Merges = std::vector<std::pair<std::string, std::string>>;

// The merges of two tokens that llama.cpp may make of the scores, the best first.
Merges MergesOf(const GgufVocabulary& vocabulary) {
  if (vocabulary.kind == TokenizerKind::kByteLevelBpe || vocabulary.has_merges) {
    return vocabulary.merges;
  }
  PieceTable ids(vocabulary.texts.size());
  for (std::int32_t id = 0; id < std::ssize(vocabulary.texts); ++id) {
    ids.Insert(vocabulary.texts[id], id);
  }
  Merges merges;
  for (const auto& [left, right, result] :
       MergesOfScores(vocabulary.texts, ids, vocabulary.scores).merges) {
    if (left < 0 || right < 0) continue;
    merges.emplace_back(vocabulary.texts[left], vocabulary.texts[right]);
  }
  return merges;
}

bool IsLineFeeds(std::string_view text) {
  return text.find_first_not_of('\n') == std::string_view::npos;
}

// How many tokens the merges make of some line feeds. ranks: of the merges of line feeds, by the
// sizes of their parts.
std::size_t MergeLineFeeds(
    std::size_t count, const std::map<std::pair<std::size_t, std::size_t>, std::size_t>& ranks) {
  std::vector<std::size_t> sizes(count, 1);
  while (true) {
    std::optional<std::pair<std::size_t, std::size_t>> best;  // rank, place
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      const auto rank = ranks.find({sizes[i], sizes[i + 1]});
      if (rank != ranks.end() && (!best || rank->second < best->first)) best = {rank->second, i};
    }
    if (!best) return sizes.size();
    sizes[best->second] += sizes[best->second + 1];
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(best->second) + 1);
  }
}

// llama.cpp takes line feeds that are one token for that token, and tokenizer.json what its merges
// make of them: the same in the vocabularies of Gemma. Errors: InvalidInput where it is not.
void CheckLineFeeds(const GgufVocabulary& vocabulary) {
  constexpr std::size_t kMost = 256;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const auto& [left, right] = vocabulary.merges[rank];
    if (IsLineFeeds(left) && IsLineFeeds(right))
      ranks.try_emplace({left.size(), right.size()}, rank);
  }
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const std::string& text = vocabulary.texts[id];
    if (text.size() < 2 || !IsLineFeeds(text)) continue;
    if (text.size() <= kMost && MergeLineFeeds(text.size(), ranks) == 1) continue;
    ThrowInvalidInput(
        "{}: token {} has {} line feeds, which llama.cpp takes whole and which the merges do not "
        "make: no tokenizer.json does the same; take the tokenizer's files of the checkpoint that "
        "the file was made from",
        vocabulary.where, id, text.size());
  }
}

std::string MergesText(const GgufVocabulary& vocabulary) {
  const Merges merges = MergesOf(vocabulary);
  // Old readers know one text for each merge, which must have one space.
  const bool are_texts = std::ranges::none_of(merges, [](const auto& merge) {
    return merge.first.find(' ') != std::string::npos ||
           merge.second.find(' ') != std::string::npos;
  });
  std::set<std::pair<std::string, std::string>> seen;
  std::vector<std::string> items;
  for (const auto& merge : merges) {
    // Of two merges of one pair the first counts here, the last in tokenizer.json.
    if (!seen.insert(merge).second) continue;
    const auto& [left, right] = merge;
    items.push_back(are_texts ? Quoted(left + " " + right)
                              : "[" + Quoted(left) + "," + Quoted(right) + "]");
  }
  return Joined(items, "[]");
}

std::string VocabularyText(const GgufVocabulary& vocabulary) {
  std::vector<std::string> items;
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    items.push_back(Quoted(vocabulary.texts[id]) + ":" + std::to_string(id));
  }
  return Joined(items, "{}");
}

// BOS and EOS around a text.
OrderedJson PostProcessorOf(const GgufVocabulary& vocabulary) {
  if (!vocabulary.adds.bos && !vocabulary.adds.eos) return nullptr;
  OrderedJson tokens = OrderedJson::object();
  const auto sides = [&](const std::vector<std::string>& texts) {
    OrderedJson sequence = OrderedJson::array();
    const auto add = [&](std::int32_t id, int type) {
      const std::string& token = vocabulary.texts[id];
      tokens[token] = {{"id", token},
                       {"ids", OrderedJson::array({id})},
                       {"tokens", OrderedJson::array({token})}};
      sequence.push_back({{"SpecialToken", {{"id", token}, {"type_id", type}}}});
    };
    for (int type = 0; type < static_cast<int>(texts.size()); ++type) {
      if (vocabulary.adds.bos) add(*vocabulary.roles.bos, type);
      sequence.push_back({{"Sequence", {{"id", texts[type]}, {"type_id", type}}}});
      if (vocabulary.adds.eos) add(*vocabulary.roles.eos, type);
    }
    return sequence;
  };
  OrderedJson single = sides({"A"});
  OrderedJson pair = sides({"A", "B"});
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(tokens)}};
}

OrderedJson DecoderOf(const GgufVocabulary& vocabulary) {
  if (vocabulary.kind == TokenizerKind::kByteLevelBpe) {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", false},
            {"use_regex", false}};
  }
  OrderedJson steps = {
      {{"type", "Replace"}, {"pattern", {{"String", kMetaspace}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}}};
  if (vocabulary.add_space_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

OrderedJson AddedTokensOf(const GgufVocabulary& vocabulary) {
  OrderedJson tokens = OrderedJson::array();
  for (std::int32_t id = 0; id < std::ssize(vocabulary.texts); ++id) {
    const GgufTokenType type = vocabulary.types[id];
    if (!IsSearched(type)) continue;
    tokens.push_back({{"id", id},
                      {"content", vocabulary.texts[id]},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", vocabulary.TakesSpaceBehind(id)},
                      {"normalized", false},
                      {"special", IsHidden(type)}});
  }
  return tokens;
}

// A vocabulary as a tree would take a hundred bytes for each entry.
std::string TokenizerJsonText(const GgufVocabulary& vocabulary) {
  const bool pieces = vocabulary.kind == TokenizerKind::kSentencePieceBpe;
  const auto& unk = vocabulary.roles.unk;
  const std::string& known = vocabulary.pre_tokenizer.trained;
  const nlohmann::json pre =
      known.empty() ? PreTokenizerOf(vocabulary) : ByteLevelPreTokenizer({known});
  const std::pair<const char*, std::string> parts[] = {
      {"version", "\"1.0\""},
      {"truncation", "null"},
      {"padding", "null"},
      {"added_tokens", AddedTokensOf(vocabulary).dump(1)},
      {"normalizer", NormalizerOf(vocabulary).dump(1)},
      {"pre_tokenizer", pre.dump(1)},
      {"post_processor", PostProcessorOf(vocabulary).dump(1)},
      {"decoder", DecoderOf(vocabulary).dump(1)},
  };
  std::string text = "{\n";
  for (const auto& [key, value] : parts) text += fmt::format("\"{}\": {},\n", key, value);
  const OrderedJson model = {
      {"type", "BPE"},
      {"dropout", nullptr},
      {"unk_token", pieces && unk ? OrderedJson(vocabulary.texts[*unk]) : OrderedJson(nullptr)},
      {"continuing_subword_prefix", nullptr},
      {"end_of_word_suffix", nullptr},
      {"fuse_unk", pieces},
      {"byte_fallback", pieces},
      {"ignore_merges", vocabulary.pre_tokenizer.ignore_merges}};
  std::string open = model.dump(1);
  open.resize(open.rfind('\n'));
  return text + "\"model\": " + open + ",\n \"vocab\": " + VocabularyText(vocabulary) +
         ",\n \"merges\": " + MergesText(vocabulary) + "\n}\n}\n";
}

std::string TokenizerConfigText(const GgufVocabulary& vocabulary) {
  // The class that takes tokenizer.json as it is. Others build their stages anew.
  // Without the list of inputs it would make another one, which decoders refuse.
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"model_input_names", {"input_ids", "attention_mask"}},
                        {"add_bos_token", vocabulary.adds.bos},
                        {"add_eos_token", vocabulary.adds.eos},
                        {"clean_up_tokenization_spaces", false}};
  const TokenRoles& roles = vocabulary.roles;
  for (const auto& [key, id] :
       {std::pair("bos_token", roles.bos), std::pair("eos_token", roles.eos),
        std::pair("pad_token", roles.pad), std::pair("unk_token", roles.unk)}) {
    if (id) config[key] = vocabulary.texts[*id];
  }
  const auto& templates = vocabulary.chat_templates;
  if (templates.size() == 1 && templates[0].name == "default") {
    config["chat_template"] = templates[0].text;
  } else {
    for (const ChatTemplateText& chat : templates) {
      config["chat_template"].push_back({{"name", chat.name}, {"template", chat.text}});
    }
  }
  return config.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

bool IsSearched(GgufTokenType type) {
  return type == GgufTokenType::kControl || type == GgufTokenType::kUnknown ||
         type == GgufTokenType::kUserDefined;
}
bool IsHidden(GgufTokenType type) {
  return type == GgufTokenType::kControl || type == GgufTokenType::kUnknown;
}

nlohmann::json NormalizerOf(const GgufVocabulary& vocabulary) {
  if (vocabulary.kind == TokenizerKind::kByteLevelBpe) return nullptr;
  const nlohmann::json spaces = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMetaspace}};
  if (!vocabulary.add_space_prefix) return spaces;
  const nlohmann::json prefix = {{"type", "Prepend"}, {"prepend", kMetaspace}};
  return {{"type", "Sequence"}, {"normalizers", {prefix, spaces}}};
}

nlohmann::json PreTokenizerOf(const GgufVocabulary& vocabulary) {
  // Gemma 4 merges pieces within lines.
  if (vocabulary.has_merges) {
    return {{"type", "Split"},
            {"pattern", {{"Regex", R"([^\n]+|[\n]+)"}}},
            {"behavior", "Isolated"},
            {"invert", false}};
  }
  if (vocabulary.kind != TokenizerKind::kByteLevelBpe) return nullptr;
  return ByteLevelPreTokenizer(vocabulary.pre_tokenizer.splits);
}

nlohmann::json ByteLevelPreTokenizer(const std::vector<std::string>& splits) {
  nlohmann::json steps = nlohmann::json::array();
  for (const std::string& regex : splits) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", regex}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", false},
                   {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

nlohmann::json TokenIdsOf(const TokenRoles& roles) {
  nlohmann::json ids;
  for (const auto& [key, id] :
       {std::pair("bos_token_id", roles.bos), std::pair("eos_token_id", roles.eos),
        std::pair("pad_token_id", roles.pad)}) {
    ids[key] = id ? nlohmann::json(*id) : nlohmann::json(nullptr);
  }
  const std::vector<std::int32_t>& ends = roles.all_eos;
  if (ends.size() == 1) ids["eos_token_id"] = ends[0];
  if (ends.size() > 1) ids["eos_token_id"] = ends;
  return ids;
}

std::map<std::string, std::string> TokenizerFilesOf(const GgufVocabulary& vocabulary) {
  if (vocabulary.has_merges) CheckLineFeeds(vocabulary);
  return {{"tokenizer.json", TokenizerJsonText(vocabulary)},
          {"tokenizer_config.json", TokenizerConfigText(vocabulary)},
          {"generation_config.json", TokenIdsOf(vocabulary.roles).dump(2) + "\n"}};
}

}  // namespace qlora
