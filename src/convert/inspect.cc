// Inspect, InspectRecords and InspectData: each makes the text for people and the JSON from the
// same values. Of models, headers and tables alone are read.
#include "qlora/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/printable.h"
#include "config/config.h"
#include "convert/record_survey.h"
#include "data/sample_display.h"
#include "data/training_data.h"
#include "gguf/gguf.h"
#include "hub/hub_cache.h"
#include "io/bnb.h"
#include "io/fp8.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "io/peft/peft.h"
#include "model/checkpoint.h"
#include "model/gguf_source.h"
#include "preference/preference_fields.h"
#include "prompt/chat_template.h"
#include "prompt/chat_template_load.h"
#include "qlora/context.h"
#include "qlora/data_report.h"
#include "records/data_files.h"
#include "records/file_format.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Tensors by element type: count, values, bytes.
struct Totals {
  std::int64_t tensors = 0;
  std::int64_t values = 0;
  std::size_t bytes = 0;
};

// A map gives the types in one order for every order of the tensors.
std::map<std::string, Totals> TotalsOf(const TensorReader& reader) {
  std::map<std::string, Totals> totals;
  for (const TensorInfo& tensor : reader.tensors()) {
    Totals& t = totals[NameOf(tensor.dtype)];
    ++t.tensors;
    t.values += tensor.elements();
    // Bytes of the tensors alone, without headers and padding.
    t.bytes += tensor.bytes();
  }
  return totals;
}

void AddTotals(const TensorReader& reader, Json& json, std::string& text) {
  for (const auto& [dtype, t] : TotalsOf(reader)) {
    json["tensors"][dtype] = {{"tensors", t.tensors}, {"values", t.values}, {"bytes", t.bytes}};
    // The tensors of small types (norms in F32) would be 0.0 MiB.
    const bool large = t.bytes >= std::size_t{1} << 20;
    text += fmt::format("  {:7} {:6} tensors {:15} values {:12.1f} {}\n", dtype, t.tensors,
                        t.values, static_cast<double>(t.bytes) / (large ? 0x1p20 : 0x1p10),
                        large ? "MiB" : "KiB");
  }
}

// Adds the tokens that end a text, and whether conversations can be rendered.
void AddUsableTokenizer(const fs::path& dir, Json& json, std::string& text) {
  const Tokenizer tokenizer = Tokenizer::Load(dir);
  std::vector<std::string> ends;
  for (const std::int32_t id : tokenizer.eos_ids()) ends.push_back(tokenizer.TokenText(id));
  // A fixed date: reports of one model are equal on every day.
  const bool chat = LoadChatTemplate({}, tokenizer, ChatClock::kFixed) != nullptr;
  json["tokenizer"] = {{"vocab_size", tokenizer.vocab_size()}, {"eos", ends}, {"chat", chat}};
  text += fmt::format("  tokenizer of {} tokens, {} chat template, EOS: {}\n",
                      tokenizer.vocab_size(), chat ? "a" : "no", fmt::join(ends, " "));
}

// A model without a tokenizer that can be used has weights to look at.
void AddTokenizer(const fs::path& dir, Json& json, std::string& text) {
  // The key is always there, so that programs need not tell "no key" from "no tokenizer".
  json["tokenizer"] = nullptr;
  if (!Exists(dir / "tokenizer.json")) {
    text += "  no tokenizer.json\n";
    return;
  }
  try {
    AddUsableTokenizer(dir, json, text);
  } catch (const Error& error) {
    json["tokenizer_error"] = error.what();
    text += fmt::format("  tokenizer: {}\n", error.what());
  }
}

// Adds the state of the run, where the adapter is part of a checkpoint. Checkpoints of other
// trainers have no loss_mean.
void AddTrainerState(const fs::path& dir, Json& json, std::string& text) {
  const fs::path path = dir / "trainer_state.json";
  if (!Exists(path)) return;
  const Json state = ReadJsonFile(path);
  std::vector<std::string> parts;
  if (const Json* step = FindJson(state, "global_step", path.string())) {
    json["global_step"] = JsonAs<std::int64_t>(*step, "global_step", path.string());
    parts.push_back(fmt::format("step {}", json["global_step"].get<std::int64_t>()));
  }
  if (const Json* loss = FindJson(state, "loss_mean", path.string())) {
    json["loss_mean"] = JsonAs<double>(*loss, "loss_mean", path.string());
    parts.push_back(
        fmt::format("mean of the recent losses {:.4f}", json["loss_mean"].get<double>()));
  }
  if (!parts.empty()) text += fmt::format("  checkpoint of {}\n", fmt::join(parts, ", "));
}

