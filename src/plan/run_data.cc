#include "plan/run_data.h"

#include <utility>

#include "model/base_record.h"
#include "prompt/chat_template_load.h"
#include "tokenizer/adapter_files.h"

namespace qlora {

std::shared_ptr<const RunData> OpenRunData(Context& context, const TrainOptions& options,
                                           const std::filesystem::path& model_dir,
                                           const DataLimits& limits, const ProgressFn& reading) {
  const DataFields& fields = options.data;
  const auto seed = static_cast<std::uint64_t>(options.seed);
  auto data = std::make_shared<RunData>(
      RunData{.tokenizer = Tokenizer::Load(model_dir, options.adapter), .limits = limits});
  // kFixed: templates that print the date give the same text on each day, so that a resumed run
  // trains on the same tokens.
  data->chat = LoadChatTemplate(fields.chat, data->tokenizer, ChatClock::kFixed);
  data->warning = WarnOfLength(fields.reading, limits);
  data->tokenizer_note = NoteOtherTokenizer(model_dir, options.adapter);
  // A template that the user names decides again.
  const auto recorded =
      fields.chat.chat_template.empty() ? LoadLayout(options.adapter) : std::nullopt;
  TrainingData opened = OpenTrainingData(fields, limits, seed, data->tokenizer, data->chat.get(),
                                         &context, recorded, reading);
  data->train = std::move(opened.train);
  data->held_out = std::move(opened.held_out);
  data->stream.per_device_train_batch_size = options.per_device_train_batch_size;
  data->stream.max_length = ResolveMaxLength(fields.reading, limits);
  data->stream.packing = fields.packing;
  data->stream.shuffle = fields.shuffle;
  data->stream.seed = seed;
  return data;
}

}  // namespace qlora
