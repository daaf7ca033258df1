#include "serve/routes/logprob_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/text.h"
#include "io/json.h"
#include "serve/token_bytes.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// Infinity is no number of JSON.
double Finite(double logprob) { return std::max(logprob, -9999.0); }

OrderedJson BytesJson(const std::string& bytes) {
  return std::vector<unsigned char>(bytes.begin(), bytes.end());
}

OrderedJson ChatToken(const std::string& bytes, double logprob) {
  return {{"token", bytes}, {"logprob", Finite(logprob)}, {"bytes", BytesJson(bytes)}};
}

// A part of a character as OpenAI writes it, so that tokens differ: "bytes:\xf0".
std::string CompletionToken(const std::string& bytes) {
  std::string storage;
  if (ValidUtf8(bytes, &storage) == bytes) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) {
    text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

}  // namespace

OrderedJson ChatLogprobs(const std::vector<AnswerToken>& tokens, const Tokenizer& tokenizer) {
  OrderedJson list = OrderedJson::array();
  for (const AnswerToken& token : tokens) {
    OrderedJson item = ChatToken(token.bytes, token.logprob);
    OrderedJson top = OrderedJson::array();
    for (const auto& [id, logprob] : token.top) {
      top.push_back(ChatToken(TokenBytes(tokenizer, id), logprob));
    }
    item["top_logprobs"] = std::move(top);
    list.push_back(std::move(item));
  }
  return list;
}

void AppendItems(const OrderedJson& list, std::string& items) {
  for (const OrderedJson& item : list) {
    if (!items.empty()) items += ',';
    items += FormatJson(item);
  }
}

void AppendField(std::string& object, std::string_view name, std::string_view json) {
  object.back() = object.size() > 2 ? ',' : '{';
  if (object.size() == 2) object.pop_back();
  object.append("\"").append(name).append("\":").append(json).append("}");
}

OrderedJson CompletionLogprobs::Empty() {
  OrderedJson lists;
  for (const char* name : kLists) lists[name] = OrderedJson::array();
  return lists;
}

void CompletionLogprobs::Add(std::span<const AnswerToken> tokens, bool is_prompt,
                             OrderedJson& json) {
  bool is_known = !is_prompt || std::exchange(has_prompt_, true);
  for (const AnswerToken& token : tokens) {
    json["tokens"].push_back(CompletionToken(token.bytes));
    json["text_offset"].push_back(offset_);
    offset_ += is_prompt ? TakeOfPrompt(token) : token.characters;
    if (!is_known) {
      json["token_logprobs"].push_back(nullptr);
      json["top_logprobs"].push_back(nullptr);
      is_known = true;
      continue;
    }
    json["token_logprobs"].push_back(Finite(token.logprob));
    OrderedJson top = OrderedJson::object();
    for (const auto& [id, logprob] : token.top) {
      // Of tokens with the same bytes the likeliest one, which comes first.
      top.emplace(CompletionToken(TokenBytes(tokenizer_, id)), Finite(logprob));
    }
    // The token itself, too, as OpenAI has it: one more than was asked for, at most.
    const auto is_it = [&](const auto& other) { return other.first == token.token; };
    if (std::ranges::none_of(token.top, is_it)) {
      top.emplace(CompletionToken(token.bytes), Finite(token.logprob));
    }
    json["top_logprobs"].push_back(std::move(top));
  }
}

// The characters that a token is of the prompt's text, which lacks what the tokenizer adds: tokens
// that begin and end a text, and a space before the first word.
std::int64_t CompletionLogprobs::TakeOfPrompt(const AnswerToken& token) {
  std::string_view bytes = token.bytes;
  if (!prompt_.starts_with(bytes)) {
    if (tokenizer_.IsSpecial(token.token)) return 0;
    if (bytes.starts_with(' ') && prompt_.starts_with(bytes.substr(1))) bytes.remove_prefix(1);
  }
  prompt_.remove_prefix(std::min(bytes.size(), prompt_.size()));
  return CountCharacters(bytes);
}

}  // namespace qlora
