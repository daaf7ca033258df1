// The parts of a Tokenizer. Included by tokenizer.cc, tokenizer_impl.cc (tokenizer.json) and
// gguf_tokenizer.cc only.
#ifndef QLORA_TOKENIZER_TOKENIZER_IMPL_H_
#define QLORA_TOKENIZER_TOKENIZER_IMPL_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_characters.h"
#include "tokenizer/chat_template_files.h"
#include "tokenizer/gguf/gguf_vocabulary.h"
#include "tokenizer/lookup_tables.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/split/pre_tokenizer.h"
#include "tokenizer/split/special_partition.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace qlora {

// True when U+2581 appears behind another character.
inline bool HasInnerMetaspace(std::string_view text) {
  std::size_t run = 0;
  while (text.substr(run).starts_with(kMetaspace)) run += kMetaspace.size();
  return text.find(kMetaspace, run) != std::string_view::npos;
}

// A memory of words that were encoded before: most words of a text are among a few thousand. One
// per thread, so that it needs no lock. Each word has two places, where the latest two words that
// share them stay.
class WordCache {
 public:
  // As much as fits into a cache line with two lengths.
  static constexpr std::int64_t kMaxBytes = 26;
  static constexpr std::int64_t kMaxIds = 9;

  WordCache() : pairs_(kPairs) {}

  // Appends the ids of the word, if it is known. word has 1 to kMaxBytes bytes.
  bool Append(std::string_view word, std::uint64_t hash, std::vector<std::int32_t>* ids) const {
    for (const Entry& entry : pairs_[hash % kPairs]) {
      if (entry.bytes == word.size() && std::memcmp(entry.text, word.data(), word.size()) == 0) {
        ids->insert(ids->end(), entry.ids, entry.ids + entry.count);
        return true;
      }
    }
    return false;
  }

  void Insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
    if (std::ssize(ids) > kMaxIds) return;
    auto& [latest, older] = pairs_[hash % kPairs];
    older = latest;
    latest.bytes = static_cast<std::uint8_t>(word.size());
    latest.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(latest.text, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), latest.ids);
  }

 private:
  static constexpr std::int64_t kPairs = 1 << 14;  // 2 MiB in all, a core's second-level cache

  struct alignas(64) Entry {
    std::uint8_t bytes = 0;  // 0: free
    std::uint8_t count = 0;
    char text[kMaxBytes] = {};
    std::int32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<std::array<Entry, 2>> pairs_;
};

class Tokenizer::Impl {
 public:
  Impl(const std::filesystem::path& model_dir, const std::filesystem::path& adapter_dir,
       TemplateUse use);
  explicit Impl(GgufVocabulary vocabulary);  // without chat templates
  // The tokenizer of a GGUF file, or of an adapter that has its own.
  static std::unique_ptr<const Impl> OfGguf(const std::filesystem::path& path,
                                            const std::filesystem::path& adapter_dir,
                                            TemplateUse use);

  // The memory of one thread while it encodes.
  struct Workspace {
    WordCache cache;
    BpeScratch bpe;
  };
  // Takes a workspace of the pool for as long as it lives.
  class Lease {
   public:
    explicit Lease(const Impl& impl);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() { return *workspace_; }

   private:
    const Impl& impl_;
    std::unique_ptr<Workspace> workspace_;
  };

  void Encode(std::string_view text, const EncodeOptions& options, Workspace& workspace,
              std::vector<std::int32_t>* ids) const;
  // The text that the decoder receives for a token; nothing for ids without a token.
  std::optional<std::string_view> DecoderText(std::int32_t id, bool skip_special_tokens) const;

  TokenizerSpec spec;
  // Of tokenizer.json, as JSON text: all but pieces, merges, added tokens, and what is not applied.
  std::string rules;
  TokenRoles roles;
  PostProcessor post;
  TokenDecoder decoder;
  std::vector<bool> special;  // per id
  PieceTable ids;             // of every token's text

 private:
  friend class Lease;

  void LoadModel(const TokenizerJson& json);
  void LoadMerges(const TokenizerJson& json, const std::string& where, BpeConfig* config);
  void LoadAddedTokens(const JsonValue& list, std::int64_t model_pieces,
                       const std::vector<DeclaredToken>& declared);
  // texts: of all added tokens.
  void AddDeclared(const DeclaredToken& declared, std::set<std::string>* texts,
                   std::int32_t* next_id);
  void AddToMatcher(const AddedToken& token, const std::string& where);
  // The tokens around a text, where tokenizer_config.json says which.
  void ApplyAddedEnds(const std::filesystem::path& model_dir,
                      const std::filesystem::path& adapter_dir);
  void SetPiece(std::int32_t id, const std::string& text, const std::string& where);
  void CheckPostProcessor(const std::string& file) const;
  void LoadGgufModel(const GgufVocabulary& vocabulary);
  void LoadGgufSpecials(const GgufVocabulary& vocabulary);

  // How one text is read.
  struct Stages {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
  };
  struct Reading {
    const Stages& stages;
    std::string_view mark;
    Workspace& workspace;
  };
  // Makes bare_stages_ of the JSON text of the stages. where: the file.
  void LoadBareStages(const std::string& where);

  // A text between added tokens.
  void EncodeText(std::string_view text, bool at_start, Reading& reading,
                  std::vector<std::int32_t>* ids) const;
  void EncodeNormalized(std::string_view text, bool at_start, Reading& reading,
                        std::vector<std::int32_t>* ids) const;
  void EncodeWord(std::string_view word, Workspace& workspace,
                  std::vector<std::int32_t>* ids) const;
  void EncodePart(std::string_view part, Workspace& workspace,
                  std::vector<std::int32_t>* ids) const;

  Stages stages_;
  std::optional<Stages> bare_stages_;  // without the space in front; none: there is none anyway
  std::optional<Bpe> model_;
  std::optional<SpecialPartition> partition_;  // of GGUF files, in place of the next two
  AddedTokenMatcher added_;                    // looked for in the user's text
  AddedTokenMatcher added_normalized_;         // looked for in the normalized text
  // The normalized form of added tokens, where it differs; decoders receive this form.
  std::vector<std::pair<std::int32_t, std::string>> decoder_texts_;
  std::vector<std::string> byte_pieces_;  // of GGUF files: per id, what the decoder receives
  // True when no merge continues with U+2581 after another character, so that words may be cut
  // there.
  bool cuts_at_metaspace_ = false;

  mutable std::mutex pool_mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> pool_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKENIZER_IMPL_H_