// The width of one expert.
std::int64_t ExpertSize(const DecoderConfig& c) {
  return c.moe.num_experts > 0 ? c.intermediate_size : c.side_intermediate_size;
}

// Layers with experts.
std::int64_t ExpertLayers(const DecoderConfig& c) {
  return std::ranges::count_if(c.layers, [](const LayerConfig& layer) { return !layer.is_dense; });
}

Json SizesToJson(const DecoderConfig& c) {
  Json json = {{"model_type", c.model_type},
               {"hidden_size", c.hidden_size},
               {"intermediate_size", c.intermediate_size},
               {"num_hidden_layers", c.num_hidden_layers},
               {"num_attention_heads", c.num_attention_heads},
               {"num_key_value_heads", c.num_key_value_heads},
               {"head_dim", c.head_dim},
               {"vocab_size", c.vocab_size},
               {"max_position_embeddings", c.max_position_embeddings},
               {"tie_word_embeddings", c.tie_word_embeddings}};
  if (const MoeConfig& moe = c.experts(); moe.num_experts > 0) {
    json["num_experts"] = moe.num_experts;
    json["num_experts_per_tok"] = moe.num_experts_per_tok;
    json["moe_intermediate_size"] = ExpertSize(c);
    json["shared_expert_intermediate_size"] = moe.shared_intermediate_size;
    json["moe_layers"] = ExpertLayers(c);
  }
  return json;
}

std::string ExpertsToText(const DecoderConfig& c) {
  const MoeConfig& moe = c.experts();
  if (moe.num_experts == 0) return "";
  const std::int64_t layers = ExpertLayers(c);
  return fmt::format(", {} experts of size {} ({} for each token){}{}{}", moe.num_experts,
                     ExpertSize(c), moe.num_experts_per_tok,
                     moe.shared_intermediate_size > 0
                         ? fmt::format(" and a shared one of size {}", moe.shared_intermediate_size)
                         : "",
                     c.moe.num_experts == 0 ? " beside each MLP" : "",
                     layers < c.num_hidden_layers ? fmt::format(" in {} layers", layers) : "");
}

std::string SizesToText(const DecoderConfig& c) {
  return fmt::format(
      "{} layers, hidden_size {}, intermediate_size {}, {} heads ({} key/value) of {}, vocab_size "
      "{}, context {}{}{}",
      c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads,
      c.num_key_value_heads, c.head_dim, c.vocab_size, c.max_position_embeddings,
      c.tie_word_embeddings ? ", tied head" : "", ExpertsToText(c));
}

Inspection InspectModel(const fs::path& dir) {
  // Reads embedding and head where both are stored though they are tied, and no other weight.
  const DecoderConfig c = LoadDecoderConfig(dir);
  // Maps the files and reads their headers.
  const std::unique_ptr<TensorReader> reader = OpenCheckpoint(dir, c);
  const bool four_bit = HoldsBnb(*reader);
  const std::unique_ptr<TensorReader> stored = OpenStoredTensors(dir);
  const bool eight_bit = HoldsFp8(*stored);
  Json json = {{"kind", "model"}, {"path", dir.string()}};
  json.update(SizesToJson(c));
  json["quantized_4bit"] = four_bit;
  json["quantized_fp8"] = eight_bit;
  std::string text =
      fmt::format("model {}: {}\n  {}{}\n", dir.string(), c.model_type, SizesToText(c),
                  four_bit    ? ", linears in 4 bits (bitsandbytes)"
                  : eight_bit ? ", linears in 8 bits (FP8)"
                              : "");
  AddTokenizer(dir, json, text);
  // Weights in 8 bits as the files store them, not as they are loaded.
  AddTotals(eight_bit ? *stored : *reader, json, text);
  for (const UnreadTensor& tensor : reader->unread()) {
    json["unread"].push_back(tensor.name);
    text += fmt::format("  not read: {}\n", tensor.reason);
  }
  return {text, FormatJson(json, 2)};
}

