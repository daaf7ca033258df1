#include "qlora/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/check.h"
#include "data/chat_template.h"
#include "data/sample_display.h"
#include "data/training_data.h"
#include "io/bnb.h"
#include "io/gguf.h"
#include "io/hub.h"
#include "io/json.h"
#include "io/peft.h"
#include "model/config.h"
#include "qlora/train.h"
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

std::map<std::string, Totals> TotalsOf(const TensorReader& reader) {
  std::map<std::string, Totals> totals;
  for (const TensorInfo& tensor : reader.tensors()) {
    Totals& t = totals[NameOf(tensor.dtype)];
    ++t.tensors;
    t.values += tensor.elements();
    t.bytes += tensor.bytes();
  }
  return totals;
}

void AddTotals(const TensorReader& reader, Json& json, std::string& text) {
  for (const auto& [dtype, t] : TotalsOf(reader)) {
    json["tensors"][dtype] = {{"tensors", t.tensors}, {"values", t.values}, {"bytes", t.bytes}};
    text += fmt::format("  {:7} {:6} tensors {:15} values {:12.1f} MiB\n", dtype, t.tensors,
                        t.values, static_cast<double>(t.bytes) / 0x1p20);
  }
}

Inspection InspectModel(const fs::path& dir) {
  const DecoderConfig c = LoadDecoderConfig(dir);
  const std::unique_ptr<TensorReader> reader = OpenSafetensors(dir);
  const bool four_bit =
      std::any_of(reader->tensors().begin(), reader->tensors().end(),
                  [&](const TensorInfo& tensor) { return HasQuantState(*reader, tensor.name); });
  Json json = {{"kind", "model"},
               {"path", dir.string()},
               {"model_type", c.model_type},
               {"hidden_size", c.hidden_size},
               {"intermediate_size", c.intermediate_size},
               {"num_hidden_layers", c.num_hidden_layers},
               {"num_attention_heads", c.num_attention_heads},
               {"num_key_value_heads", c.num_key_value_heads},
               {"head_dim", c.head_dim},
               {"vocab_size", c.vocab_size},
               {"max_position_embeddings", c.max_position_embeddings},
               {"tie_word_embeddings", c.tie_word_embeddings},
               {"quantized_4bit", four_bit}};
  std::string text = fmt::format(
      "model {}: {}\n  {} layers, hidden_size {}, intermediate_size {}, {} heads ({} key/value) of "
      "{}, vocab_size {}, context {}{}{}\n",
      dir.string(), c.model_type, c.num_hidden_layers, c.hidden_size, c.intermediate_size,
      c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.vocab_size,
      c.max_position_embeddings, c.tie_word_embeddings ? ", tied head" : "",
      four_bit ? ", linears in 4 bits (bitsandbytes)" : "");
  AddTotals(*reader, json, text);
  return {text, FormatJson(json, 2)};
}

Inspection InspectAdapter(const fs::path& dir) {
  const Adapter adapter = OpenAdapter(dir);
  Json json = {{"kind", "adapter"},
               {"path", dir.string()},
               {"base_model_name_or_path", adapter.config.base_model_name_or_path},
               {"r", adapter.config.r},
               {"lora_alpha", adapter.config.lora_alpha},
               {"use_rslora", adapter.config.use_rslora},
               {"modules", adapter.modules.size()}};
  std::string text = fmt::format(
      "adapter {}: r {}, lora_alpha {}{}, on {} linears of {}\n", dir.string(), adapter.config.r,
      adapter.config.lora_alpha, adapter.config.use_rslora ? ", rsLoRA" : "",
      adapter.modules.size(),
      adapter.config.base_model_name_or_path.empty() ? "an unnamed base"
                                                     : adapter.config.base_model_name_or_path);
  for (const std::string& key : adapter.unknown_keys) {
    text += fmt::format("  unknown key in adapter_config.json: {}\n", key);
  }
  AddTotals(*adapter.tensors, json, text);
  return {text, FormatJson(json, 2)};
}

// A metadata value as JSON; long arrays as their length.
Json ValueToJson(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, GgufArray>) {
          return std::visit(
              [](const auto& items) -> Json {
                using Items = std::decay_t<decltype(items)>;
                if constexpr (std::is_same_v<Items, std::monostate>) {
                  return nullptr;
                } else {
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

Inspection InspectGguf(const fs::path& path) {
  const std::unique_ptr<GgufReader> reader = OpenGguf(path);
  Json json = {{"kind", "gguf"}, {"path", path.string()}, {"metadata", Json::object()}};
  std::string text = fmt::format("GGUF {}\n", path.string());
  for (const auto& entry : reader->values().entries()) {
    json["metadata"][entry.key] = ValueToJson(entry.value);
    text += fmt::format("  {} = {}\n", entry.key, FormatJson(json["metadata"][entry.key], -1));
  }
  AddTotals(*reader, json, text);
  return {text, FormatJson(json, 2)};
}

}  // namespace

Inspection Inspect(const std::string& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    if (fs::path(path).extension() == ".gguf") return InspectGguf(path);
    ThrowInvalidInput(
        "{}: expected a model or adapter directory or a .gguf file; for data give "
        "--dataset and --model",
        path);
  }
  if (fs::exists(fs::path(path) / "adapter_config.json", ignored)) return InspectAdapter(path);
  return InspectModel(ResolveModelDir(path));
}

Inspection InspectData(Context& context, const DataInspection& options, std::int64_t samples,
                       bool color) {
  if (options.per_device_train_batch_size < 1) {
    ThrowInvalidInput("per_device_train_batch_size must be positive, found {}",
                      options.per_device_train_batch_size);
  }
  const DataFields& fields = options.data;
  const fs::path dir = ResolveModelDir(options.model);
  const DecoderConfig config = LoadDecoderConfig(dir);
  const Tokenizer tokenizer = Tokenizer::Load(dir);
  const auto chat = LoadChatTemplate(fields.chat, tokenizer, ChatClock::kFixed);
  const DataLimits limits{config.vocab_size, config.max_position_embeddings};
  const auto seed = static_cast<std::uint64_t>(options.seed);
  const TrainingData data = OpenTrainingData(fields, limits, seed, tokenizer, chat.get(), &context);
  const StreamOptions stream{.per_device_train_batch_size = options.per_device_train_batch_size,
                             .max_length = ResolveMaxLength(fields.reading, limits),
                             .packing = fields.packing,
                             .shuffle = fields.shuffle,
                             .seed = seed};
  const TrainingDataReport report = ReportTrainingData(data.train, data.held_out, stream);
  OrderedJson json = TrainingDataToJson(report);
  json["shown"] = SamplesToJson(data.train, tokenizer, samples);
  return {RenderSamples(data.train, tokenizer, samples, color) + RenderTrainingData(report),
          FormatJson(json, 2)};
}

}  // namespace qlora
