// The adapter that training continues, on a model of another class.
#include "plan/new_adapter.h"

#include "backend/backend.h"
#include "model/checkpoint.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

class ContinuedPathsTest : public TinyRunTest {
 protected:
  // Expects that an adapter with this configuration continues with the same ranks and scales where
  // the class of the model has other paths, and has `prefix` then.
  void ExpectContinued(const AdapterConfig& config, const std::string& prefix) const {
    DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
    const LoraAdapter saved = LoraAdapter::Create(config, decoder, HostMemory(), 1);
    saved.Save(root_ / "adapter");
    decoder.module_prefix = "model.language_model.";
    TrainOptions options = Options("run");
    options.adapter = root_ / "adapter";
    const LoraAdapter continued = DescribeAdapter(options, decoder, HostMemory());
    EXPECT_EQ(continued.config().module_prefix, prefix);
    for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
      Combine(saved.layers()[l], continued.layers()[l],
              [](const LoraLinear& a, const LoraLinear& b) {
                EXPECT_EQ(a.rank, b.rank) << a.path;
                EXPECT_EQ(a.scale, b.scale) << a.path;
                return 0;
              });
    }
  }
};

TEST_F(ContinuedPathsTest, NamesFitEveryClassAndPathsTheirOwn) {
  AdapterConfig plain;
  plain.r = 4;
  plain.target_modules = std::vector<std::string>{"q_proj", "v_proj"};
  plain.rank_pattern = {{"v_proj", 2}};
  ExpectContinued(plain, "model.language_model.");
  const std::string path = "model.layers.0.self_attn.q_proj";
  AdapterConfig config = plain;
  config.target_modules = std::vector<std::string>{path};
  ExpectContinued(config, "model.");
  config = plain;
  config.rank_pattern = {{path, 2}};
  ExpectContinued(config, "model.");
  config = plain;
  config.alpha_pattern = {{path, 2}};
  ExpectContinued(config, "model.");
  config = plain;
  config.exclude_modules = std::vector<std::string>{path};
  ExpectContinued(config, "model.");
}

DecoderConfig GptOss() {
  const Json json = {
      {"model_type", "gpt_oss"}, {"hidden_size", 32},        {"intermediate_size", 8},
      {"num_hidden_layers", 2},  {"num_attention_heads", 2}, {"num_key_value_heads", 1},
      {"head_dim", 8},           {"num_local_experts", 4},   {"num_experts_per_tok", 2}};
  return ParseDecoderConfig(json, "config.json");
}

// The experts of gpt-oss are parameters to PEFT, which lists them apart.
TEST_F(ContinuedPathsTest, ExpertsOfGptOssAreParameters) {
  const DecoderConfig decoder = GptOss();
  TrainOptions options;
  options.lora_dropout = 0;
  using Names = std::vector<std::string>;
  const AdapterConfig plain = ToAdapterConfig(options, decoder);
  EXPECT_EQ(plain.target_modules, ModuleSelection(Names{"k_proj", "o_proj", "q_proj", "v_proj"}));
  EXPECT_TRUE(plain.target_parameters.empty());
  options.lora_target_modules = {"q_proj", "gate_up_proj", "1.mlp.experts.down_proj"};
  options.rank_pattern = {"mlp.experts.down_proj=3"};
  const AdapterConfig config = ToAdapterConfig(options, decoder);
  EXPECT_EQ(config.target_modules, ModuleSelection(Names{"q_proj"}));
  EXPECT_EQ(config.target_parameters,
            (Names{"mlp.experts.gate_up_proj", "1.mlp.experts.down_proj"}));
  const LoraAdapter adapter(config, decoder, HostMemory());
  EXPECT_EQ(adapter.layers()[0].gate_up[3].rank, options.lora_r);
  EXPECT_EQ(adapter.layers()[0].down[0].rank, 0);
  EXPECT_EQ(adapter.layers()[1].down[0].rank, 3);
  options.lora_target_modules = {"q_proj", "gate_proj"};
  options.rank_pattern.clear();
  EXPECT_THROW(ToAdapterConfig(options, decoder), Error);
}

DecoderConfig Gemma4WithExperts() {
  const Json json = {{"model_type", "gemma4_text"},
                     {"hidden_size", 32},
                     {"intermediate_size", 24},
                     {"num_hidden_layers", 2},
                     {"num_attention_heads", 2},
                     {"num_key_value_heads", 1},
                     {"head_dim", 8},
                     {"global_head_dim", 8},
                     {"vocab_size", 32},
                     {"hidden_size_per_layer_input", 0},
                     {"enable_moe_block", true},
                     {"num_experts", 4},
                     {"top_k_experts", 2},
                     {"moe_intermediate_size", 6},
                     {"layer_types", {"sliding_attention", "full_attention"}}};
  return ParseDecoderConfig(json, "config.json");
}

