// gpt-oss: its configuration, and adapters of its experts as PEFT stores them.
#include "model/joined_experts.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "adapter/expert_stack.h"
#include "adapter/lora.h"
#include "base/matrix.h"
#include "config/config_fixture.h"
#include "io/mxfp4.h"
#include "io/peft/peft.h"
#include "io/safetensors.h"
#include "io/stored_tensor.h"
#include "model/checkpoint.h"
#include "model/checkpoint_tensors.h"
#include "model/golden.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class JoinedExpertsTest : public ConfigTest {
 protected:
  // Four experts of 3 in a width of 8.
  static Json Small() {
    return {{"model_type", "gpt_oss"}, {"hidden_size", 8},         {"intermediate_size", 3},
            {"num_hidden_layers", 2},  {"num_attention_heads", 2}, {"num_key_value_heads", 1},
            {"head_dim", 4},           {"num_local_experts", 4},   {"num_experts_per_tok", 2}};
  }

  static AdapterConfig Adapted(std::vector<std::string> parameters) {
    AdapterConfig config;
    config.r = 2;
    config.target_modules = std::vector<std::string>{"q_proj"};
    config.target_parameters = std::move(parameters);
    return config;
  }

  // With values of no pattern in A and B.
  static LoraAdapter Filled(const AdapterConfig& config, const DecoderConfig& decoder) {
    LoraAdapter adapter = LoraAdapter::Create(config, decoder, HostMemory(), 3);
    float value = 0;
    for (PerLinear<LoraLinear>& layer : adapter.layers()) {
      layer.ForEach([&](LoraLinear& lora) {
        for (std::int64_t i = 0; i < lora.b.rows * lora.b.cols; ++i) {
          lora.b.Row<float>(0)[i] = value += 0.25F;
        }
      });
    }
    return adapter;
  }
};

