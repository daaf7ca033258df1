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
      sorted_.push_back({static_cast<std::int32_t>(token), 0});
  }
  std::ranges::sort(sorted_, {},
                    [this](const Entry& entry) -> std::string_view { return texts_[entry.token]; });
  for (std::size_t i = 1; i < sorted_.size(); ++i) {
    sorted_[i].shared = SharedBytes(texts_[sorted_[i - 1].token], texts_[sorted_[i].token]);
  }
}

std::vector<bool> TokenTexts::Allowed(GrammarReader& reader,
                                      GrammarReader::Position position) const {
  std::vector<bool> allowed(texts_.size());
  // The positions behind the bytes of the last text that was read, until it was not allowed.
  std::vector<GrammarReader::Position> path = {position};
  for (const Entry& entry : sorted_) {
    // Shares the byte that is not allowed.
    if (entry.shared >= path.size()) continue;
    path.resize(entry.shared + 1);
    const std::string& text = texts_[entry.token];
    while (path.size() <= text.size()) {
      const auto byte = static_cast<unsigned char>(text[path.size() - 1]);
      const GrammarReader::Position next = reader.Next(path.back(), byte);
      if (next == GrammarReader::kNowhere) break;
      path.push_back(next);
    }
    allowed[entry.token] = path.size() > text.size();
  }
  return allowed;
}

}  // namespace qlora
