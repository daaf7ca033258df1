#include "checkpoint/resume_options.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "io/json.h"

namespace qlora {
namespace {

// Options that are not recorded. All others decide the result of a step: a run that resumed with
// other values would be another run.
constexpr auto kFreeOptions = std::to_array<std::string_view>({
    // The length of a run. The schedule of the learning rate follows.
    "num_train_epochs",
    "max_steps",
    // Places of model and data. Fingerprints show that they are the same.
    "model_name_or_path",
    "dataset",
    "eval_dataset",
    "chat_template",
    "adapter",
    // Place, frequency and speed of a run's work.
    "output_dir",
    "overwrite_output_dir",
    "dataset_prepared_path",
    "resume_from_checkpoint",
    "logging_steps",
    "report_to",
    "logging_dir",
    "eval_steps",
    "eval_on_start",
    "sample_prompts",
    "sample_raw",
    "sample_steps",
    "sample_max_new_tokens",
    "save_steps",
    "save_total_limit",
    "load_best_model_at_end",
    "early_stopping_patience",
    "early_stopping_threshold",
    "max_skipped_steps",
    "max_memory",
    "threads",
    "device",
    "gradient_checkpointing",
    "recompute",
});

constexpr const char* kModel = "model_name_or_path";
constexpr const char* kLayout = "prompt_layout";
constexpr const char* kModelFingerprint = "model_fingerprint";
constexpr const char* kDataFingerprint = "dataset_fingerprint";
constexpr const char* kDataWeights = "dataset_weights";
constexpr const char* kEvalFingerprint = "eval_fingerprint";

// Keys that older checkpoints do not record.
constexpr auto kLaterKeys =
    std::to_array<std::string_view>({kLayout, kModelFingerprint, kDataWeights, kEvalFingerprint});

// The content that a fingerprint identifies, in words.
constexpr auto kContents = std::to_array<std::pair<std::string_view, const char*>>({
    {kModelFingerprint, "the weights of model_name_or_path"},
    {kDataFingerprint, "the samples of dataset"},
    {kEvalFingerprint, "the samples for evaluation"},
});

template <typename List>
bool Has(const List& list, std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

std::string Hex(std::uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

// "40:1,12:2": samples and weight of each file. "" where all weights are 1, because then it does
// not matter in which file a sample is.
std::string WeightsOf(const Dataset& data) {
  std::string text;
  bool differ = false;
  for (const OrderPart& part : data.parts()) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", part.samples, part.weight);
    differ = differ || part.weight != 1;
  }
  return differ ? text : "";
}

// One entry of the list in the error: words for a fingerprint, whose numbers tell people nothing,
// both values for an option.
std::string DescribeDifference(const std::string& key, const Json& then, const Json& now) {
  for (const auto& [fingerprint, content] : kContents) {
    if (fingerprint == key) return content;
  }
  return fmt::format("{} ({} in the checkpoint, {} now)", key, FormatJson(then), FormatJson(now));
}

}  // namespace

bool MayChangeOnResume(std::string_view option) { return Has(kFreeOptions, option); }

Json OptionsToJson(TrainOptions options) {
  OptionTable table;
  options.Declare(table);
  Json json = Json::object();
  for (const Option& option : table.options()) json[option.name] = option.ToString();
  return json;
}

Json RecordedOptions(const TrainOptions& options, DType compute, std::uint64_t model_fingerprint,
                     const Dataset& train, const Dataset* held_out) {
  const Json all = OptionsToJson(options);
  Json recorded = Json::object();
  for (const auto& [name, value] : all.items()) {
    if (!MayChangeOnResume(name)) recorded[name] = value;
  }
  // "auto" may mean another type on another machine.
  recorded["compute_dtype"] = compute == DType::kBF16 ? "bfloat16" : "float32";
  recorded[kModel] = options.model_name_or_path;
  recorded[kModelFingerprint] = Hex(model_fingerprint);
  recorded[kDataFingerprint] = Hex(train.fingerprint());
  recorded[kDataWeights] = WeightsOf(train);
  recorded[kEvalFingerprint] = held_out != nullptr ? Hex(held_out->fingerprint()) : "";
  return recorded;
}

void LeaveOutBase(const Json& then, Json& now) {
  const auto data = then.find(kDataFingerprint);
  if (data == then.end() || *data != now.at(kDataFingerprint)) return;
  now.erase(kModel);
  now.erase(kModelFingerprint);
}

std::string DifferencesOnResume(const Json& then, const Json& now) {
  std::string text;
  std::string model;  // first: another model has another tokenizer, and so other samples
  for (const auto& [key, value] : now.items()) {
    const Json before = then.contains(key) ? then.at(key) : Json();
    const bool is_new = before.is_null() && Has(kLaterKeys, key);
    // The fingerprint decides whether a model at another path is the same model. The path counts
    // only in checkpoints without a fingerprint.
    const bool was_moved = key == kModel && then.contains(kModelFingerprint);
    if (before == value || is_new || was_moved) continue;
    std::string& list = key == kModelFingerprint ? model : text;
    if (!list.empty()) list += ", ";
    list += DescribeDifference(key, before, value);
  }
  return model.empty() || text.empty() ? model + text : model + ", " + text;
}

// Without a record of the layout, the fingerprint of the data tells whether the texts are the same.
bool HasOtherTextsOfOlderVersion(const Json& then, const Json& now) {
  const auto before = then.find(kDataFingerprint);
  return !then.contains(kLayout) && (before == then.end() || *before != now.at(kDataFingerprint));
}

}  // namespace qlora
