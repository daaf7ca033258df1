// Text <-> token ids, as Hugging Face tokenizers (Rust crate "tokenizers" 0.23) does it with the
// same tokenizer.json, for byte-pair encodings: byte-level encodings (GPT-2, Llama 3, Qwen) and
// SentencePiece's (Llama 2, Mistral, Gemma). The files of this folder are named for the stages.
//
// Encode, here with Llama 3:
//     "It's 2024<|eot_id|>"
//         |  added_tokens     cuts out added tokens, whose ids are known
//     "It's 2024" 128009
//         |  normalizer       rewrites the text between: NFC, or " " to U+2581 (Llama 3 has none);
//         |                   then added tokens that count in normalized text are cut out
//     "It's 2024" 128009
//         |  pre_tokenizer    cuts into words, at the matches of a split_pattern
//     "It" "'s" " " "202" "4" 128009
//         |  bpe              merges the symbols of each word and remembers the results
//     2181 596 220 2366 19 128009
//         |  post_processor   puts BOS or EOS around the ids
//     128000 2181 596 220 2366 19 128009
//
// Decode: token_decoder, from the texts of the pieces ("It" "'s" "\u0120" "202" "4") back to text.
#ifndef QLORA_TOKENIZER_TOKENIZER_H_
#define QLORA_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qlora/context.h"
#include "tokenizer/added_tokens.h"

namespace qlora {

enum class TokenizerKind { kByteLevelBpe, kSentencePieceBpe };

struct ChatTemplateText {
  std::string name;  // "default", or the name it has in a list
  std::string text;  // Jinja

  bool operator==(const ChatTemplateText&) const = default;
};

// The parts of a tokenizer, for writing it in another format.
struct TokenizerSpec {
  TokenizerKind kind = TokenizerKind::kByteLevelBpe;
  std::uint64_t hash = 0;           // of the text of tokenizer.json, on which encoding depends
  std::vector<std::string> pieces;  // index = id, added tokens included; "" where no token is
  std::vector<std::pair<std::string, std::string>> merges;  // left, right; in order of rank
  std::vector<AddedToken> added_tokens;                     // those of
                                                            // tokenizer.json first
  std::string pre_tokenizer;  // that part of tokenizer.json as JSON text ("null": none)
  std::string normalizer;     // likewise
  bool ignore_merges = false;
  bool byte_fallback = false;
  bool add_prefix_space = false;  // a space (or its stand-in) is put before the text
  std::vector<ChatTemplateText> chat_templates;
  // Of a GGUF file's tokenizer; empty otherwise.
  std::string gguf_pre;                   // the name of its pre-tokenizer
  std::vector<float> scores;              // of each id, with which kSentencePieceBpe merges
  std::vector<std::int32_t> token_types;  // of each id, in the numbers of the format
};

// What the chat templates are read for. An adapter that was trained on a layout of plain text may
// have a template that shows this layout to other programs; it does not render conversations here.
enum class TemplateUse {
  kRender,
  kShow,  // in a file for other programs
};

// How a text is read that brings its own special tokens and spaces.
struct EncodeOptions {
  bool special_tokens = true;  // with the tokens that the post-processor puts around the text
  bool prefix_space = true;  // false: no space, or its stand-in, is put before any part of the text
  // A character that is dropped when added tokens have been looked for: with it inside, the
  // spelling of a token is text. "": none.
  std::string_view mark = {};
};

class Tokenizer {
 public:
  // Reads tokenizer.json and, where present, tokenizer_config.json, special_tokens_map.json,
  // generation_config.json, config.json, chat_template.jinja and additional_chat_templates/*.jinja.
  // Tokens that tokenizer_config.json or added_tokens.json declare and tokenizer.json lacks are
  // added, and add_bos_token and add_eos_token of tokenizer_config.json replace the post-processor,
  // as transformers 5 does both. Truncation and padding are not applied. adapter_dir: each of
  // tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json and
  // chat_template.jinja that is there takes the place of the model's; chat_template_files.h says
  // which template counts. Errors: InvalidInput with file and key when something is missing,
  // malformed or not supported.
  //
  // model_dir may be a GGUF file instead. Its tokenizer encodes as llama.cpp does with special
  // tokens in the text (parse_special), and decodes as it does, but that the space before a text
  // is always removed where the tokenizer puts one there, and that the result is valid UTF-8.
  // Roles and ends are llama.cpp's (gguf/gguf_vocabulary.h). Of adapter_dir, tokenizer.json
  // replaces the whole tokenizer, together with its tokenizer_config.json and
  // special_tokens_map.json, and chat templates count as above.
  static Tokenizer Load(const std::filesystem::path& model_dir,
                        const std::filesystem::path& adapter_dir = {},
                        TemplateUse use = TemplateUse::kRender);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Added tokens in the text are recognised. Ill-formed UTF-8 counts as U+FFFD (see ValidUtf8).
  // add_special_tokens: with the tokens that the post-processor puts around the text (BOS, EOS).
  // May be called by several threads at once.
  std::vector<std::int32_t> Encode(std::string_view text, bool add_special_tokens = true) const;
  std::vector<std::int32_t> Encode(std::string_view text, const EncodeOptions& options) const;

  // Encode of each text, on the threads of the context.
  std::vector<std::vector<std::int32_t>> EncodeBatch(Context& context,
                                                     std::span<const std::string_view> texts,
                                                     bool add_special_tokens = true) const;

  // Ids without a token give no text. The result is valid UTF-8.
  std::string Decode(std::span<const std::int32_t> ids, bool skip_special_tokens = true) const;

  // Decode piece by piece: the texts of all Add() and of Finish(), put together, are
  // Decode(all ids). The tokenizer must outlive it.
  class StreamDecoder {
   public:
    // context: ids before the stream, whose text is not returned. After a prompt, the first word
    // keeps the space that Decode would strip at the start of a text.
    explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true,
                           std::span<const std::int32_t> context = {});
    ~StreamDecoder();
    StreamDecoder(StreamDecoder&&) noexcept;
    StreamDecoder& operator=(StreamDecoder&&) noexcept;

    // The text that is certain with this id: whole characters that no later id can change.
    std::string Add(std::int32_t id);
    std::string Finish();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  // From tokenizer_config.json; otherwise special_tokens_map.json; otherwise (bos, eos, pad) the
  // ids in generation_config.json or config.json.
  std::optional<std::int32_t> bos_id() const;
  std::optional<std::int32_t> eos_id() const;
  std::optional<std::int32_t> pad_id() const;
  std::optional<std::int32_t> unk_id() const;
  // Tokens with further roles: keys of tokenizer_config.json, and ids.
  const std::vector<std::pair<std::string, std::int32_t>>& other_roles() const;
  // All ids that end a text: eos_id(), and the ids of generation_config.json, or of config.json
  // when the former has none. Ascending.
  const std::vector<std::int32_t>& eos_ids() const;

  // True when Encode puts bos_id() first, eos_id() last.
  bool adds_bos() const;
  bool adds_eos() const;

  // 1 + the highest id, added tokens included.
  std::int64_t vocab_size() const;
  // "" when there is no such token.
  std::string TokenText(std::int32_t id) const;
  std::optional<std::int32_t> IdOf(std::string_view token) const;
  bool IsSpecial(std::int32_t id) const;

  // True where nobody could tell the two apart by what they make of texts and ids, by the roles of
  // tokens, or by the chat templates, however their files are written.
  bool IsSameAs(const Tokenizer& other) const;

  const TokenizerSpec& spec() const;

 private:
  class Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKENIZER_H_
