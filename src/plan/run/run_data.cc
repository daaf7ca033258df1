#include "plan/run/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/audit/lost_text.h"
#include "data/dataset_report.h"
#include "data/prompt_example.h"
#include "data/sample_display.h"
#include "model/base_record.h"
#include "plan/preference_notes.h"
#include "plan/preference_options.h"
#include "prompt/chat_template_load.h"
#include "tokenizer/adapter_files.h"

namespace qlora {
namespace {

// Says of decisions that no temperatures are fitted.
std::string WarnOfNoCalibration(const RunData& data) {
  const bool decides = data.train.layout().kind == PromptLayout::Kind::kDecision;
  if (!decides || data.calibration) return "";
  return "no temperatures are fitted after training: name data for them with "
         "calibration_dataset, hold some out with calibration_size, or run qlora calibrate";
}

std::vector<std::string> NotesOf(const RunData& data, const DataFields& fields,
                                 const std::string& tokenizer_note) {
  std::vector<std::string> notes = {WarnOfLength(fields.reading, data.limits), tokenizer_note};
  for (std::string& note : WarnOfFindings(data.train.report())) notes.push_back(std::move(note));
  if (!data.train.has_one_layout()) {
    notes.push_back(fmt::format(
        "the data files are laid out in different ways; the layout of most samples is recorded "
        "with the adapter: {}",
        DescribeLayout(*data.recorded.record.layout)));
  }
  notes.push_back(WarnOfHeldOutNames(data.report.train));
  notes.push_back(WarnOfSharedSamples(data.report));
  if (!fields.eval_dataset.empty()) {
    notes.push_back(WarnOfLostRecords(*data.report.held_out, "evaluation records"));
  }
  notes.push_back(WarnOfLostRecords(data.report.train));
  notes.push_back(WarnOfNoCalibration(data));
  notes.push_back(WarnOfLostText(data.train, data.tokenizer));
  return notes;
}

// Opens options.anchor as data.anchors (objective/anchored.h), of which every token counts. Texts
// longer than max_length or anchor_tokens are cut, and packed so that a micro-batch has
// anchor_tokens tokens at most. Adds a note where many others are left out. Errors: InvalidInput
// with file and line, and for questions.
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

}  // namespace

std::shared_ptr<const RunData> OpenRunData(Context& context, const TrainOptions& options,
                                           const std::filesystem::path& model_dir,
                                           const DataLimits& limits, const ProgressFn& reading) {
  DataFields fields = options.data;
  const bool asks = options.objective == "decision" && fields.reading.dataset_format == "auto";
  if (asks) fields.reading.dataset_format = "decision";
  fields.reading.preference = PreferenceReadingOf(options);
  const auto seed = static_cast<std::uint64_t>(options.seed);
  auto data = std::make_shared<RunData>(
      RunData{.tokenizer = Tokenizer::Load(model_dir, options.adapter), .limits = limits});
  // kFixed: templates that print the date give the same text on each day, so that a resumed run
  // trains on the same tokens.
  data->chat = LoadChatTemplate(fields.chat, data->tokenizer, ChatClock::kFixed);
  const std::string tokenizer_note = NoteOtherTokenizer(model_dir, options.adapter);
  data->has_other_tokenizer = !tokenizer_note.empty();
  // A template that the user names decides again.
  const auto recorded =
      fields.chat.chat_template.empty() ? LoadLayout(options.adapter) : std::nullopt;
  TrainingData opened = OpenTrainingData(fields, limits, seed, data->tokenizer, data->chat.get(),
                                         &context, recorded, reading);
  data->train = std::move(opened.train);
  data->held_out = std::move(opened.held_out);
  data->calibration = std::move(opened.calibration);
  data->stream.per_device_train_batch_size = options.per_device_train_batch_size;
  data->stream.max_length = ResolveMaxLength(fields.reading, limits);
  data->stream.packing = fields.packing;
  data->stream.shuffle = fields.shuffle;
  data->stream.seed = seed;
  data->form = fields.reading.preference.form;

  data->report = ReportTrainingData(data->train, data->held_out, data->stream);
  data->recorded = RecordPrompts(data->train, fields, data->tokenizer, data->chat.get(),
                                 ChatTemplateDir(options.adapter));
  const PromptLayout& layout = *data->recorded.record.layout;
  if (layout == data->train.layout()) {
    data->example = FindPromptExample(data->train, data->tokenizer);
  }
  data->prompts = EncodePrompts(options, layout, data->tokenizer, data->chat.get(), limits);
  data->notes = NotesOf(*data, fields, tokenizer_note);
  data->notes.push_back(NoteOfPreferences(options, data->train));
  if (!options.anchor.empty()) OpenAnchors(context, options, reading, *data);
  return data;
}

}  // namespace qlora
