#include "serve/structured/token_texts.h"

#include <algorithm>

#include "serve/token_bytes.h"

namespace qlora {
namespace {

std::size_t SharedBytes(std::string_view a, std::string_view b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

TokenTexts::TokenTexts(const Tokenizer& tokenizer, std::int64_t vocabulary) : texts_(vocabulary) {
  for (std::int64_t token = 0; token < vocabulary; ++token) {
    texts_[token] = BytesOfVocabulary(tokenizer, static_cast<std::int32_t>(token));
  }
  std::vector<bool> is_special(vocabulary);
  for (const AddedToken& token : tokenizer.spec().added_tokens) {
    if (token.id < 0 || token.id >= vocabulary) continue;
    texts_[token.id] = tokenizer.TokenText(token.id);
    is_special[token.id] = token.special;
  }
  for (std::int64_t token = 0; token < vocabulary; ++token) {
    if (!texts_[token].empty() && !is_special[token])
      sorted_.push_back({static_cast<std::int32_t>(token), 0, 0});
  }
  std::ranges::sort(sorted_, {},
                    [this](const Entry& entry) -> std::string_view { return texts_[entry.token]; });
  std::string_view before;
  for (Entry& entry : sorted_) {
    const std::string_view text = texts_[entry.token];
    const std::size_t shared = SharedBytes(before, text);
    entry.shared = static_cast<std::uint32_t>(shared);
    entry.rest = static_cast<std::uint32_t>(text.size() - shared);
    rests_ += text.substr(shared);
    before = text;
  }
}

std::vector<std::int32_t> TokenTexts::Passing(char byte) const {
  std::vector<std::int32_t> tokens;
  for (std::size_t token = 0; token < texts_.size(); ++token) {
    const std::size_t at = texts_[token].find(byte);
    if (at < texts_[token].size() - 1) tokens.push_back(static_cast<std::int32_t>(token));
  }
  return tokens;
}

std::vector<bool> TokenTexts::Allowed(GrammarReader& reader,
                                      GrammarReader::Position position) const {
  std::vector<bool> allowed(texts_.size());
  // The positions behind the bytes of the last text that was read, until it was not allowed.
  std::vector<GrammarReader::Position> path = {position};
  const char* end = rests_.data();
  for (const Entry& entry : sorted_) {
    const char* at = end;
    end += entry.rest;
    // Shares the byte that is not allowed.
    if (entry.shared >= path.size()) continue;
    path.resize(entry.shared + 1);
    for (; at != end; ++at) {
      const GrammarReader::Position next =
          reader.Next(path.back(), static_cast<unsigned char>(*at));
      if (next == GrammarReader::kNowhere) break;
      path.push_back(next);
    }
    allowed[entry.token] = at == end;
  }
  return allowed;
}

}  // namespace qlora
