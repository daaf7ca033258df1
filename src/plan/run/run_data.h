// The data of a run, tokenized and checked once: tokenizer, chat template and data sets.
#ifndef QLORA_PLAN_RUN_RUN_DATA_H_
#define QLORA_PLAN_RUN_RUN_DATA_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_stream.h"
#include "data/dataset.h"
#include "data/recorded_prompts.h"
#include "data/training_data.h"
#include "plan/sample_prompts.h"
#include "prompt/chat_template.h"
#include "qlora/context.h"
#include "qlora/data_report.h"
#include "qlora/prompt.h"
#include "qlora/train_options.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The data sets refer to tokenizer and template, so this is not moved.
struct RunData {
  Tokenizer tokenizer;
  DataLimits limits;
  std::unique_ptr<ChatTemplate> chat = {};  // null when the model has none
  Dataset train = {};
  std::optional<Dataset> held_out = {};
  std::optional<Dataset> calibration = {};  // of decisions, for their temperatures
  StreamOptions stream = {};
  std::optional<Dataset> anchors = {};  // of which a micro-batch joins each step
  StreamOptions anchor_stream = {};
  PreferenceForm form = PreferenceForm::kNone;
  TrainingDataReport report = {};
  RecordedPrompts recorded = {};
  SamplePrompts prompts = {};
  PromptExample example = {};
  bool has_other_tokenizer = false;     // the adapter that training continues has its own
  std::vector<std::string> notes = {};  // some may be ""
};

// Errors: InvalidInput with file and line for everything that is wrong with the data, and for
// prompts of samples that the model cannot answer.
std::shared_ptr<const RunData> OpenRunData(Context& context, const TrainOptions& options,
                                           const std::filesystem::path& model_dir,
                                           const DataLimits& limits, const ProgressFn& reading);

}  // namespace qlora

#endif  // QLORA_PLAN_RUN_RUN_DATA_H_
