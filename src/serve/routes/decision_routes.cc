// /v1/systemone and /v1/decisions: questions about a state, answered with probabilities.
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/check.h"
#include "decision/decision_file.h"
#include "inference/decision_source.h"
#include "inference/model_decisions.h"
#include "io/json.h"
#include "serve/request_fields.h"
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

OrderedJson Answer(const HttpRequest& http, Server& server, Wire wire) {
  DecisionRequest request = ReadRequest(ParseBody(http), wire);
  const ServedModelPtr model = server.models.Find(request.model);
  const std::optional<DecisionSource> source = SourceOf(*server.base, *model);
  const std::int64_t most = model->decision_length;
  const DecisionModel decides = {.adapter = model->adapter.get(),
                                 .prompts = *model->prompts,
                                 .tokenizer = *model->tokenizer,
                                 .decisions = source,
                                 .max_length = most,
                                 .name = model->name};
  try {
    RequestedDecisions asked(*server.base, decides, std::move(request), {});
    // Others write their next tokens between two parts.
    for (std::int64_t part = 0; part < asked.parts(); ++part) {
      server.generation.RunPass(
          [&](const Decoder& decoder, Arena& memory) { asked.RunPart(decoder, memory); });
    }
    return asked.Answer();
  } catch (const PromptTooLong& error) {
    throw ApiError(400,
                   fmt::format("this model's maximum context length is {} tokens{}, and a question "
                               "with its state has {}",
                               most,
                               most < model->context_length
                                   ? " for decisions, as far as the server's memory goes"
                                   : "",
                               error.tokens),
                   wire == Wire::kSystemOne ? "state" : "input", "context_length_exceeded");
  }
}

}  // namespace

void AddDecisionRoutes(RouteTable& table, Server& server) {
  const auto add = [&](const char* path, Wire wire) {
    table.Add("POST", path, [&server, wire](const HttpRequest& request, const HttpReplyPtr& reply) {
      SendJson(*reply, Answer(request, server, wire));
    });
  };
  add("/v1/systemone", Wire::kSystemOne);
  add("/v1/decisions", Wire::kDecisions);
}

}  // namespace qlora
