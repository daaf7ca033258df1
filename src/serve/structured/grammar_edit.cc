#include "serve/structured/grammar_edit.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "serve/structured/token_texts.h"

namespace qlora {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

GrammarEdit::GrammarEdit(AnswerGrammar form, std::vector<std::int32_t> ends, std::int64_t most_work)
    : form_(std::move(form)),
      ends_(std::move(ends)),
      most_work_(most_work),
      reader_(form_.grammar),
      position_(reader_.begin()) {
  if (!form_.begins_behind.empty()) passing_ = form_.texts->Passing(form_.begins_behind.back());
}

void GrammarEdit::Apply(std::span<const std::int32_t> answer, std::span<float> logits) {
  reader_.LimitWork(most_work_);
  for (; read_ < answer.size(); ++read_) Read(answer[read_]);
  if (!form_.begins_behind.empty()) {
    for (const std::int32_t end : ends_) logits[end] = kNever;
    ForbidWrongBegins(logits);
    return;
  }
  const std::vector<bool>& mask = Mask();
  const bool can_end = reader_.CanEnd(position_);
  for (std::size_t token = 0; token < logits.size(); ++token) {
    // An end need not be special: its text is none of the form.
    const bool is_end = std::ranges::count(ends_, static_cast<std::int32_t>(token)) != 0;
    if (!(is_end ? can_end : mask[token])) logits[token] = kNever;
  }
}

bool GrammarEdit::CanEnd() const {
  return form_.begins_behind.empty() && reader_.CanEnd(position_);
}

// Of tokens that end what the form stands behind, and have more.
void GrammarEdit::ForbidWrongBegins(std::span<float> logits) {
  const std::string& mark = form_.begins_behind;
  const std::size_t shared = std::min(before_.size(), mark.size() - 1);
  for (const std::int32_t token : passing_) {
    std::string text = before_.substr(before_.size() - shared);
    text += form_.texts->Of(token);
    const std::size_t at = text.find(mark);
    if (at == std::string::npos) continue;
    GrammarReader::Position position = reader_.begin();
    for (std::size_t i = at + mark.size(); i < text.size(); ++i) {
      position = reader_.Next(position, static_cast<unsigned char>(text[i]));
    }
    if (position == GrammarReader::kNowhere) logits[token] = kNever;
  }
}

void GrammarEdit::Read(std::int32_t token) {
  std::string_view text = form_.texts->Of(token);
  if (!form_.begins_behind.empty()) {
    before_ += text;
    const std::size_t at = before_.find(form_.begins_behind);
    if (at == std::string::npos) return;
    text = std::string_view(before_).substr(at + form_.begins_behind.size());
    form_.begins_behind.clear();
  }
  for (const char byte : text)
    position_ = reader_.Next(position_, static_cast<unsigned char>(byte));
}

const std::vector<bool>& GrammarEdit::Mask() {
  if (masks_.size() == kMostMasks) masks_.clear();
  if (reader_.bytes() > kMostBytes) {
    masks_.clear();
    position_ = reader_.ForgetOthers(position_);
  }
  const auto [at, is_new] = masks_.try_emplace(position_);
  if (is_new) at->second = form_.texts->Allowed(reader_, position_);
  return at->second;
}

}  // namespace qlora
