// The bytes of all tokens of a vocabulary, in the order of these bytes.
#ifndef QLORA_SERVE_STRUCTURED_TOKEN_TEXTS_H_
#define QLORA_SERVE_STRUCTURED_TOKEN_TEXTS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "serve/structured/grammar_reader.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

class TokenTexts {
 public:
  // vocabulary: tokens that have logits.
  TokenTexts(const Tokenizer& tokenizer, std::int64_t vocabulary);

  // Of special tokens their names, which are never allowed.
  std::string_view Of(std::int32_t token) const { return texts_[token]; }

  // The tokens whose text goes on behind such a byte.
  std::vector<std::int32_t> Passing(char byte) const;
  // One bit for each token: whether a text at the position may go on with it. Errors: those of the
  // reader.
  std::vector<bool> Allowed(GrammarReader& reader, GrammarReader::Position position) const;

 private:
  struct Entry {
    std::int32_t token;
    std::uint32_t shared;  // bytes at its beginning that those of the entry before it have, too
    std::uint32_t rest;    // bytes behind these
  };

  std::vector<std::string> texts_;  // index = id
  std::vector<Entry> sorted_;       // those that may be allowed
  std::string rests_;               // of all entries, which are read in this order
};

// The texts of one tokenizer, which are made when they are first asked for.
class TokenTextsOnce {
 public:
  std::shared_ptr<const TokenTexts> Get(const Tokenizer& tokenizer, std::int64_t vocabulary) const {
    const std::lock_guard lock(mutex_);
    if (texts_ == nullptr) texts_ = std::make_shared<const TokenTexts>(tokenizer, vocabulary);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const TokenTexts> texts_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_STRUCTURED_TOKEN_TEXTS_H_
