#include "plan/run/anchor_data.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/dataset_report.h"

namespace qlora {

void OpenAnchors(Context& context, const TrainOptions& options, const ProgressFn& reading,
                 RunData& data) {
  // Options that say what the records of `dataset` mean, or what of them is trained, do not hold.
  DataFields fields = options.data;
  fields.dataset = options.anchor;
  fields.eval_dataset.clear();
  fields.reading.dataset_format = "auto";
  fields.reading.prompt_template.clear();
  fields.reading.completion_template.clear();
  fields.reading.train_on_inputs = true;
  fields.reading.assistant_only_loss = false;
  fields.reading.train_turns = "all";
  fields.reading.over_long = "truncate";
  fields.reading.max_length =
      std::min(ResolveMaxLength(options.data.reading, data.limits), options.anchor_tokens);
  fields.reading.ignore_fields.clear();
  fields.reading.preference = {};
  fields.reading.decision = {};
  Dataset anchors = Dataset::Open(ToDataOptions(fields, DataPurpose::kTraining, data.limits),
                                  data.tokenizer, data.chat.get(), &context, reading);
  for (std::int64_t f = 0; f < std::ssize(anchors.report().files); ++f) {
    if (anchors.report().files[f].samples == 0) continue;
    if (anchors.OfFile(f).layout().kind != PromptLayout::Kind::kDecision) continue;
    ThrowInvalidInput("anchor: {} has questions with answers; expected texts",
                      anchors.report().files[f].path);
  }
  data.anchor_stream = {.per_device_train_batch_size = 1,
                        .max_length = options.anchor_tokens,
                        .packing = true,
                        .shuffle = options.data.shuffle,
                        .seed = static_cast<std::uint64_t>(options.seed)};
  DataReport lost = anchors.report();
  lost.truncated = 0;  // long texts are meant to be cut
  data.notes.push_back(WarnOfLostRecords(lost, "anchor records"));
  data.report.anchors = anchors.report();
  data.anchors = std::move(anchors);
}

}  // namespace qlora
