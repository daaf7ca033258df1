// Writes the tokenizer into GGUF metadata, in the form that llama.cpp expects.
#include "export/gguf/gguf_tokenizer_keys.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/check.h"
#include "base/text.h"
#include "export/gguf/gguf_pre_names.h"
#include "tokenizer/byte_characters.h"
#include "tokenizer/gguf/gguf_roles.h"
#include "tokenizer/gguf/gguf_vocabulary.h"

namespace qlora {
namespace {

using enum GgufTokenType;

std::int32_t NumberOf(GgufTokenType type) { return static_cast<std::int32_t>(type); }

bool IsByteToken(const std::string& piece) { return ByteOfToken(piece) >= 0; }

// llama.cpp merges the pair whose result has the highest score; the order of the merges, negated,
// gives the same sequence.
std::vector<float> ScoresOf(const TokenizerSpec& spec) {
  if (!spec.scores.empty()) return spec.scores;
  std::map<std::string, float> rank;
  for (std::size_t i = 0; i < spec.merges.size(); ++i) {
    // emplace keeps the first: of two merges with one result, the earlier one counts.
    rank.emplace(spec.merges[i].first + spec.merges[i].second, -static_cast<float>(i));
  }
  const float lowest = -static_cast<float>(spec.merges.size());
  std::vector<float> scores;
  for (const std::string& piece : spec.pieces) {
    const auto it = rank.find(piece);
    scores.push_back(it == rank.end() ? lowest : it->second);
  }
  return scores;
}

std::vector<std::int32_t> TokenTypes(const Tokenizer& tokenizer, const TokenizerSpec& spec) {
  if (!spec.token_types.empty()) return spec.token_types;
  std::vector<std::int32_t> types;
  for (const std::string& piece : spec.pieces) {
    const bool byte = spec.kind != TokenizerKind::kByteLevelBpe && IsByteToken(piece);
    types.push_back(NumberOf(piece.empty() ? kUnused : byte ? kByte : kNormal));
  }
  for (const AddedToken& token : spec.added_tokens) {
    // Added tokens override the type that their text suggests. llama.cpp prints user-defined
    // tokens as they are, U+2581 too, but no control tokens.
    const bool spaces = spec.kind != TokenizerKind::kByteLevelBpe &&
                        token.content.find(kMetaspace) != std::string::npos;
    types[token.id] = NumberOf(token.special ? kControl : spaces ? kNormal : kUserDefined);
  }
  if (tokenizer.unk_id() && spec.kind != TokenizerKind::kByteLevelBpe) {
    types[*tokenizer.unk_id()] = NumberOf(kUnknown);
  }
  return types;
}

GgufArray MergesOf(const TokenizerSpec& spec) {
  std::vector<std::string> merges;
  for (const auto& [left, right] : spec.merges) merges.push_back(left + " " + right);
  return GgufArray(std::move(merges));
}

// Refuses tokens without a row of the embedding that a text may hold.
void CheckBeyondRows(const Tokenizer& tokenizer, std::int64_t rows) {
  const TokenizerSpec& spec = tokenizer.spec();
  const auto refuse = [&](std::int64_t id, std::string_view what) {
    ThrowInvalidInput(
        "the tokenizer has {} tokens but the embedding only {} rows: token {} ('{}') has no row, "
        "and {}; the tokenizer belongs to another model, or the embedding was not resized",
        spec.pieces.size(), rows, id, spec.pieces[id], what);
  };
  std::set<std::int64_t> added;
  for (const AddedToken& token : spec.added_tokens) added.insert(token.id);
  for (std::int64_t id = rows; id < std::ssize(spec.pieces); ++id) {
    const std::string& piece = spec.pieces[id];
    if (piece.empty()) continue;
    if (!added.contains(id)) refuse(id, "is a piece of ordinary text");
    if (tokenizer.bos_id() == id) refuse(id, "is BOS");
    const auto& ends = tokenizer.eos_ids();
    if (std::ranges::find(ends, id) != ends.end()) refuse(id, "is EOS");
    if (tokenizer.unk_id() == id) refuse(id, "is the token of unknown characters");
    for (const ChatTemplateText& chat : spec.chat_templates) {
      if (chat.text.find(piece) != std::string::npos) refuse(id, "is in the chat template");
    }
  }
}

void CheckByteTokens(const TokenizerSpec& spec) {
  const auto bytes = std::ranges::count_if(spec.pieces, IsByteToken);
  if (bytes >= 256) return;
  ThrowInvalidInput(
      "this tokenizer has {} of the 256 byte pieces <0x00> ... <0xFF>; llama.cpp crashes on "
      "unknown characters without them",
      bytes);
}

// Returns the tokens besides EOS that end a generation, for the two keys of such tokens. Chat
// models end turns with one of the texts below: it is first, unless both keys are needed for tokens
// that llama.cpp does not know by their texts.
std::vector<std::int32_t> OtherEnds(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ends;
  for (const std::int32_t id : tokenizer.eos_ids()) {
    if (id != tokenizer.eos_id() && !EndsByText(tokenizer.TokenText(id))) ends.push_back(id);
  }
  // The <|end|> of models with <|return|> ends a part of the answer.
  const bool has_parts = tokenizer.IdOf("<|return|>").has_value();
  for (const char* end_of_turn :
       {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>", has_parts ? "" : "<|end|>"}) {
    const std::optional<std::int32_t> id = tokenizer.IdOf(end_of_turn);
    if (!id) continue;
    if (ends.size() < 2) ends.insert(ends.begin(), *id);
    break;
  }
  return ends;
}

// The tokens of a file, one for each row of the embedding.
struct Vocabulary {
  std::vector<std::string> pieces;
  std::vector<std::int32_t> types;
};

Vocabulary VocabularyOf(const Tokenizer& tokenizer, std::int64_t rows,
                        std::vector<std::string>& notes) {
  Vocabulary out = {tokenizer.spec().pieces, TokenTypes(tokenizer, tokenizer.spec())};
  if (std::ssize(out.pieces) > rows) {
    CheckBeyondRows(tokenizer, rows);
    notes.push_back(fmt::format(
        "the tokenizer has {} tokens and the embedding {} rows: the added tokens from {} on ('{}') "
        "are left out",
        out.pieces.size(), rows, rows, out.pieces[rows]));
    out.pieces.resize(static_cast<std::size_t>(rows));
    out.types.resize(out.pieces.size());
  }
  for (std::size_t i = 0; i < out.pieces.size(); ++i) {
    // Distinct texts, because llama.cpp keeps a table from text to id.
    if (out.pieces[i].empty()) out.pieces[i] = fmt::format("[UNUSED{}]", i);
  }
  // llama.cpp takes the size of the vocabulary from this list, and refuses an embedding with more
  // rows.
  while (std::ssize(out.pieces) < rows) {  // a padded embedding
    out.pieces.push_back(fmt::format("[PAD{}]", out.pieces.size()));
    out.types.push_back(NumberOf(kUnused));
  }
  return out;
}

void AddKey(const std::string& key, GgufValue value, GgufMetadata& out) {
  out.Add("tokenizer." + key, std::move(value));
}

// The keys of llama.cpp's tokenizer of this kind. tokens: of the file.
void AddKind(const TokenizerSpec& spec, const std::string& architecture, std::size_t tokens,
             bool prefix_space, GgufMetadata& out, std::vector<std::string>& notes) {
  switch (spec.kind) {
    case TokenizerKind::kByteLevelBpe: {
      AddKey("ggml.model", std::string("gpt2"), out);
      AddKey("ggml.pre", GgufPreName(spec, notes), out);
      AddKey("ggml.merges", MergesOf(spec), out);
      break;
    }
    case TokenizerKind::kSentencePieceBpe: {
      CheckByteTokens(spec);
      // Merges in the place of scores: of a GGUF file that has it, and of Gemma 4's own tokenizer.
      if (spec.gguf_pre == "gemma4" || (architecture == "gemma4" && !spec.add_prefix_space)) {
        AddKey("ggml.model", std::string("gemma4"), out);
        AddKey("ggml.merges", MergesOf(spec), out);
        AddKey("ggml.add_space_prefix", false, out);
        break;
      }
      AddKey("ggml.model", std::string("llama"), out);
      AddKey("ggml.pre", std::string("default"), out);
      std::vector<float> scores = ScoresOf(spec);
      scores.resize(tokens, -static_cast<float>(spec.merges.size()));
      AddKey("ggml.scores", GgufArray(std::move(scores)), out);
      AddKey("ggml.add_space_prefix", prefix_space, out);
      break;
    }
  }
}

// The ids of special tokens that have a row.
void AddSpecialIds(const Tokenizer& tokenizer, std::int64_t rows, GgufMetadata& out,
                   std::vector<std::string>& notes) {
  const auto add_id = [&](const char* key, std::optional<std::int32_t> id) {
    if (id && *id < rows) AddKey(key, static_cast<std::uint32_t>(*id), out);
  };
  add_id("ggml.bos_token_id", tokenizer.bos_id());
  add_id("ggml.eos_token_id", tokenizer.eos_id());
  add_id("ggml.unknown_token_id", tokenizer.unk_id());
  add_id("ggml.padding_token_id", tokenizer.pad_id());
  const std::vector<std::int32_t> ends = OtherEnds(tokenizer);
  if (!ends.empty()) add_id("ggml.eot_token_id", ends[0]);
  if (ends.size() > 1) add_id("ggml.eom_token_id", ends[1]);
  if (ends.size() > 2) {
    notes.push_back(
        fmt::format("GGUF has keys for EOS and two further ends: llama.cpp does not stop at '{}'",
                    tokenizer.TokenText(ends[2])));
  }
}

void AddChatTemplates(const TokenizerSpec& spec, GgufMetadata& out) {
  std::vector<std::string> names;
  for (const ChatTemplateText& chat : spec.chat_templates) {
    if (chat.name == "default") {
      AddKey("chat_template", chat.text, out);
    } else {
      AddKey("chat_template." + chat.name, chat.text, out);
      names.push_back(chat.name);
    }
  }
  if (!names.empty()) AddKey("chat_templates", GgufArray(names), out);
}

}  // namespace

std::string NameForTokenizer(const std::string& name, const Tokenizer& tokenizer,
                             std::vector<std::string>& notes) {
  const TokenizerSpec& spec = tokenizer.spec();
  if (spec.kind == TokenizerKind::kByteLevelBpe) return name;
  const bool strips = std::ranges::any_of(
      spec.added_tokens, [](const AddedToken& token) { return token.special && token.rstrip; });
  const std::string lower = LowerCase(name);
  const bool named =
      lower.find("phi-3") != std::string::npos || lower.find("phi3") != std::string::npos;
  if (named == strips) return name;
  // llama.cpp refuses the name without this token.
  if (strips && !tokenizer.IdOf("<|endoftext|>")) return name;
  std::string other = strips ? name + " (phi-3)" : name;
  for (std::size_t at = 0; !strips && (at = LowerCase(other).find("phi", at)) != std::string::npos;
       at += 3) {
    if (other.compare(at + 3, 1, "3") == 0) other.insert(at + 3, " ");
    if (other.compare(at + 3, 2, "-3") == 0) other.replace(at + 3, 1, " ");
  }
  notes.push_back(fmt::format(
      "general.name is '{}': llama.cpp tokenizes by whether the name contains phi-3", other));
  return other;
}

void AddTokenizerMetadata(const Tokenizer& tokenizer, const std::string& architecture,
                          std::int64_t rows, bool prefix_space, GgufMetadata& out,
                          std::vector<std::string>& notes) {
  const TokenizerSpec& spec = tokenizer.spec();
  Vocabulary vocabulary = VocabularyOf(tokenizer, rows, notes);
  AddKind(spec, architecture, vocabulary.pieces.size(), prefix_space, out, notes);
  AddKey("ggml.tokens", GgufArray(std::move(vocabulary.pieces)), out);
  AddKey("ggml.token_type", GgufArray(std::move(vocabulary.types)), out);
  AddSpecialIds(tokenizer, rows, out, notes);
  AddKey("ggml.add_bos_token", tokenizer.adds_bos(), out);
  AddKey("ggml.add_eos_token", tokenizer.adds_eos(), out);
  AddChatTemplates(spec, out);
}

}  // namespace qlora
