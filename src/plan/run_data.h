// The data of a run, tokenized and checked once: tokenizer, chat template and data sets.
#ifndef QLORA_PLAN_RUN_DATA_H_
#define QLORA_PLAN_RUN_DATA_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "data/batch_stream.h"
#include "data/dataset.h"
#include "data/training_data.h"
#include "prompt/chat_template.h"
#include "prompt/prompt_renderer.h"
#include "qlora/context.h"
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
  StreamOptions stream = {};
  std::string warning = {};  // about max_length, or ""
  // That the adapter which training continues has its own tokenizer, or "".
  std::string tokenizer_note = {};
};

// Errors: InvalidInput with file and line for everything that is wrong with the data.
std::shared_ptr<const RunData> OpenRunData(Context& context, const TrainOptions& options,
                                           const std::filesystem::path& model_dir,
                                           const DataLimits& limits, const ProgressFn& reading);

}  // namespace qlora

#endif  // QLORA_PLAN_RUN_DATA_H_