// "q_proj", "v_proj": the modules that an adapter changes, without their layers.
std::set<std::string> ShortNames(const std::vector<std::string>& paths) {
  std::set<std::string> names;
  for (const std::string& path : paths) names.insert(path.substr(path.rfind('.') + 1));
  return names;
}

std::string TargetsToText(const std::vector<std::string>& paths) {
  return fmt::format("{} ({})", Counted(std::ssize(paths), "linear"),
                     fmt::join(ShortNames(paths), ", "));
}

std::string BaseToText(const std::string& name) { return name.empty() ? "an unnamed base" : name; }

std::vector<std::string> TargetsOf(const Adapter& adapter) {
  std::vector<std::string> paths;
  for (const AdapterModule& module : adapter.modules) paths.push_back(module.path);
  for (const ExpertStack& stack : adapter.stacks) {
    paths.push_back(stack.experts + "." + stack.parameter);
  }
  return paths;
}

Inspection InspectAdapter(const fs::path& dir) {
  const Adapter adapter = OpenAdapter(dir);
  const std::vector<std::string> targets = TargetsOf(adapter);
  Json json = {{"kind", "adapter"},
               {"path", dir.string()},
               {"base_model_name_or_path", adapter.config.base_model_name_or_path},
               {"r", adapter.config.r},
               {"lora_alpha", adapter.config.lora_alpha},
               {"use_rslora", adapter.config.use_rslora},
               {"modules", adapter.modules.size()},
               {"targets", ShortNames(targets)}};
  std::string text = fmt::format(
      "adapter {}: r {}, lora_alpha {}{}, on {} of {}\n", dir.string(), adapter.config.r,
      adapter.config.lora_alpha, adapter.config.use_rslora ? ", rsLoRA" : "",
      TargetsToText(targets), BaseToText(adapter.config.base_model_name_or_path));
  // A key of a later PEFT may change the adapter's result in a way that this program ignores.
  for (const std::string& key : adapter.unknown_keys) {
    text += fmt::format("  unknown key in adapter_config.json: {}\n", key);
  }
  AddTrainerState(dir, json, text);
  AddTotals(*adapter.tensors, json, text);
  return {text, FormatJson(json, 2)};
}

// Returns a metadata value as JSON; long arrays as their length.
Json ValueToJson(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, GgufArray>) {
          return std::visit(
              [](const auto& items) -> Json {
                using Items = std::decay_t<decltype(items)>;
                // An array of arrays, which the reader refuses.
                if constexpr (std::is_same_v<Items, std::monostate>) {
                  return nullptr;
                } else {
                  // A vocabulary has some hundred thousand items.
                  return fmt::format("[{} items]", items.size());
                }
              },
              v);
        } else {
          return v;
        }
      },
      value);
}

// Adds what an adapter of llama.cpp is; without a model, its matrices alone tell. Ranks may differ.
void AddGgufAdapter(const GgufReader& file, Json& json, std::string& text) {
  constexpr std::string_view kSuffix = ".weight.lora_b";
  std::vector<std::string> targets;
  std::set<std::int64_t> ranks;
  for (const TensorInfo& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kSuffix) || tensor.shape.empty()) continue;
    targets.push_back(tensor.name.substr(0, tensor.name.size() - kSuffix.size()));
    ranks.insert(tensor.shape.back());  // lora_b is (out, r), of experts (E, out, r)
  }
  const GgufSource base = AdapterBaseOf(file);
  const std::string name = base.repository.empty() ? base.name : base.repository;
  const auto* alpha = file.Get<float>("adapter.lora.alpha");
  json["adapter"] = {{"base_model_name_or_path", name},
                     {"r", ranks},
                     {"lora_alpha", alpha == nullptr ? Json() : Json(*alpha)},
                     {"modules", targets.size()},
                     {"targets", ShortNames(targets)}};
  text += fmt::format("  an adapter: r {}, lora_alpha {}, on {} of {}\n", fmt::join(ranks, ", "),
                      alpha == nullptr ? "missing" : fmt::format("{}", *alpha),
                      TargetsToText(targets), BaseToText(name));
}

