// /v1/systemone and /v1/decisions: questions about a state, answered with probabilities.
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "inference/model_decisions.h"
#include "io/json.h"
#include "qlora/error.h"
#include "serve/api_error.h"
#include "serve/request_fields.h"
#include "serve/request_room.h"
#include "serve/requests/foreign_fields.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

enum class Wire { kSystemOne, kDecisions };

const char* StateField(Wire wire) { return wire == Wire::kSystemOne ? "state" : "input"; }

// Errors: ApiError 400 that names the field, also for questions of the other form.
DecisionRequest ReadRequest(const OrderedJson& body, Wire wire) {
  const RequestFields fields(body);
  const OrderedJson* questions = fields.Find("questions");
  const bool fits = questions != nullptr &&
                    (wire == Wire::kSystemOne ? questions->is_object() : questions->is_array());
  if (!fits) {
    fields.Refuse("questions", wire == Wire::kSystemOne ? "expected an object of questions"
                                                        : "expected a list of questions");
  }
  if (std::ssize(*questions) > kMostQuestions) {
    fields.Refuse("questions", fmt::format("expected at most {}", kMostQuestions));
  }
  RefuseForeignToDecision(fields, {StateField(wire)});
  try {
    return ReadDecisionRequest(body);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidInput) throw;
    // Its messages begin with the field.
    const std::string_view text = error.what();
    const std::size_t end = text.find(": ");
    throw ApiError(400, error.what(), std::string(text.substr(0, end == text.npos ? 0 : end)));
  }
}

// Ends what nobody waits for.
struct ClientLeft {};

// Bytes of states with their questions, about, that are read beside others: more takes long.
constexpr std::size_t kLargeRequest = std::size_t{1} << 19;

std::size_t BytesToRead(const DecisionRequest& request) {
  return BytesOfJson(request.decision.state) * request.decision.questions.size();
}

// Lays the questions out. Errors: ApiError, those of RequestedDecisions and of `hold`.
std::shared_ptr<RequestedDecisions> LayOut(const LoadedModel& base, const ServedModel& model,
                                           DecisionRequest request, Wire wire,
                                           AskedQuestions::Hold hold) {
  const std::int64_t most = model.decision_length;
  const DecisionModel decides = {.adapter = model.adapter.get(),
                                 .prompts = *model.prompts,
                                 .tokenizer = *model.tokenizer,
                                 .decisions = model.decisions,
                                 .max_length = most,
                                 .name = model.name,
                                 .hold = std::move(hold)};
  try {
    return std::make_shared<RequestedDecisions>(base, decides, std::move(request), DecideOptions());
  } catch (const PromptTooLong& error) {
    const char* reason =
        most < model.context_length ? " for decisions, as far as the server's memory goes" : "";
    throw ApiError(400,
                   fmt::format("this model's maximum context length is {} tokens{}, and a "
                               "question with its state has {}",
                               most, reason, error.tokens),
                   StateField(wire), "context_length_exceeded");
  }
}

// is_busy: a large request is being laid out.
void Ask(const HttpRequest& http, const HttpReplyPtr& reply, Server& server, Wire wire,
         std::atomic<bool>& is_busy) {
  // Laying out takes time, which others may need.
  if (HasLeft(*reply)) return;
  server.generation.CheckRoomForPasses();
  const OrderedJson body = ParseBody(http);
  // Of two questions of one id, or options of one key, one would be left out.
  if (const auto key = FindDuplicateKey(http.body, body)) {
    throw ApiError(400, fmt::format("key '{}' appears twice in one object; only one of its values "
                                    "would be read",
                                    FirstBytes(*key, 60)));
  }
  DecisionRequest request = ReadRequest(body, wire);
  // The calls below hold the model, too: what is laid out refers to it.
  const ServedModelPtr model = server.models.Find(request.model);
  NoteAnswer(*reply, model->name, "");
  const auto hold = [reply, held = std::make_shared<HeldBytes>(model->room)](std::size_t bytes) {
    if (HasLeft(*reply)) throw ClientLeft();
    held->Add(bytes, "questions", "ask fewer about a state of this length");
  };
  std::shared_ptr<void> end;
  if (BytesToRead(request) > kLargeRequest) {
    if (is_busy.exchange(true)) {
      throw ApiError(429, "another decision with as much to read is being read; try again later",
                     "", "queue_full");
    }
    end = std::shared_ptr<void>(nullptr, [&is_busy](void*) { is_busy = false; });
  }
  std::shared_ptr<RequestedDecisions> asked;
  try {
    hold(BytesOfJson(body));
    asked = LayOut(*server.base, *model, std::move(request), wire, hold);
  } catch (const ClientLeft&) {
    return;
  }
  const HttpRequest head = {.path = http.path, .id = http.id};
  const GenerationId id = server.generation.SubmitPasses(
      {.parts = asked->parts(),
       .run_part = [model, asked](const Decoder& decoder,
                                  Arena& memory) { asked->RunPart(decoder, memory); },
       .on_end =
           [model, asked, reply, head, &server](const std::exception_ptr& error) {
             try {
               if (error) std::rethrow_exception(error);
               SendJson(*reply, asked->Answer());
             } catch (...) {
               reply->Send(ErrorResponse(head, LoggedError(server, head)));
             }
           }});
  reply->OnGone([&server, id] { server.generation.Cancel(id); });
}

}  // namespace

void AddDecisionRoutes(RouteTable& table, Server& server) {
  const auto is_busy = std::make_shared<std::atomic<bool>>(false);
  const auto add = [&](const char* path, Wire wire) {
    table.Add("POST", path,
              [&server, wire, is_busy](const HttpRequest& request, const HttpReplyPtr& reply) {
                Ask(request, reply, server, wire, *is_busy);
              });
  };
  add("/v1/systemone", Wire::kSystemOne);
  add("/v1/decisions", Wire::kDecisions);
}

}  // namespace qlora
