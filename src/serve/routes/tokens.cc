// What a model reads: tokens of texts, texts of tokens, conversations as texts.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/request_fields.h"
#include "serve/requests/chat_request.h"
#include "serve/requests/conversation_request.h"
#include "serve/routes/routes.h"
#include "serve/token_bytes.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// A character that neither a token nor the text has, with which the spelling of a special token is
// text: the first one of private use. Errors: ApiError 400 for a text with all of these.
std::string MarkFor(std::string_view text) {
  constexpr char32_t kFirst = 0xE000;
  constexpr char32_t kLast = 0xF8FF;
  for (char32_t c = kFirst; c <= kLast; ++c) {
    std::string mark;
    AppendUtf8(c, &mark);
    if (text.find(mark) == text.npos) return mark;
  }
  throw ApiError(400,
                 "content: has all characters of private use, of which parse_special needs one",
                 "content");
}

ServedModelPtr ModelOf(const RequestFields& body, const Server& server) {
  return server.models.Find(body.Text("model").value_or(""));
}

// What a chat completion with this body reads.
ConversationPrompt ReadConversation(const RequestFields& body, const ServedModel& model) {
  return PromptOf(model, ReadChatConversation(body, model));
}

// With the mark before each of its characters but the first, no special token is found in a text;
// the tokenizer drops it afterwards.
std::string Marked(std::string_view text, std::string_view mark) {
  std::string storage;
  std::string marked;
  for (const char c : ValidUtf8(text, &storage)) {
    if (!ContinuesCharacter(c)) marked += mark;
    marked += c;
  }
  return marked;
}

std::vector<std::int32_t> ReadTokens(const RequestFields& body, const ServedModel& model) {
  // The second name is vLLM's.
  const char* name = body.Has("add_special") ? "add_special" : "add_special_tokens";
  const bool adds = body.Bool(name).value_or(false);
  const bool parses = body.Bool("parse_special").value_or(true);
  if (body.Has("messages")) {
    if (adds) body.Refuse(name, "the chat template writes them; leave it out");
    if (!parses) body.Refuse("parse_special", "the chat template writes special tokens");
    return ReadConversation(body, model).tokens;
  }
  const std::string text = body.Has("prompt") ? body.NeedText("prompt") : body.NeedText("content");
  if (parses) return model.tokenizer->Encode(text, adds);
  const std::string mark = MarkFor(text);
  return model.tokenizer->Encode(Marked(text, mark),
                                 EncodeOptions{.special_tokens = adds, .mark = mark});
}

// Text where the bytes are whole characters, else the bytes.
OrderedJson PieceJson(const std::string& bytes) {
  std::string storage;
  if (ValidUtf8(bytes, &storage) == bytes) return bytes;
  return std::vector<unsigned char>(bytes.begin(), bytes.end());
}

OrderedJson Tokenize(const Server& server, const HttpRequest& http) {
  const OrderedJson json = ParseBody(http);
  const RequestFields body(json);
  const ServedModelPtr model = ModelOf(body, server);
  const bool with_pieces = body.Bool("with_pieces").value_or(false);
  const std::vector<std::int32_t> ids = ReadTokens(body, *model);
  OrderedJson tokens = OrderedJson::array();
  if (!with_pieces) {
    tokens = ids;
  } else if (std::ssize(ids) > model->context_length) {
    // A piece takes many times the memory of an id.
    throw ContextExceeded(model->context_length, fmt::format("{} tokens", ids.size()));
  } else {
    for (const std::int32_t id : ids) {
      tokens.push_back({{"id", id}, {"piece", PieceJson(TokenBytes(*model->tokenizer, id))}});
    }
  }
  return {{"tokens", std::move(tokens)},
          {"count", ids.size()},
          {"max_model_len", model->context_length}};
}

OrderedJson Detokenize(const Server& server, const HttpRequest& http) {
  const OrderedJson json = ParseBody(http);
  const RequestFields body(json);
  const ServedModelPtr model = ModelOf(body, server);
  const std::vector<std::int32_t> ids =
      AsTokenIds(body.NeedList("tokens"), "tokens", model->tokenizer->vocab_size());
  return {{"content", model->tokenizer->Decode(ids, false)}};
}

OrderedJson ApplyTemplate(const Server& server, const HttpRequest& http) {
  const OrderedJson json = ParseBody(http);
  const RequestFields body(json);
  return {{"prompt", ReadConversation(body, *ModelOf(body, server)).text}};
}

}  // namespace

void AddTokenRoutes(RouteTable& table, Server& server) {
  table.AddJson("POST", "/tokenize",
                [&server](const HttpRequest& http) { return Tokenize(server, http); });
  table.AddJson("POST", "/detokenize",
                [&server](const HttpRequest& http) { return Detokenize(server, http); });
  table.AddJson("POST", "/apply-template",
                [&server](const HttpRequest& http) { return ApplyTemplate(server, http); });
}

}  // namespace qlora
