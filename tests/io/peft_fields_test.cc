// Every field of PEFT's LoraConfig (0.20) with a value other than its default: it changes what the
// adapter does here as it does there, it is refused by its name, or it is of training alone.
#include <map>

#include "io/json.h"
#include "io/peft/peft_config.h"
#include "io/test_util.h"

namespace qlora {
namespace {

constexpr const char* kQ0 = "model.layers.0.self_attn.q_proj";
constexpr const char* kQ1 = "model.layers.1.self_attn.q_proj";
constexpr const char* kExpert = "model.layers.0.mlp.experts.3.down_proj";

AdapterConfig With(const std::string& field, const Json& value) {
  Json json = {{"peft_type", "LORA"}, {"target_modules", {"q_proj"}}, {"r", 4}, {"lora_alpha", 8}};
  // layers_pattern has a meaning beside layers_to_transform alone.
  if (field == "layers_pattern") json["layers_to_transform"] = 1;
  json[field] = value;
  std::vector<std::string> unknown;
  const AdapterConfig config = ParseAdapterConfig(json.dump(), "a.json", unknown);
  EXPECT_TRUE(unknown.empty()) << field << " is not known";
  return config;
}

struct Honoured {
  Json value;
  bool (*acts)(const AdapterConfig&);
};

const std::map<std::string, Honoured>& HonouredFields() {
  static const std::map<std::string, Honoured> fields = {
      {"r",
       {2, [](const AdapterConfig& c) { return RankOf(c, kQ0) == 2 && ScaleOf(c, kQ0) == 4; }}},
      {"lora_alpha", {2, [](const AdapterConfig& c) { return ScaleOf(c, kQ0) == 0.5; }}},
      {"target_modules",
       {{"v_proj"}, [](const AdapterConfig& c) { return !IsTargetModule(c, kQ0); }}},
      {"exclude_modules",
       {{"layers.0.self_attn.q_proj"},
        [](const AdapterConfig& c) { return !IsTargetModule(c, kQ0) && IsTargetModule(c, kQ1); }}},
      {"layers_to_transform",
       {1,
        [](const AdapterConfig& c) { return !IsTargetModule(c, kQ0) && IsTargetModule(c, kQ1); }}},
      {"layers_pattern",
       {"blocks", [](const AdapterConfig& c) { return !IsTargetModule(c, kQ1); }}},
      {"rank_pattern",
       {{{"layers.1.self_attn.q_proj", 8}},
        [](const AdapterConfig& c) { return RankOf(c, kQ0) == 4 && RankOf(c, kQ1) == 8; }}},
      {"alpha_pattern",
       {{{"layers.1.self_attn.q_proj", 2}},
        [](const AdapterConfig& c) { return ScaleOf(c, kQ0) == 2 && ScaleOf(c, kQ1) == 0.5; }}},
      {"use_rslora", {true, [](const AdapterConfig& c) { return ScaleOf(c, kQ0) == 4; }}},
      {"use_dora", {true, [](const AdapterConfig& c) { return c.use_dora; }}},
      {"modules_to_save",
       {{"lm_head"},
        [](const AdapterConfig& c) {
          return c.modules_to_save == std::vector<std::string>{"lm_head"};
        }}},
      {"ensure_weight_tying", {true, [](const AdapterConfig& c) { return c.ensure_weight_tying; }}},
      {"trainable_token_indices",
       {{3, 5},
        [](const AdapterConfig& c) {
          return c.trainable_token_indices.size() == 1 &&
                 c.trainable_token_indices[0].first == "embed_tokens" &&
                 c.trainable_token_indices[0].second == std::vector<std::int64_t>{3, 5};
        }}},
      {"target_parameters",
       {{"mlp.experts.down_proj"},
        [](const AdapterConfig& c) { return IsTargetModule(c, kExpert); }}},
      {"lora_dropout", {0.5, [](const AdapterConfig& c) { return c.lora_dropout == 0.5; }}},
      {"task_type",
       {"FEATURE_EXTRACTION",
        [](const AdapterConfig& c) { return c.task_type == "FEATURE_EXTRACTION"; }}},
      {"base_model_name_or_path",
       {"org/base",
        [](const AdapterConfig& c) { return c.base_model_name_or_path == "org/base"; }}},
      {"revision", {"v2", [](const AdapterConfig& c) { return c.revision == "v2"; }}},
      // PEFT turns it off for linears, with a warning: their weights are (out, in).
      {"fan_in_fan_out", {true, [](const AdapterConfig& c) { return c.fan_in_fan_out; }}},
  };
  return fields;
}

// Values that change what a trained adapter computes, or which base it is for.
const std::vector<std::pair<std::string, Json>>& RefusedFields() {
  static const std::vector<std::pair<std::string, Json>> fields = {
      {"peft_type", "LOHA"},
      {"bias", "some"},
      {"lora_bias", true},
      {"init_lora_weights", "pissa"},
      {"init_lora_weights", "pissa_niter_16"},
      {"init_lora_weights", "olora"},
      {"init_lora_weights", "loftq"},
      {"init_lora_weights", "corda"},
      {"init_lora_weights", "lora_ga"},
      {"init_lora_weights", "a later one"},
      {"megatron_config", {{"num_layers", 2}}},
      {"layer_replication", {{0, 4}, {2, 5}}},
      {"alora_invocation_tokens", {5, 6}},
      {"use_qalora", true},
      {"use_bdlora", {{"nblocks", 2}}},
      {"arrow_config", {{"top_k", 3}}},
      {"kasa_config", {{"beta", 1}}},
      {"velora_config", {{"num_groups", 2}}},
      {"monteclora_config", {{"monteclora_n", 8}}},
  };
  return fields;
}

// How the adapter was initialized, saved or run in training; without an effect once it is trained.
const std::map<std::string, Json>& FieldsOfTraining() {
  static const std::map<std::string, Json> fields = {
      {"inference_mode", true},
      {"auto_mapping", {{"base_model_class", "LlamaForCausalLM"}}},
      {"peft_version", "0.20.0"},
      {"runtime_config", {{"ephemeral_gpu_offload", true}}},
      {"megatron_core", "other.core"},        // without megatron_config
      {"qalora_group_size", 32},              // without use_qalora
      {"loftq_config", {{"loftq_bits", 8}}},  // without the initialization
      {"eva_config", {{"rho", 2.0}}},
      {"corda_config", {{"cache_file", "x"}}},
      {"lora_ga_config", {{"direction", "ArBr"}}},
  };
  return fields;
}

TEST(PeftFieldsTest, AreHonoured) {
  for (const auto& [field, honoured] : HonouredFields()) {
    EXPECT_TRUE(honoured.acts(With(field, honoured.value))) << field;
    // Without it the adapter is another one, so that the check above sees the field.
    EXPECT_FALSE(honoured.acts(With("r", 4))) << field;
  }
}

TEST(PeftFieldsTest, AreRefusedByName) {
  for (const auto& [field, value] : RefusedFields()) {
    SCOPED_TRACE(field + " " + value.dump());
    ExpectRefused([&, f = field, v = value] { With(f, v); }, "'" + field + "'");
  }
}

TEST(PeftFieldsTest, OfTrainingHaveNoEffect) {
  const std::string plain = FormatAdapterConfig(With("r", 4));
  for (const auto& [field, value] : FieldsOfTraining()) {
    EXPECT_EQ(FormatAdapterConfig(With(field, value)), plain) << field;
  }
  for (const char* init : {"gaussian", "eva", "orthogonal", "mica"}) {
    EXPECT_EQ(FormatAdapterConfig(With("init_lora_weights", init)), plain) << init;
  }
  EXPECT_EQ(FormatAdapterConfig(With("init_lora_weights", false)), plain);
  // Of trained biases the tensors tell.
  for (const char* bias : {"all", "lora_only"}) {
    EXPECT_EQ(FormatAdapterConfig(With("bias", bias)), plain) << bias;
  }
}

TEST(PeftFieldsTest, AreAllThere) {
  constexpr const char* kFields[] = {"alora_invocation_tokens",
                                     "alpha_pattern",
                                     "arrow_config",
                                     "auto_mapping",
                                     "base_model_name_or_path",
                                     "bias",
                                     "corda_config",
                                     "ensure_weight_tying",
                                     "eva_config",
                                     "exclude_modules",
                                     "fan_in_fan_out",
                                     "inference_mode",
                                     "init_lora_weights",
                                     "kasa_config",
                                     "layer_replication",
                                     "layers_pattern",
                                     "layers_to_transform",
                                     "loftq_config",
                                     "lora_alpha",
                                     "lora_bias",
                                     "lora_dropout",
                                     "lora_ga_config",
                                     "megatron_config",
                                     "megatron_core",
                                     "modules_to_save",
                                     "monteclora_config",
                                     "peft_type",
                                     "peft_version",
                                     "qalora_group_size",
                                     "r",
                                     "rank_pattern",
                                     "revision",
                                     "runtime_config",
                                     "target_modules",
                                     "target_parameters",
                                     "task_type",
                                     "trainable_token_indices",
                                     "use_bdlora",
                                     "use_dora",
                                     "use_qalora",
                                     "use_rslora",
                                     "velora_config"};
  for (const std::string field : kFields) {
    const bool refused = std::ranges::any_of(
        RefusedFields(), [&](const auto& entry) { return entry.first == field; });
    EXPECT_TRUE(refused || HonouredFields().contains(field) || FieldsOfTraining().contains(field))
        << field;
  }
}

}  // namespace
}  // namespace qlora
