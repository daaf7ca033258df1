#include "train/resume_options.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "io/json.h"

namespace qlora {
namespace {

// Where, how often and how fast a run works.
constexpr std::string_view kFreeOptions[] = {"output_dir",
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
                                             "recompute"};

}  // namespace

bool MayChangeOnResume(std::string_view option) {
  return std::find(std::begin(kFreeOptions), std::end(kFreeOptions), option) !=
         std::end(kFreeOptions);
}

Json OptionsToJson(TrainOptions options) {
  OptionTable table;
  options.Declare(table);
  Json json = Json::object();
  for (const Option& option : table.options()) json[option.name] = option.ToString();
  return json;
}

Json OptionsToResume(const TrainOptions& options, DType activation, std::uint64_t fingerprint) {
  const Json all = OptionsToJson(options);
  Json recorded = Json::object();
  for (const auto& [name, value] : all.items()) {
    if (!MayChangeOnResume(name)) recorded[name] = value;
  }
  // "auto" may mean another type on another machine.
  recorded["compute_dtype"] = activation == DType::kBF16 ? "bfloat16" : "float32";
  recorded["dataset_fingerprint"] = fmt::format("{:016x}", fingerprint);
  return recorded;
}

}  // namespace qlora
