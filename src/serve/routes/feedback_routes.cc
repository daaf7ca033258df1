// POST /v1/feedback: what somebody says of an answer.
#include <nlohmann/json.hpp>
#include <string>

#include "serve/request_fields.h"
#include "serve/request_log.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

AnswerMark ReadMark(const RequestFields& body) {
  const std::string mark = body.NeedText("mark");
  if (mark == "up") return AnswerMark::kUp;
  if (mark == "down") return AnswerMark::kDown;
  if (mark != "edited") body.Refuse("mark", "expected \"up\", \"down\" or \"edited\"");
  return AnswerMark::kEdited;
}

OrderedJson Mark(Server& server, const HttpRequest& http) {
  if (server.request_log == nullptr) {
    throw ApiError(404, "this server keeps no marks: start it with --log_requests DIR");
  }
  const OrderedJson json = ParseBody(http);
  const RequestFields body(json);
  const std::string id = body.NeedText("id");
  const AnswerMark mark = ReadMark(body);
  const std::string edited = mark == AnswerMark::kEdited ? body.NeedText("edited") : "";
  if (mark == AnswerMark::kEdited && edited.empty()) {
    body.Refuse("edited", "is empty, which no training reads");
  }
  if (mark != AnswerMark::kEdited && body.Has("edited")) {
    body.Refuse("edited", "needs \"mark\": \"edited\"");
  }
  server.request_log->Mark(id, body.Integer("choice", 0).value_or(0), mark, edited);
  return {{"id", id}, {"object", "feedback"}, {"mark", body.NeedText("mark")}};
}

}  // namespace

void AddFeedbackRoutes(RouteTable& table, Server& server) {
  table.AddJson("POST", "/v1/feedback",
                [&server](const HttpRequest& http) { return Mark(server, http); });
}

}  // namespace qlora