// Beside an MLP that has a down_proj too.
TEST_F(ContinuedPathsTest, ExpertsOfGemma4AreNamedAsSuch) {
  const DecoderConfig decoder = Gemma4WithExperts();
  TrainOptions options;
  using Names = std::vector<std::string>;
  const AdapterConfig plain = ToAdapterConfig(options, decoder);
  EXPECT_EQ(plain.target_modules, ModuleSelection(Names{"down_proj", "gate_proj", "k_proj",
                                                        "o_proj", "q_proj", "up_proj", "v_proj"}));
  EXPECT_TRUE(plain.target_parameters.empty());
  const LoraAdapter usual(plain, decoder, HostMemory());
  EXPECT_EQ(usual.layers()[0].side_out[0].rank, 0);
  EXPECT_EQ(usual.layers()[0].side_router[0].rank, 0);

  options.lora_dropout = 0;
  options.lora_target_modules = {"down_proj", "router.proj", "experts.gate_up_proj",
                                 "1.experts.down_proj"};
  options.rank_pattern = {"experts.gate_up_proj=3"};
  options.exclude_modules = {"0.mlp.down_proj"};
  const AdapterConfig config = ToAdapterConfig(options, decoder);
  EXPECT_EQ(config.target_modules, ModuleSelection(Names{"down_proj", "router.proj"}));
  EXPECT_EQ(config.target_parameters, (Names{"experts.gate_up_proj", "1.experts.down_proj"}));
  const LoraAdapter adapter(config, decoder, HostMemory());
  EXPECT_EQ(adapter.layers()[0].down[0].rank, 0);
  EXPECT_EQ(adapter.layers()[1].down[0].rank, options.lora_r);
  EXPECT_EQ(adapter.layers()[0].side_router[0].rank, options.lora_r);
  EXPECT_EQ(adapter.layers()[0].side_in[3].rank, 3);
  EXPECT_EQ(adapter.layers()[0].side_out[3].rank, 0);
  EXPECT_EQ(adapter.layers()[1].side_out[3].rank, options.lora_r);

  // The MLP's alone, while the experts' is trained.
  options.exclude_modules = {"down_proj"};
  options.lora_target_modules = {"q_proj", "down_proj", "experts.gate_up_proj"};
  EXPECT_EQ(LoraAdapter(ToAdapterConfig(options, decoder), decoder, HostMemory())
                .layers()[1]
                .side_in[0]
                .rank,
            3);
  const auto refusal = [&] {
    try {
      LoraAdapter(ToAdapterConfig(options, decoder), decoder, HostMemory());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  options.exclude_modules = {R"(.*layers\.1\..*)"};
  EXPECT_NE(refusal().find("leave experts.gate_up_proj or experts.down_proj out"),
            std::string::npos)
      << refusal();
  options.exclude_modules.clear();
  options.lora_dropout = 0.1;
  EXPECT_NE(refusal().find("no dropout"), std::string::npos) << refusal();
  options.lora_dropout = 0;
  options.use_dora = true;
  EXPECT_NE(refusal().find("use_dora"), std::string::npos) << refusal();
  options.use_dora = false;
  options.rank_pattern.clear();
  options.lora_target_modules = {"gate_up_proj"};
  EXPECT_NE(refusal().find("'gate_up_proj' matches none of down_proj, gate_proj"),
            std::string::npos)
      << refusal();
  EXPECT_NE(refusal().find("experts.gate_up_proj, experts.down_proj"), std::string::npos);
}

// A message never lists the name that it denies.
TEST_F(ContinuedPathsTest, ListsWhatMayBeNamed) {
  const DecoderConfig decoder = GptOss();
  TrainOptions options;
  options.lora_dropout = 0;
  options.lora_target_modules = {"q_proj", "gate_up_proj"};
  const auto refusal = [&] {
    try {
      ToAdapterConfig(options, decoder);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  options.exclude_modules = {"gate_up_proj"};
  EXPECT_NE(refusal().find("exclude_modules: 'gate_up_proj' matches none of k_proj, o_proj, "
                           "q_proj, v_proj"),
            std::string::npos)
      << refusal();
  options.exclude_modules.clear();
  options.rank_pattern = {"gate_proj=3"};
  EXPECT_NE(refusal().find("rank_pattern: 'gate_proj' matches none of gate_up_proj, q_proj"),
            std::string::npos)
      << refusal();
}

// PEFT has neither exclusions nor a choice of layers for parameters.
TEST_F(ContinuedPathsTest, PartsOfExpertsOfGptOssAreNoChoice) {
  const DecoderConfig decoder = GptOss();
  TrainOptions options;
  options.lora_dropout = 0;
  options.lora_target_modules = {"q_proj", "gate_up_proj", "down_proj"};
  const auto refusal = [&] {
    try {
      ToAdapterConfig(options, decoder);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  for (const char* excluded : {"gate_proj", "up_proj", "down_proj", R"(.*experts\.0\..*)"}) {
    options.exclude_modules = {excluded};
    EXPECT_NE(refusal().find("parameters to PEFT"), std::string::npos) << refusal();
  }
  options.exclude_modules = {"q_proj"};
  AdapterConfig config = ToAdapterConfig(options, decoder);
  const auto rank = [&](const AdapterConfig& some) {
    return LoraAdapter(some, decoder, HostMemory()).layers()[0].down[3].rank;
  };
  EXPECT_EQ(rank(config), options.lora_r);
  options.exclude_modules.clear();
  options.layers_to_transform = {"1"};
  EXPECT_NE(refusal().find("layers_to_transform"), std::string::npos) << refusal();
  // Of an adapter of PEFT's they mean nothing.
  config.exclude_modules = std::vector<std::string>{"down_proj"};
  EXPECT_EQ(rank(config), options.lora_r);
}

}  // namespace
}  // namespace qlora
