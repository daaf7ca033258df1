#include "bench/bench_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/check.h"
#include "hub/known_models.h"
#include "io/json.h"
#include "model/shared_options.h"
#include "plan/target_modules.h"

namespace qlora::bench {
void ModelBenchOptions::Declare(OptionTable& table) {
  table.Section("Shape (default: TinyLlama-1.1B)");
  table.Add(
      "shape", &shape,
      "name of a well-known model, as of plan, or a config.json; in place of the sizes below");
  table.Add("hidden_size", &hidden_size, "width of the residual stream");
  table.Add("intermediate_size", &intermediate_size, "width of the MLP");
  table.Add("num_hidden_layers", &num_hidden_layers,
            "number of layers; 0: 22, or all of the shape; fewer than the shape has: its first "
            "layers");
  table.Add("num_attention_heads", &num_attention_heads, "number of query heads");
  table.Add("num_key_value_heads", &num_key_value_heads, "number of key and value heads");
  table.Add("vocab_size", &vocab_size, "number of tokens: rows of the embedding and of the head");
  table.Add("lora_r", &lora_r, "LoRA rank on all linear layers of a block");
  table.Add("load_in_4bit", &load_in_4bit, "NF4 with double quantization; false: bfloat16");
  table.Add("weight_formats", &weight_formats,
            "formats of the weights: nf4, Q4_0, Q4_K and other blocks of ggml, comma-separated; "
            "steps of several take turns");
  DeclareDevice(table, &device);
  DeclareComputeType(table, &compute_dtype);
  table.Add("int8_backward", &int8_backward,
            "steps with compute_dtype int8 have gradients in 8 bits, too");
}

std::string ModelBenchOptions::ShapeText() const {
  if (shape.empty()) {
    return fmt::format("L{} D{} F{}", LayersWithoutShape(), hidden_size, intermediate_size);
  }
  return num_hidden_layers == 0 ? shape : fmt::format("{} L{}", shape, num_hidden_layers);
}

std::vector<std::string> ModelBenchOptions::Formats() const {
  return load_in_4bit ? weight_formats : std::vector<std::string>{"bf16"};
}

std::string ModelBenchOptions::ShapeOf(const std::string& base, const std::string& format) const {
  return weight_formats == ModelBenchOptions().weight_formats ? base : base + " " + format;
}

DType OperandType(const Precision& precision, const std::string& format) {
  const bool is_coded = precision.frozen != FrozenProducts::kFloat && format != "bf16";
  return is_coded ? DType::kI8 : precision.activation;
}

namespace {

// Keeps the first layers of a model of `all`. Of layers that share keys and values, which are the
// last, as large a part stays as of all layers, or less: the very last sees everything, and so must
// one before them.
void KeepLayers(std::int64_t layers, std::int64_t all, Json& config) {
  config["num_hidden_layers"] = layers;
  if (config.contains("layer_types") && config["layer_types"].is_array()) {
    Json& types = config["layer_types"];
    while (std::ssize(types) > layers) types.erase(types.size() - 1);
  }
  if (config.contains("full_attn_idxs") && config["full_attn_idxs"].is_array()) {
    Json kept = Json::array();
    for (const Json& l : config["full_attn_idxs"]) {
      if (l < layers) kept.push_back(l);
    }
    config["full_attn_idxs"] = kept;
  }
  // Layers without experts are the first ones, two where the config does not say.
  if (config.value("model_type", "") == "lfm2_moe") {
    config["num_dense_layers"] =
        std::min(config.value("num_dense_layers", std::int64_t{2}), layers);
  }
  if (config.contains("num_kv_shared_layers")) {
    Json& shared = config["num_kv_shared_layers"];
    if (!shared.is_number_integer()) return;
    std::int64_t kept = shared.get<std::int64_t>() * layers / all;
    if (config.contains("layer_types") && config["layer_types"].is_array()) {
      const Json& types = config["layer_types"];
      const auto owner = std::ranges::find(types, Json("full_attention"));
      kept = std::max<std::int64_t>(std::min(kept, types.end() - owner - 1), 0);
    }
    shared = kept;
  }
}

DecoderConfig ConfigOfKnown(const ModelBenchOptions& options, std::int64_t max_positions) {
  const std::string& name = options.shape;
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(name, ignored);
  std::optional<Json> json = is_file ? ReadJsonFile(name) : KnownModelConfig(name);
  if (!json) {
    ThrowInvalidInput(
        "shape: expected a config.json or the name of a well-known model, such as {}, found '{}'",
        KnownModelNames().front(), name);
  }
  DecoderConfig c = ParseDecoderConfig(*json, name);
  const std::int64_t layers = options.num_hidden_layers;
  if (layers > c.num_hidden_layers) {
    ThrowInvalidInput("num_hidden_layers: expected at most {}, as {} has, found {}",
                      c.num_hidden_layers, name, layers);
  }
  if (layers > 0) {
    // Models that see or hear have the sizes of the text part apart.
    Json& sizes = json->contains("text_config") ? json->at("text_config") : *json;
    KeepLayers(layers, c.num_hidden_layers, sizes);
    c = ParseDecoderConfig(*json, name);
  }
  c.max_position_embeddings = max_positions;
  return c;
}

}  // namespace

DecoderConfig ConfigOf(const ModelBenchOptions& o, std::int64_t max_positions) {
  if (!o.shape.empty()) return ConfigOfKnown(o, max_positions);
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = o.vocab_size;
  c.hidden_size = o.hidden_size;
  c.intermediate_size = o.intermediate_size;
  c.num_hidden_layers = o.LayersWithoutShape();
  c.num_attention_heads = o.num_attention_heads;
  c.num_key_value_heads = o.num_key_value_heads;
  // Checked here, because options are numbers of the user: otherwise K could be a fraction.
  if (o.num_attention_heads < 1 || o.num_key_value_heads < 1 ||
      o.hidden_size % o.num_attention_heads != 0 ||
      o.num_attention_heads % o.num_key_value_heads != 0) {
    ThrowInvalidInput(
        "hidden_size must be a multiple of num_attention_heads, and that one of "
        "num_key_value_heads");
  }
  c.head_dim = o.hidden_size / o.num_attention_heads;
  c.max_position_embeddings = max_positions;
  c.rms_norm_eps = 1e-5f;
  c.attention_scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  RopeConfig rope;
  rope.rotary_dim = c.head_dim;
  c.ropes = {rope};
  c.layers.assign(c.num_hidden_layers, LayerConfig{});
  return c;
}

LoraAdapter RandomAdapter(const ModelBenchOptions& options, const DecoderConfig& config,
                          Memory& memory) {
  AdapterConfig adapter;
  adapter.r = options.lora_r;
  adapter.lora_alpha = static_cast<double>(2 * options.lora_r);
  // All kinds, as the QLoRA paper (arXiv:2305.14314) and training without other options adapt them.
  adapter.target_modules = LinearNamesOf(config);
  return LoraAdapter::Create(adapter, config, memory, 1);
}

}  // namespace qlora::bench
