// /v1/systemone and /v1/decisions: questions about a state, answered with probabilities.
#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "decision/decision_file.h"
#include "inference/decision_source.h"
#include "inference/model_decisions.h"
#include "io/json.h"
#include "serve/request_fields.h"
#include "serve/request_room.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

enum class Wire { kSystemOne, kDecisions };

constexpr std::int64_t kMostQuestions = 400;

// Errors: ApiError 400 for questions of the other form, and for what would be streamed.
DecisionRequest ReadRequest(const OrderedJson& body, Wire wire) {
  const RequestFields fields(body);
  if (fields.Bool("stream").value_or(false)) {
    fields.Refuse("stream", "decisions are not streamed; leave it out");
  }
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
  return ReadDecisionRequest(body);
}

// How the model was made to decide; nothing where it was not.
std::optional<DecisionSource> SourceOf(const LoadedModel& base, const ServedModel& model) {
  auto source = FindDecisionSource(model.adapter ? model.folder : "", base.dir);
  if (source && !source->file.labels.empty()) {
    CheckDecisionFile(source->file, DecisionTokenizer(*model.tokenizer), source->name);
  }
  return source;
}

// A decision with all that it needs until it is answered.
class AskedDecision {
 public:
  // Lays the questions out. Errors: ApiError, and those of RequestedDecisions.
  AskedDecision(Server& server, DecisionRequest request, Wire wire)
      : model_(server.models.Find(request.model)),
        source_(SourceOf(*server.base, *model_)),
        asked_(LayOut(*server.base, std::move(request), wire)) {}

  std::int64_t parts() const { return asked_->parts(); }
  void RunPart(const Decoder& decoder, Arena& memory) { asked_->RunPart(decoder, memory); }
  OrderedJson Answer() const { return asked_->Answer(); }

 private:
  std::unique_ptr<RequestedDecisions> LayOut(const LoadedModel& base, DecisionRequest request,
                                             Wire wire) {
    const std::int64_t most = model_->decision_length;
    const DecisionModel decides = {.adapter = model_->adapter.get(),
                                   .prompts = *model_->prompts,
                                   .tokenizer = *model_->tokenizer,
                                   .decisions = source_,
                                   .max_length = most,
                                   .name = model_->name,
                                   .hold = [this](std::size_t bytes) {
                                     held_.Add(bytes, "questions",
                                               "ask fewer about a state of this length");
                                   }};
    try {
      return std::make_unique<RequestedDecisions>(base, decides, std::move(request),
                                                  DecideOptions());
    } catch (const PromptTooLong& error) {
      throw ApiError(400,
                     fmt::format("this model's maximum context length is {} tokens{}, and a "
                                 "question with its state has {}",
                                 most,
                                 most < model_->context_length
                                     ? " for decisions, as far as the server's memory goes"
                                     : "",
                                 error.tokens),
                     wire == Wire::kSystemOne ? "state" : "input", "context_length_exceeded");
    }
  }

  const ServedModelPtr model_;
  const std::optional<DecisionSource> source_;
  HeldBytes held_{model_->room};
  const std::unique_ptr<RequestedDecisions> asked_;
};

void Ask(const HttpRequest& http, const HttpReplyPtr& reply, Server& server, Wire wire) {
  // Laying out takes time, which others may need.
  if (HasLeft(*reply)) return;
  server.generation.CheckRoomForPasses();
  const auto asked =
      std::make_shared<AskedDecision>(server, ReadRequest(ParseBody(http), wire), wire);
  const HttpRequest head = {.path = http.path, .id = http.id};
  const GenerationId id = server.generation.SubmitPasses(
      {.parts = asked->parts(),
       .run_part = [asked](const Decoder& decoder,
                           Arena& memory) { asked->RunPart(decoder, memory); },
       .on_end =
           [asked, reply, head, &server](const std::exception_ptr& error) {
             try {
               if (error) std::rethrow_exception(error);
               SendJson(*reply, asked->Answer());
             } catch (...) {
               reply->Send(ErrorResponse(head, CaughtError(server, head)));
             }
           }});
  reply->OnGone([&server, id] { server.generation.Cancel(id); });
}

}  // namespace

void AddDecisionRoutes(RouteTable& table, Server& server) {
  const auto add = [&](const char* path, Wire wire) {
    table.Add("POST", path, [&server, wire](const HttpRequest& request, const HttpReplyPtr& reply) {
      Ask(request, reply, server, wire);
    });
  };
  add("/v1/systemone", Wire::kSystemOne);
  add("/v1/decisions", Wire::kDecisions);
}

}  // namespace qlora
