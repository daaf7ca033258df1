// adapter_config.json of PEFT (github.com/huggingface/peft): the modules that a LoRA adapter was
// attached to, with rank and scale. Field names and defaults are PEFT's.
#ifndef QLORA_IO_PEFT_PEFT_CONFIG_H_
#define QLORA_IO_PEFT_PEFT_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace qlora {

// Module names, each of which matches itself and every path that ends with ".name"; or one regular
// expression that must match the whole module path.
using ModuleSelection = std::variant<std::vector<std::string>, std::string>;

struct AdapterConfig {
  std::string base_model_name_or_path;  // empty: null
  std::string revision;                 // empty: null
  std::string task_type = "CAUSAL_LM";  // empty: null
  std::int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  ModuleSelection target_modules;   // the string "all-linear": every linear but lm_head
  ModuleSelection exclude_modules;  // empty: none
  std::vector<std::string> modules_to_save;
  bool ensure_weight_tying = false;  // of modules_to_save in a model with tied embeddings
  bool fan_in_fan_out = false;
  bool use_rslora = false;
  bool use_dora = false;
  // Regular expressions for the end of a module path -> its own rank or alpha. The first that
  // matches counts.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::int64_t> layers_to_transform;  // empty: all
  std::vector<std::string> layers_pattern;        // names of the layer list; empty: any
  // Parameters that are adapted in place of modules: "mlp.experts.down_proj", the down_proj of all
  // experts in one tensor.
  std::vector<std::string> target_parameters;
  // Rows of a table that have new values: module name -> token ids, in the order of the rows.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> trainable_token_indices;
  // What the adapter's module paths have in the place of "model.": the class that it was trained
  // on decides ("model.language_model." in multimodal models). Not a key of the file: names of
  // tensors tell it. `module` below begins with "model." (or is "lm_head") whatever it is.
  std::string module_prefix = "model.";
  // What the class calls its embedding, "embed_tokens" here and in modules_to_save.
  std::string embedding = "embed_tokens";
};

// The path of a module of this program ("model.layers.0.mlp.up_proj", "lm_head") as the adapter
// spells it.
std::string SpelledPath(const AdapterConfig& config, std::string_view module);

// Reads adapter_config.json. Keys that PEFT writes and that mean nothing to a trained adapter are
// skipped; other unknown keys are appended to `unknown_keys`. Errors: InvalidInput that names file
// and key, for wrong types and for unsupported settings that change the result of the adapter.
AdapterConfig ParseAdapterConfig(const std::string& text, const std::string& where,
                                 std::vector<std::string>& unknown_keys);

// The file in the folder of an adapter.
inline constexpr const char* kAdapterConfig = "adapter_config.json";

// Returns the base that the adapter of PEFT or mlx-lm in a folder records; "" where it does not.
// Errors: as ReadTextFile and ParseAdapterConfig.
std::string BaseOfAdapter(const std::filesystem::path& directory);

// Returns the text of adapter_config.json as PEFT writes it: indent 2, sorted keys.
std::string FormatAdapterConfig(const AdapterConfig& config);

// True when the linear at `module` (a path of the base model such as
// "model.layers.0.self_attn.q_proj") carries an adapter, by PEFT's rules.
bool IsTargetModule(const AdapterConfig& config, std::string_view module);

// The path that rank_pattern and alpha_pattern are compared with: that of the module as the adapter
// spells it, or of the parameter that holds this linear of an expert (target_parameters).
std::string PatternPath(const AdapterConfig& config, std::string_view module);

std::int64_t RankOf(const AdapterConfig& config, std::string_view module);
double AlphaOf(const AdapterConfig& config, std::string_view module);
// Returns the factor of B A x: alpha / r, or alpha / sqrt(r) with use_rslora.
double ScaleOf(const AdapterConfig& config, std::string_view module);

}  // namespace qlora

#endif  // QLORA_IO_PEFT_PEFT_CONFIG_H_