TEST_F(JoinedExpertsTest, KeysAndDefaults) {
  Json json = Minimal("gpt_oss");
  const DecoderConfig c = Load(json);
  EXPECT_EQ(c.hidden_act, Activation::kClampedSwiglu);
  EXPECT_TRUE(c.sinks && c.qkv_bias && c.o_bias && c.mlp_bias && c.moe.router_bias);
  EXPECT_TRUE(c.moe.is_joined && c.moe.norm_topk_prob);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.moe.num_experts, 128);
  EXPECT_EQ(c.moe.num_experts_per_tok, 4);
  EXPECT_EQ(c.layers[0].window, 128);
  EXPECT_EQ(c.layers[1].window, 0);
  EXPECT_EQ(c.ropes[0].type, RopeType::kYarn);
  EXPECT_FALSE(c.ropes[0].truncate);
  EXPECT_DOUBLE_EQ(c.ropes[0].attention_factor, 0.1 * std::log(32.0) + 1);
  EXPECT_EQ(c.ropes[0].original_max_position_embeddings, 4096);
  // The older names are beside the others, and count without them.
  json["experts_per_token"] = 2;
  json["num_experts"] = 32;
  json["initial_context_length"] = 4096;
  json["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_EQ(Load(json).moe.num_experts_per_tok, 2);
  EXPECT_EQ(Load(json).moe.num_experts, 32);
  json["num_experts_per_tok"] = 4;
  json["num_local_experts"] = 16;
  EXPECT_EQ(Load(json).moe.num_experts_per_tok, 4);
  EXPECT_EQ(Load(json).moe.num_experts, 16);
  json["hidden_act"] = "gelu_pytorch_tanh";
  EXPECT_EQ(Load(json).hidden_act, Activation::kClampedSwiglu);
  Json other = Minimal("qwen3_moe");
  other["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_THAT(Refusal(other), HasSubstr("quant_method"));
  json["swiglu_limit"] = 5.0;
  EXPECT_THAT(Refusal(json), HasSubstr("swiglu_limit is 5, expected 7"));
}

// The weights of an expert have other names than the parameter that they are missing from.
TEST_F(JoinedExpertsTest, AMissingExpertIsToldByTheReasonOfItsParameter) {
  const std::string experts = "model.layers.0.mlp.experts.";
  WriteTensors(dir_ / "model.safetensors",
               {{{experts + "down_proj_blocks", DType::kU8, {4, 8, 1, 16}},
                 std::vector<std::byte>(4 * 8 * 16)}});
  const auto reader = WithMxfp4Blocks(OpenSafetensors(dir_ / "model.safetensors"));
  const DecoderConfig config = ParseDecoderConfig(Minimal("gpt_oss"), "config.json");
  CheckpointTensors tensors(*reader, config);
  const auto reason = [&](const std::string& name) {
    try {
      tensors.Get(name, {8, 32});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_THAT(reason(experts + "0.down_proj.weight"), HasSubstr("its scales"));
  EXPECT_THAT(reason("model.layers.0.self_attn.o_proj.weight"), HasSubstr("is missing"));
}

TEST_F(JoinedExpertsTest, RefusesAParameterInTwoForms) {
  const std::string name = "model.layers.0.mlp.experts.down_proj.0";
  std::vector<TensorView> views(2, TensorView{{name, DType::kBF16, {8, 3}}, {}});
  EXPECT_THROW(CutJoinedExperts(Load(Small()), "model.", views), Error);
}

TEST_F(JoinedExpertsTest, AdaptersOfExpertsAreTheParametersOfPeft) {
  const DecoderConfig decoder = Load(Small());
  const AdapterConfig config = Adapted({"mlp.experts.gate_up_proj", "mlp.experts.down_proj"});
  const LoraAdapter saved = Filled(config, decoder);
  // PEFT has one A for gate and up.
  std::int64_t parameters = 0;
  for (const ParameterGroup& group : saved.groups()) {
    if (group.kind == ParameterKind::kA) parameters = group.count;
  }
  EXPECT_EQ(parameters, 2 * (1 + 2 * 4) * 256);  // of each matrix, padded to 256 values
  saved.Save(dir_ / "adapter");
  const Adapter peft = OpenAdapter(dir_ / "adapter");
  ASSERT_EQ(peft.stacks.size(), 4u);
  const std::string name = "base_model.model.model.layers.1.mlp.experts";
  const auto shape = [&](const std::string& tensor) {
    const TensorInfo* found = peft.tensors->Find(name + tensor);
    return found == nullptr ? std::vector<std::int64_t>{} : found->shape;
  };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape(".base_layer.lora_A.weight"), (Shape{4 * 2, 8}));
  EXPECT_EQ(shape(".base_layer.lora_B.weight"), (Shape{6, 2 * 4}));
  EXPECT_EQ(shape(".lora_A.weight"), (Shape{4 * 2, 3}));
  EXPECT_EQ(shape(".lora_B.weight"), (Shape{8, 2 * 4}));
  // Output 2 y + 1 of expert 3 is up y; column 4 i + 3 its rank i.
  const auto* b = static_cast<const float*>(static_cast<const void*>(
      peft.tensors->Bytes(*peft.tensors->Find(name + ".base_layer.lora_B.weight")).data()));
  const LoraLinear& up = saved.layers()[1].gate_up[7];
  EXPECT_EQ(b[(2 * 2 + 1) * 8 + 4 * 1 + 3], up.b.Row<float>(2)[1]);

  const LoraAdapter read = LoraAdapter::Load(dir_ / "adapter", decoder, HostMemory());
  const ConstMatrixView a = saved.parameters();
  const ConstMatrixView other = read.parameters();
  ASSERT_EQ(a.cols, other.cols);
  EXPECT_TRUE(std::equal(a.Row<float>(0), a.Row<float>(0) + a.cols, other.Row<float>(0)));
}

TEST_F(JoinedExpertsTest, OneParameterHasOneWrapper) {
  const DecoderConfig decoder = Load(Small());
  for (const std::string parameter : {"gate_up_proj", "down_proj"}) {
    const LoraAdapter saved = Filled(Adapted({"mlp.experts." + parameter}), decoder);
    saved.Save(dir_ / parameter);
    const Adapter peft = OpenAdapter(dir_ / parameter);
    ASSERT_EQ(peft.stacks.size(), 2u);
    EXPECT_EQ(peft.stacks[0].parameter, parameter);
    EXPECT_EQ(peft.stacks[0].experts, "model.layers.0.mlp.experts");
    const LoraAdapter read = LoraAdapter::Load(dir_ / parameter, decoder, HostMemory());
    const LoraLinear& lora = read.layers()[0].gate_up[0];
    EXPECT_EQ(lora.rank, parameter == "down_proj" ? 0 : 2);
  }
}

// A plan by name takes the experts to be as they are published.
TEST_F(JoinedExpertsTest, PlansWithoutFilesAreThoseOfFilesInMxfp4) {
  const fs::path model = SharedFolder() / "golden/families/gpt_oss/mxfp4";
  if (!fs::exists(model)) GTEST_SKIP() << "no " << model;
  Context context(1);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(context, DType::kF32);
  const DecoderConfig config = LoadDecoderConfig(model);
  const WeightSizes stated = PlanWeights(context, *backend, config, {});
  const WeightSizes stored = PlanWeights(context, *backend, model, config, {});
  EXPECT_EQ(stated.owned, stored.owned);
  EXPECT_EQ(stated.mapped, stored.mapped);
  EXPECT_EQ(stated.parameters, stored.parameters);
  EXPECT_EQ(stated.block_formats, std::vector<std::string>{"MXFP4"});
  EXPECT_EQ(stored.block_formats, stated.block_formats);
  EXPECT_EQ(stored.notes, std::vector<std::string>{});
  const DecoderWeights weights = LoadWeights(context, *backend, model, config, {});
  EXPECT_EQ(weights.sizes.owned, stored.owned);
}

TEST_F(JoinedExpertsTest, RefusesWhatPeftHasNoFormFor) {
  const DecoderConfig decoder = Load(Small());
  AdapterConfig config = Adapted({"mlp.experts.down_proj"});
  config.lora_dropout = 0.1;
  EXPECT_THROW(LoraAdapter(config, decoder, HostMemory()), Error);
  // Names of modules are no names of parameters.
  AdapterConfig modules;
  modules.target_modules = std::string("all-linear");
  const LoraAdapter adapter(modules, decoder, HostMemory());
  EXPECT_EQ(adapter.layers()[0].o.rank, 8);
  EXPECT_EQ(adapter.layers()[0].down[0].rank, 0);

  std::vector<LoraValues> values;
  const LoraAdapter whole = Filled(Adapted({"mlp.experts.gate_up_proj"}), decoder);
  for (const LoraLinear& lora : whole.layers()[0].gate_up) {
    const auto floats = [](const MatrixView& m) {
      return std::vector<float>(m.Row<float>(0), m.Row<float>(0) + m.rows * m.cols);
    };
    values.push_back({.path = lora.path,
                      .in = lora.in,
                      .out = lora.out,
                      .rank = lora.rank,
                      .a = floats(lora.a),
                      .b = floats(lora.b)});
  }
  EXPECT_EQ(StackExperts(values, decoder).size(), 1u);
  std::vector<LoraValues> other = values;
  other[3].a[0] += 1;
  EXPECT_THROW(StackExperts(other, decoder), Error);
  other = values;
  other.pop_back();
  EXPECT_THROW(StackExperts(other, decoder), Error);
}

}  // namespace
}  // namespace qlora
