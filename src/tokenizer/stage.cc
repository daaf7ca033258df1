#include "tokenizer/stage.h"

#include <fmt/format.h>

namespace qlora {
namespace {

// Steps call each other, so their number is also the depth of the call stack.
constexpr std::int64_t kMaxSteps = 256;
constexpr double kMaxGrowth = 256;

void AddSteps(const JsonValue& config, std::string_view list_key, std::vector<JsonValue>* steps) {
  if (config["type"].String() != "Sequence") {
    if (std::ssize(*steps) == kMaxSteps) config.Fail(fmt::format("at most {} steps", kMaxSteps));
    // Sequences may be nested; the list of their leaves runs in the same order.
    steps->push_back(config);
    return;
  }
  for (const JsonValue& part : config[list_key].Array()) AddSteps(part, list_key, steps);
}

}  // namespace

std::vector<JsonValue> StepsOf(const JsonValue& stage, std::string_view list_key) {
  std::vector<JsonValue> steps;
  if (!stage.IsNull()) AddSteps(stage, list_key, &steps);
  return steps;
}

void Growth::Multiply(double factor, const JsonValue& step) {
  // Factors multiply: each step grows the result of the step before.
  product_ *= factor;
  if (product_ > kMaxGrowth) {
    step.Fail(fmt::format("steps that make a text at most {} times as long", kMaxGrowth));
  }
}

}  // namespace qlora