// Adds the decoder of a GGUF file, or why it is none that can be trained.
void AddGgufModel(const fs::path& path, Json& json, std::string& text) {
  try {
    const DecoderConfig config = LoadDecoderConfig(path);
    // Checks that the file has the tensors that its keys promise.
    OpenCheckpoint(path, config);
    json["model"] = SizesToJson(config);
    text += fmt::format("  a model to train, {}: {}\n", config.model_type, SizesToText(config));
    for (const std::string& note : config.notes) {
      json["notes"].push_back(note);
      text += fmt::format("  note: {}\n", note);
    }
  } catch (const Error& error) {
    json["model_error"] = error.what();
    text += fmt::format("  not a model to train: {}\n", error.what());
  }
}

Inspection InspectGguf(const fs::path& path) {
  const std::unique_ptr<GgufReader> reader = OpenGguf(path);
  Json json = {{"kind", "gguf"}, {"path", path.string()}, {"metadata", Json::object()}};
  std::string text = fmt::format("GGUF {}\n", path.string());
  for (const auto& entry : reader->values().entries()) {
    json["metadata"][entry.key] = ValueToJson(entry.value);
    text += fmt::format("  {} = {}\n", entry.key, FormatJson(json["metadata"][entry.key], -1));
  }
  AddTotals(*reader, json, text);
  const auto* type = reader->Get<std::string>(kGgufType);
  if (type != nullptr && *type == "adapter") {
    AddGgufAdapter(*reader, json, text);
    return {text, FormatJson(json, 2)};
  }
  // Files of single matrices name no architecture.
  if (reader->values().Find(kGgufArchitecture) != nullptr) AddGgufModel(path, json, text);
  return {text, FormatJson(json, 2)};
}

// The functions below are false, or leave a path as it is, where it cannot be looked up: who opens
// it says why.
bool IsFolder(const fs::path& path) {
  std::error_code failed;
  return fs::is_directory(path, failed);
}

bool IsFile(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed);
}

fs::path FolderOf(const fs::path& file) {
  std::error_code failed;
  const fs::path whole = fs::absolute(file, failed);
  return (failed ? file : whole).parent_path();
}

// True for a file beside the configuration of a model or an adapter.
bool IsPartOfModel(const fs::path& file) {
  const fs::path folder = FolderOf(file);
  return Exists(folder / "config.json") || Exists(folder / kAdapterConfig);
}

