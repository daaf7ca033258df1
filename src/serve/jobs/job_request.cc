#include "serve/jobs/job_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <random>

#include "base/text.h"
#include "io/json.h"
#include "qlora/train_options.h"
#include "serve/api_error.h"
#include "serve/request_fields.h"

namespace qlora {
namespace {

constexpr std::int64_t kMostEpochs = 10'000;
constexpr std::int64_t kMostBatch = 65'536;
constexpr double kMostMultiplier = 10'000;
constexpr double kMostBeta = 100;
constexpr double kUsualBeta = 0.1;

// "auto" is the same as a field that is not there.
bool IsAuto(const RequestFields& fields, std::string_view name) {
  const OrderedJson* value = fields.Find(name);
  return value == nullptr || *value == "auto";
}

std::int64_t CountOr(const RequestFields& fields, std::string_view name, std::int64_t most,
                     std::int64_t usual) {
  return IsAuto(fields, name) ? usual : *fields.Integer(name, 1, most);
}

double PositiveOr(const RequestFields& fields, std::string_view name, double most, double usual) {
  if (IsAuto(fields, name)) return usual;
  const double value = *fields.Number(name, 0, most);
  if (!(value > 0)) fields.Refuse(name, "expected a number above 0");
  return value;
}

// A setting that nobody reads would be a training that nobody asked for.
void RefuseOthers(const RequestFields& fields, std::string_view known) {
  for (const auto& [name, value] : fields.json().items()) {
    if (value.is_null() || HasWord(known, name)) continue;
    fields.Refuse(FirstBytes(name, 100),
                  fmt::format("is not read here; there is {}", fmt::join(Words(known, ' '), ", ")));
  }
}

// What is absent stays.
void ReadHyperparameters(const RequestFields& fields, JobRequest& request) {
  const bool is_dpo = request.method == TrainingMethod::kDpo;
  RefuseOthers(fields, is_dpo ? "n_epochs batch_size learning_rate_multiplier beta"
                              : "n_epochs batch_size learning_rate_multiplier");
  request.n_epochs = CountOr(fields, "n_epochs", kMostEpochs, request.n_epochs);
  request.batch_size = CountOr(fields, "batch_size", kMostBatch, request.batch_size);
  request.learning_rate_multiplier = PositiveOr(fields, "learning_rate_multiplier", kMostMultiplier,
                                                request.learning_rate_multiplier);
  if (is_dpo) request.beta = PositiveOr(fields, "beta", kMostBeta, request.beta);
}

// {"type": "dpo", "dpo": {"hyperparameters": {...}}}. Before 2025, hyperparameters stood at the
// top; each that the method does not give is still read there.
void ReadMethod(const RequestFields& body, JobRequest& request) {
  const auto method = body.Object("method");
  const std::string type = method ? method->NeedText("type") : "supervised";
  if (type == "reinforcement") {
    method->Refuse("type", "reinforcement is not trained here: expected supervised or dpo");
  }
  if (type != "supervised" && type != "dpo") {
    method->Refuse("type", "expected supervised or dpo");
  }
  request.method = type == "dpo" ? TrainingMethod::kDpo : TrainingMethod::kSupervised;
  if (request.method == TrainingMethod::kDpo) request.beta = kUsualBeta;
  if (method) RefuseOthers(*method, "type " + type);
  const auto settings = method ? method->Object(type) : std::nullopt;
  if (settings) RefuseOthers(*settings, "hyperparameters");
  const auto inner = settings ? settings->Object("hyperparameters") : std::nullopt;
  const auto outer = body.Object("hyperparameters");
  if (outer) ReadHyperparameters(*outer, request);
  if (inner) ReadHyperparameters(*inner, request);
}

void ReadMetadata(const RequestFields& body, JobRequest& request) {
  CheckMetadata(body);
  const auto metadata = body.Object("metadata");
  if (metadata) metadata->json().get_to(request.metadata);
}

}  // namespace

JobRequest ReadJobRequest(const OrderedJson& json) {
  constexpr std::int64_t kMostSuffix = 64;
  const RequestFields body(json);
  const TrainOptions usual;
  RefuseOthers(body,
               "model training_file validation_file method hyperparameters suffix seed "
               "metadata integrations");
  JobRequest request;
  request.n_epochs = std::llround(usual.num_train_epochs);
  request.batch_size = usual.per_device_train_batch_size * usual.gradient_accumulation_steps;
  request.model = body.NeedText("model");
  // Elsewhere it means the base.
  if (request.model.empty()) body.Refuse("model", "expected the name of a model");
  request.training_file = body.NeedText("training_file");
  request.validation_file = body.Text("validation_file").value_or("");
  ReadMethod(body, request);
  request.suffix = body.Text("suffix").value_or("");
  if (CountCharacters(request.suffix) > kMostSuffix) {
    body.Refuse("suffix", fmt::format("expected at most {} characters", kMostSuffix));
  }
  const auto seed = body.Integer("seed", 0);
  request.seed = seed ? *seed : std::random_device()() >> 1;
  ReadMetadata(body, request);
  if (const OrderedJson* list = body.List("integrations"); list != nullptr && !list->empty()) {
    body.Refuse("integrations", "nothing is sent to other services; leave it out");
  }
  return request;
}

}  // namespace qlora
