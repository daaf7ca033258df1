// The tokenizer keys of a GGUF file as llama.cpp reads them: defaults by the kind of model, tokens
// whose texts give them a role, and ends of generation. export/gguf/gguf_tokenizer_keys.h writes
// them.
#ifndef QLORA_TOKENIZER_GGUF_GGUF_VOCABULARY_H_
#define QLORA_TOKENIZER_GGUF_GGUF_VOCABULARY_H_

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/gguf/gguf_pre_tokenizers.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The template of a model that decides (inference/decision_source.h), which is not among
// chat_templates.
inline constexpr const char* kDecisionTemplateKey = "tokenizer.chat_template.systemone";

// llama.cpp's types of tokens; the numbers are those of the format.
enum class GgufTokenType : std::int32_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct GgufVocabulary {
  std::string where;  // the file, for errors
  TokenizerKind kind = TokenizerKind::kByteLevelBpe;
  std::vector<std::string> texts;    // index = id; all different, valid UTF-8
  std::vector<GgufTokenType> types;  // of each id
  // Of byte-level encodings; the merges also of Gemma 4's.
  std::string pre;  // "" where the file names none
  GgufPreTokenizer pre_tokenizer;
  std::vector<std::pair<std::string, std::string>> merges;  // left, right; in order of rank
  // Of SentencePiece.
  std::vector<float> scores;  // of each id; never NaN
  bool add_space_prefix = false;
  bool has_merges = false;  // Gemma 4's: pieces as of SentencePiece, and merges in place of scores

  TokenRoles roles;
  AddedEnds adds;
  // Special tokens take the white space behind them, but for these ids (phi-3).
  bool strips_after_special = false;
  std::vector<std::int32_t> keeps_space_after;
  bool TakesSpaceBehind(std::int32_t id) const {
    return strips_after_special && std::find(keeps_space_after.begin(), keeps_space_after.end(),
                                             id) == keeps_space_after.end();
  }
  std::vector<ChatTemplateText> chat_templates;  // "default" first
};

// Errors: InvalidInput, with file and key, for values that are missing, of another type, that
// disagree, or that name tokens that are not there; for kinds of tokenizers and pre-tokenizers that
// are not supported.
GgufVocabulary ReadGgufVocabulary(const std::filesystem::path& path);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_GGUF_GGUF_VOCABULARY_H_
