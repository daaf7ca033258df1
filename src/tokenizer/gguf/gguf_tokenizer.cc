// A GGUF file's tokenizer -> Tokenizer::Impl. The stages are those of tokenizer.json, so that they
// are made of the same JSON:
//
//     special_partition  cuts out special tokens, in llama.cpp's order
//     normalizer         SentencePiece: a space before each text between them, " " to U+2581
//     pre_tokenizer      byte-level: the regular expressions that tokenizer.ggml.pre names
//     bpe                merges by rank, or by score (score_merges.h)
//     token_decoder      joins the bytes of the tokens
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "tokenizer/byte_characters.h"
#include "tokenizer/chat_template_files.h"
#include "tokenizer/gguf/gguf_tokenizer_json.h"
#include "tokenizer/gguf/gguf_vocabulary.h"
#include "tokenizer/score_merges.h"
#include "tokenizer/tokenizer_impl.h"

namespace qlora {
namespace {

using Type = GgufTokenType;

// What a token is in a decoded text, in bytes.
std::string BytesOf(const GgufVocabulary& vocabulary, std::int32_t id) {
  const std::string& text = vocabulary.texts[id];
  const Type type = vocabulary.types[id];
  if (IsSearched(type)) return text;
  if (type == Type::kByte) {
    for (int byte = 0; byte < 256; ++byte) {
      if (text == fmt::format("<0x{:02X}>", byte)) return std::string(1, static_cast<char>(byte));
    }
    return text;
  }
  if (type != Type::kNormal) return "";
  if (vocabulary.kind == TokenizerKind::kByteLevelBpe) {
    return BytesOfByteCharacters(text).value_or(text);
  }
  std::string spaced;
  for (std::size_t at = 0; at < text.size();) {
    const bool space = std::string_view(text).substr(at).starts_with(kMetaspace);
    spaced += space ? ' ' : text[at];
    at += space ? kMetaspace.size() : 1;
  }
  return spaced;
}

// Of all that encoding depends on.
std::uint64_t HashOf(const GgufVocabulary& v) {
  std::uint64_t hash =
      HashBytes(fmt::format("gguf {} {} {} {} {} {}", static_cast<int>(v.kind), v.pre,
                            v.add_space_prefix, v.adds.bos, v.adds.eos, v.strips_after_special));
  const auto add = [&](std::string_view text) { hash = MixBits(hash ^ HashBytes(text)); };
  for (const std::string& text : v.texts) add(text);
  for (const auto& [left, right] : v.merges) {
    add(left);
    add(right);
  }
  for (const Type type : v.types) hash = MixBits(hash ^ static_cast<std::uint64_t>(type));
  for (const float score : v.scores) hash = MixBits(hash ^ std::bit_cast<std::uint32_t>(score));
  return hash;
}

}  // namespace

Tokenizer::Impl::Impl(GgufVocabulary vocabulary) {
  const std::string& where = vocabulary.where;
  spec.kind = vocabulary.kind;
  spec.hash = HashOf(vocabulary);
  const nlohmann::json normalizer = NormalizerOf(vocabulary);
  const nlohmann::json pre_tokenizer = PreTokenizerOf(vocabulary);
  stages_.normalizer = Normalizer::Parse(JsonValue(&normalizer, where));
  stages_.pre_tokenizer =
      PreTokenizer::Parse(JsonValue(&pre_tokenizer, where + ": tokenizer.ggml.pre"));
  decoder = TokenDecoder::OfBytes(vocabulary.add_space_prefix);
  spec.normalizer = normalizer.dump();
  spec.pre_tokenizer = pre_tokenizer.dump();
  spec.gguf_pre = vocabulary.pre;
  spec.add_prefix_space = vocabulary.add_space_prefix;
  LoadBareStages(where);
  spec.ignore_merges = vocabulary.pre_tokenizer.ignore_merges;
  spec.byte_fallback = vocabulary.kind == TokenizerKind::kSentencePieceBpe;

  ids = PieceTable(vocabulary.texts.size());
  special.resize(vocabulary.texts.size());
  for (std::int32_t id = 0; id < std::ssize(vocabulary.texts); ++id) {
    ids.Insert(vocabulary.texts[id], id);
    special[id] = IsHidden(vocabulary.types[id]);
    byte_pieces_.push_back(BytesOf(vocabulary, id));
    spec.token_types.push_back(static_cast<std::int32_t>(vocabulary.types[id]));
  }
  LoadGgufModel(vocabulary);
  spec.pieces = std::move(vocabulary.texts);
  spec.merges = std::move(vocabulary.merges);
  spec.scores = std::move(vocabulary.scores);
  LoadGgufSpecials(vocabulary);
  roles = std::move(vocabulary.roles);
  if (vocabulary.adds.bos) post.before = {*roles.bos};
  if (vocabulary.adds.eos) post.after = {*roles.eos};
}

void Tokenizer::Impl::LoadGgufModel(const GgufVocabulary& vocabulary) {
  const auto refuse = [&](std::string_view key, std::int64_t at, std::string_view what) {
    ThrowInvalidInput("{}: key 'tokenizer.ggml.{}': {}: {}", vocabulary.where, key, at, what);
  };
  std::vector<std::pair<std::string, std::int32_t>> pieces;
  pieces.reserve(vocabulary.texts.size());
  for (const std::string& text : vocabulary.texts) {
    pieces.emplace_back(text, static_cast<std::int32_t>(pieces.size()));
  }
  BpeConfig config;
  config.where = vocabulary.where;
  config.pieces = &pieces;
  config.late_fallback = true;
  config.byte_fallback = vocabulary.kind == TokenizerKind::kSentencePieceBpe;
  config.keeps_line_ends = vocabulary.has_merges;
  if (config.byte_fallback && !vocabulary.has_merges) {
    cuts_at_metaspace_ = true;
    std::int64_t work = 0;
    for (const auto& [text, id] : pieces) {
      work += std::ssize(text) * std::ssize(text);
      if (std::ssize(text) > kMaxScoredBytes) {
        refuse("tokens", id,
               fmt::format("the token has {} bytes; expected at most {}", text.size(),
                           kMaxScoredBytes));
      }
      if (work > kMaxScoredWork) {
        refuse("tokens", id,
               fmt::format("the tokens up to this one are too long in all; expected at most {} as "
                           "the sum of the squares of their bytes",
                           kMaxScoredWork));
      }
      cuts_at_metaspace_ = cuts_at_metaspace_ && !HasInnerMetaspace(text);
    }
    ScoreMerges merges = MergesOfScores(vocabulary.texts, ids, vocabulary.scores);
    config.merges = std::move(merges.merges);
    config.ranks = std::move(merges.ranks);
  } else {
    config.byte_level = !config.byte_fallback;
    config.ignore_merges = vocabulary.pre_tokenizer.ignore_merges;
    config.merges.reserve(vocabulary.merges.size());
    MergeTable seen(vocabulary.merges.size());
    for (std::int64_t place = 0; place < std::ssize(vocabulary.merges); ++place) {
      const auto& [left, right] = vocabulary.merges[place];
      const std::string result = left + right;
      const std::array<std::int32_t, 3> merge = {ids.Find(left), ids.Find(right), ids.Find(result)};
      const std::array<const std::string*, 3> texts = {&left, &right, &result};
      for (int i = 0; i < 3; ++i) {
        if (merge[i] >= 0) continue;
        refuse("merges", place,
               fmt::format("'{}' is not in tokenizer.ggml.tokens; expected a token", *texts[i]));
      }
      // Of two merges of one pair the first counts.
      if (seen.Find(merge[0], merge[1]).rank != Merge::kNone) continue;
      seen.Insert(merge[0], merge[1], {0, merge[2]});
      config.merges.push_back(merge);
    }
  }
  model_.emplace(config);
}

// The tokens that are looked for in a text.
void Tokenizer::Impl::LoadGgufSpecials(const GgufVocabulary& vocabulary) {
  std::vector<SpecialPartition::Token> tokens;
  for (std::int32_t id = 0; id < std::ssize(spec.pieces); ++id) {
    const Type type = vocabulary.types[id];
    if (!IsSearched(type)) continue;
    AddedToken token;
    token.id = id;
    token.content = spec.pieces[id];
    token.special = special[id];
    token.rstrip = vocabulary.TakesSpaceBehind(id);
    if (std::ssize(token.content) > AddedTokenMatcher::kMaxTokenBytes) {
      ThrowInvalidInput(
          "{}: key 'tokenizer.ggml.tokens': {}: the special token has {} bytes; "
          "expected at most {}",
          vocabulary.where, id, token.content.size(), AddedTokenMatcher::kMaxTokenBytes);
    }
    tokens.push_back({spec.pieces[id], id, token.rstrip});
    spec.added_tokens.push_back(std::move(token));
  }
  partition_.emplace(std::move(tokens));
}

// An adapter that has its own tokenizer.json was trained with the checkpoint that the file was made
// from, so that the ids are the same.
std::unique_ptr<const Tokenizer::Impl> Tokenizer::Impl::OfGguf(
    const std::filesystem::path& path, const std::filesystem::path& adapter_dir, TemplateUse use) {
  GgufVocabulary vocabulary = ReadGgufVocabulary(path);
  std::vector<ChatTemplateText> templates =
      WithAdapterTemplates(std::move(vocabulary.chat_templates), adapter_dir, use);
  std::unique_ptr<Impl> impl;
  std::error_code ignored;
  if (!adapter_dir.empty() && std::filesystem::exists(adapter_dir / "tokenizer.json", ignored)) {
    impl = std::make_unique<Impl>(adapter_dir, std::filesystem::path(), use);
    std::set<std::int32_t> ends(impl->roles.all_eos.begin(), impl->roles.all_eos.end());
    for (const std::int32_t id : vocabulary.roles.all_eos) {
      const bool same =
          id < std::ssize(impl->spec.pieces) && impl->spec.pieces[id] == vocabulary.texts[id];
      if (same) ends.insert(id);
    }
    impl->roles.all_eos.assign(ends.begin(), ends.end());
  } else {
    impl = std::make_unique<Impl>(std::move(vocabulary));
  }
  impl->spec.chat_templates = std::move(templates);
  return impl;
}

}  // namespace qlora
