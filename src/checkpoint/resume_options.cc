#include "checkpoint/resume_options.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "checkpoint/config_text.h"
#include "io/json.h"

namespace qlora {
namespace {

// Options that are not recorded. All others decide the result of a step: a run that resumed with
// other values would be another run.
constexpr auto kFreeOptions = std::to_array<std::string_view>({
    // The length of a run. The schedule of the learning rate follows.
    "num_train_epochs",
    "max_steps",
    // Its steps have as many micro-batches as gradient_accumulation_steps says.
    "global_batch_size",
    "pipeline_stages",
    "ddp_backend",
    // Places of model and data. Fingerprints show that they are the same.
    "model_name_or_path",
    "dataset",
    "eval_dataset",
    "anchor",
    "bad_records",
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
    "evals_per_epoch",
    "eval_ratio",
    "eval_on_start",
    "sample_prompts",
    "sample_raw",
    "sample_steps",
    "sample_max_new_tokens",
    "save_steps",
    "saves_per_epoch",
    "save_ratio",
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
constexpr const char* kModelConfig = "model_config";
constexpr const char* kModelHash = "model_hash";
constexpr const char* kDataFingerprint = "dataset_fingerprint";
constexpr const char* kDataWeights = "dataset_weights";
constexpr const char* kEvalFingerprint = "eval_fingerprint";
constexpr const char* kAnchorFingerprint = "anchor_fingerprint";
constexpr const char* kTrainTurns = "train_turns";

// How a step is split; with packing also what is in a step.
constexpr const char* kMicroBatch = "per_device_train_batch_size";
constexpr const char* kWindow = "gradient_accumulation_steps";
constexpr const char* kPacking = "packing";

// Keys that older checkpoints do not record, and whose value then is not known.
constexpr auto kLaterKeys =
    std::to_array<std::string_view>({kLayout, kModelFingerprint, kModelConfig, kModelHash,
                                     kDataWeights, kEvalFingerprint, kTrainTurns});

// The content that a fingerprint identifies, in words.
constexpr auto kContents = std::to_array<std::pair<std::string_view, const char*>>({
    {kModelFingerprint, "the weights of model_name_or_path"},
    {kModelHash, "the weights of model_name_or_path (some bytes of them)"},
    {kDataFingerprint, "the samples of dataset"},
    {kEvalFingerprint, "the samples for evaluation"},
    {kAnchorFingerprint, "the texts of anchor or their weights"},
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

// A number of an option that is recorded as text; 0 when it is not there.
std::int64_t CountOf(const Json& options, const char* key) {
  const auto text = options.find(key);
  if (text == options.end() || !text->is_string()) return 0;
  const auto count = ParseNumber<std::int64_t>(text->get_ref<const std::string&>());
  // Half of the bits each, so that products of two do not overflow.
  return std::clamp<std::int64_t>(count.value_or(0), 0, std::numeric_limits<std::int32_t>::max());
}

// The defaults stand for options that the version of a checkpoint did not have.
Json DefaultsOf(const Json& options) {
  Json defaults = OptionsToJson({});
  defaults[kAnchorFingerprint] = "";
  for (const std::string_view key : kLaterKeys) defaults.erase(std::string(key));
  for (auto option = defaults.begin(); option != defaults.end();) {
    option = options.contains(option.key()) ? defaults.erase(option) : std::next(option);
  }
  return defaults;
}

// One entry of the list in the error: words for a fingerprint, whose numbers tell people nothing,
// both values for an option.
std::string DescribeDifference(const std::string& key, const Json& then, const Json& now) {
  for (const auto& [fingerprint, content] : kContents) {
    if (fingerprint == key) return content;
  }
  if (key == kModelConfig) {
    return fmt::format("the configuration of model_name_or_path ({})",
                       DescribeConfigDifference(then.is_string() ? then.get<std::string>() : "",
                                                now.get<std::string>()));
  }
  return fmt::format("{} ({} in the checkpoint, {} now)", key, FormatJson(then), FormatJson(now));
}

// True when both records have the key, with two values.
bool IsOther(const Json& then, const Json& now, const char* key) {
  return then.contains(key) && now.contains(key) && then.at(key) != now.at(key);
}

}  // namespace

bool MayChangeOnResume(std::string_view option) { return Has(kFreeOptions, option); }

bool IsOfMicroBatches(std::string_view option) {
  return option == kMicroBatch || option == kWindow;
}

std::int64_t MicroBatchesOfStep(const Json& options) { return CountOf(options, kWindow); }

std::int64_t SamplesOfStep(const Json& options) {
  return CountOf(options, kWindow) * CountOf(options, kMicroBatch);
}

bool HasOtherMicroBatches(const Json& then, const Json& now) {
  const std::int64_t before = CountOf(then, kMicroBatch) * CountOf(then, kWindow);
  const bool is_same_step =
      before > 0 && before == CountOf(now, kMicroBatch) * CountOf(now, kWindow);
  return is_same_step && CountOf(then, kMicroBatch) != CountOf(now, kMicroBatch) &&
         now.value(kPacking, "") == "false";
}

// A step has the same samples, so the number of samples is the same before and after.
void CountAgain(const Json& then, const Json& now, TrainPosition& at) {
  if (!HasOtherMicroBatches(then, now)) return;
  const std::int64_t before = CountOf(then, kMicroBatch);
  const std::int64_t after = CountOf(now, kMicroBatch);
  const auto count = [&](std::int64_t micro_batches) {
    // A number that no run reaches is damaged, and refused where the data are opened.
    const std::int64_t most = std::numeric_limits<std::int64_t>::max() / before;
    return (std::min(micro_batches, most - after) * before + after - 1) / after;
  };
  at.epoch_batch = count(at.epoch_batch);
  // Short windows at the ends of epochs may have been several micro-batches and now be one.
  at.micro_step = std::max({count(at.micro_step), at.epoch_batch, at.step});
}

Json OptionsToJson(TrainOptions options) {
  OptionTable table;
  options.Declare(table);
  Json json = Json::object();
  for (const Option& option : table.options()) json[option.name] = option.ToString();
  return json;
}

Json RecordedOptions(const TrainOptions& options, const RecordedModel& model, const Dataset& train,
                     const Dataset* held_out, const Dataset* anchors) {
  const Json all = OptionsToJson(options);
  Json recorded = Json::object();
  for (const auto& [name, value] : all.items()) {
    if (!MayChangeOnResume(name)) recorded[name] = value;
  }
  recorded["compute_dtype"] = model.compute;
  recorded[kModel] = options.model_name_or_path;
  recorded[kModelFingerprint] = Hex(model.fingerprint);
  recorded[kModelConfig] = model.config;
  if (model.weights) recorded[kModelHash] = Hex(*model.weights);
  recorded[kDataFingerprint] = Hex(train.fingerprint());
  recorded[kDataWeights] = WeightsOf(train);
  recorded[kEvalFingerprint] = held_out != nullptr ? Hex(held_out->fingerprint()) : "";
  recorded[kAnchorFingerprint] =
      anchors != nullptr ? Hex(anchors->fingerprint()) + WeightsOf(*anchors) : "";
  return recorded;
}

void LeaveOutBase(const Json& then, Json& now) {
  const auto data = then.find(kDataFingerprint);
  if (data == then.end() || *data != now.at(kDataFingerprint)) return;
  for (const char* key : {kModel, kModelFingerprint, kModelConfig, kModelHash}) now.erase(key);
}

std::string DifferencesOnResume(const Json& then, const Json& now) {
  std::string text;
  std::string model;  // first: another model has another tokenizer, and so other samples
  const Json defaults = DefaultsOf(then);
  const bool splits_again = HasOtherMicroBatches(then, now);
  for (const auto& [key, value] : now.items()) {
    if (splits_again && IsOfMicroBatches(key)) continue;
    // Of another model, that is all.
    const bool is_of_model = key == kModelHash || key == kModelConfig;
    if (is_of_model && IsOther(then, now, kModelFingerprint)) continue;
    const Json before = then.contains(key) ? then.at(key) : defaults.value(key, Json());
    const bool is_new = before.is_null() && Has(kLaterKeys, key);
    // The fingerprint decides whether a model at another path is the same model. The path counts
    // only in checkpoints without a fingerprint.
    const bool was_moved = key == kModel && then.contains(kModelFingerprint);
    if (before == value || is_new || was_moved) continue;
    std::string& list = key.starts_with("model_") ? model : text;
    if (!list.empty()) list += ", ";
    list += DescribeDifference(key, before, value);
  }
  return model.empty() || text.empty() ? model + text : model + ", " + text;
}

std::string NoteUnrecorded(const Json& then) {
  if (then.contains(kModelConfig) && then.contains(kModelHash)) return "";
  return "the checkpoint is of an earlier release, which recorded the first bytes of each tensor "
         "alone: whether the configuration and the other bytes of the model are those of before is "
         "not known";
}

// Without a record of the layout, the fingerprint of the data tells whether the texts are the same.
bool HasOtherTextsOfOlderVersion(const Json& then, const Json& now) {
  const auto before = then.find(kDataFingerprint);
  return !then.contains(kLayout) && (before == then.end() || *before != now.at(kDataFingerprint));
}

}  // namespace qlora