// True for the name of a folder without a model, in which there are data files.
bool IsFolderOfData(const fs::path& path) {
  if (!IsFolder(path) || FindGguf(path)) return false;
  // Logs and settings beside a model, an adapter or a checkpoint are no data.
  for (const char* part : {"config.json", "adapter_config.json", "trainer_state.json"}) {
    if (Exists(path / part)) return false;
  }
  try {
    FindDataFiles(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool IsData(const std::string& path) {
  if (IsFolderOfData(path)) return true;
  if (!IsFile(path) || !HasDataExtension(path)) return false;
  const std::string extension = DataExtension(path);
  const bool may_be_part = extension == ".json" || extension == ".txt";
  return !may_be_part || !IsPartOfModel(path);
}

Inspection Inspect(const std::string& path) {
  if (IsData(path)) {
    DataFields fields;
    fields.dataset = {path};
    return InspectRecords(fields);
  }
  if (IsFile(path)) {
    if (fs::path(path).extension() == ".gguf") return InspectGguf(path);
    ThrowInvalidInput(
        "{}: expected a model or adapter directory, a .gguf file or a data file ({}){}", path,
        fmt::join(kDataExtensions, ", "),
        IsPartOfModel(path)
            ? fmt::format("; give the directory of this file, {}", FolderOf(path).string())
            : "");
  }
  // Before the model: a folder with both files is an adapter whose saver added the model's
  // config.json.
  if (Exists(fs::path(path) / "adapter_config.json")) return InspectAdapter(path);
  const fs::path model = ResolveModelDir(path);
  return FindGguf(model) ? InspectGguf(model) : InspectModel(model);
}

Inspection InspectRecords(const DataFields& fields) {
  const DataOptions options = ToDataOptions(fields, DataPurpose::kTraining, DataLimits{});
  OrderedJson json = {{"kind", "data"}, {"files", OrderedJson::array()}};
  std::string text;
  bool needs_chat_template = false;
  bool is_told = true;  // what every file holds
  bool is_of_use = false;
  std::string loss;  // an option that reads preferences
  std::set<DecisionForm> forms;
  for (const DataSource& source : options.sources) {
    const FileSurvey survey = SurveyFile(source, options);
    const bool asks = survey.format == RecordFormatName(RecordFormat::kDecision);
    is_told = is_told && !survey.format.empty() && (!asks || !survey.forms.empty());
    is_of_use = is_of_use || !survey.format.empty();
    forms.insert(survey.forms.begin(), survey.forms.end());
    if (loss.empty()) loss = survey.loss;
    text += RenderSurvey(survey);
    json["files"].push_back(SurveyToJson(survey));
    needs_chat_template = needs_chat_template || survey.needs_chat_template;
  }
  const std::string names = fmt::format("{}", fmt::join(fields.dataset, ","));
  if (is_told) CheckRead(options.decision.given, forms, names);
  // Data of which no format is told would be refused.
  if (is_of_use) {
    text += fmt::format(
        "the tokens that are trained: qlora inspect {0} --model MODEL{1}\n"
        "to train: qlora train --model MODEL --dataset {0}{1} --output-dir DIR\n",
        names, loss.empty() ? "" : " --preference-loss " + loss);
  }
  if (needs_chat_template) {
    text +=
        "conversations need a chat template: that of the model, or one that --chat-template "
        "names, such as plain for a base model\n";
  }
  return {std::move(text), FormatJson(json, 2)};
}

Inspection InspectData(Context& context, const DataInspection& options, std::int64_t samples,
                       bool color, const ProgressFn& reading) {
  if (options.per_device_train_batch_size < 1) {
    ThrowInvalidInput("per_device_train_batch_size must be positive, found {}",
                      options.per_device_train_batch_size);
  }
  DataFields fields = options.data;
  if (!options.preference_loss.empty()) {
    PreferenceFields preference;
    preference.preference_loss = options.preference_loss;
    CheckPreferenceReading(fields.reading);
    fields.reading.preference = ReadingFor(PreferenceLossOf(preference, /*label_smoothing=*/0));
  }
  const fs::path dir = ResolveModelDir(options.model);
  const DecoderConfig config = LoadDecoderConfig(dir);
  const Tokenizer tokenizer = Tokenizer::Load(dir);
  const auto chat = LoadChatTemplate(fields.chat, tokenizer, ChatClock::kFixed);
  // The same limits, split and packing as in training, so that the report matches the run's.
  const DataLimits limits{config.vocab_size, config.max_position_embeddings};
  const auto seed = static_cast<std::uint64_t>(options.seed);
  const TrainingData data =
      OpenTrainingData(fields, limits, seed, tokenizer, chat.get(), &context, {}, reading);
  const StreamOptions stream{.per_device_train_batch_size = options.per_device_train_batch_size,
                             .max_length = ResolveMaxLength(fields.reading, limits),
                             .packing = fields.packing,
                             .shuffle = fields.shuffle,
                             .seed = seed};
  const TrainingDataReport report = ReportTrainingData(data.train, data.held_out, stream);
  OrderedJson json = TrainingDataToJson(report);
  // After ReportTrainingData, whose checks of weights and sizes come before any output.
  json["shown"] = SamplesToJson(data.train, tokenizer, samples);
  std::string text =
      RenderSamples(data.train, tokenizer, samples, color) + RenderTrainingData(report);
  if (fields.reading.preference.form == PreferenceForm::kPairs) {
    text += RenderPairs(data.train);
    json["pairs"] = PairsToJson(data.train);
  }
  std::vector<std::string> warnings = WarnOfFindings(report.train);
  warnings.push_back(WarnOfHeldOutNames(report.train));
  std::erase(warnings, "");
  json["warnings"] = warnings;
  for (const std::string& warning : warnings) text += "warning: " + warning + "\n";
  return {std::move(text), FormatJson(json, 2)};
}

}  // namespace qlora
