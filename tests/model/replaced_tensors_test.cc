// Tensors that an adapter brings in the place of those of a checkpoint.
#include "model/replaced_tensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/test_util.h"

namespace qlora {
namespace {

constexpr const char* kInputNorm = "model.layers.0.input_layernorm.weight";
constexpr const char* kDeltaNorm = "model.layers.0.linear_attn.norm.weight";
constexpr const char* kRouter = "model.layers.0.mlp.gate.weight";

class ReplacedTensorsTest : public ::testing::Test {
 protected:
  ReplacedTensorsTest() {
    config_ = ParseDecoderConfig({{"model_type", "qwen3_5_moe_text"},
                                  {"hidden_size", 16},
                                  {"num_hidden_layers", 1},
                                  {"layer_types", {"linear_attention"}},
                                  {"num_attention_heads", 4},
                                  {"num_key_value_heads", 2},
                                  {"head_dim", 4},
                                  {"vocab_size", 20},
                                  {"rms_norm_eps", 1e-5},
                                  {"max_position_embeddings", 64},
                                  {"num_experts", 3},
                                  {"num_experts_per_tok", 2},
                                  {"moe_intermediate_size", 12},
                                  {"shared_expert_intermediate_size", 8},
                                  {"partial_rotary_factor", 0.5},
                                  {"linear_num_key_heads", 2},
                                  {"linear_num_value_heads", 4},
                                  {"linear_key_head_dim", 4},
                                  {"linear_value_head_dim", 4}},
                                 "config.json");
  }

  // A checkpoint whose values are 1.
  std::unique_ptr<TensorReader> Replace(ReplacedTensors tensors) {
    const std::vector<TensorInfo> infos = {{"model.embed_tokens.weight", DType::kF32, {20, 16}},
                                           {kInputNorm, DType::kF32, {16}},
                                           {kDeltaNorm, DType::kF32, {4}},
                                           {kRouter, DType::kF32, {3, 16}}};
    const auto writer = CreateSafetensors(folder_ / "a.safetensors", infos, {});
    for (const TensorInfo& info : infos) {
      writer->Write(BytesOfVector(std::vector<float>(info.elements(), 1)));
    }
    writer->Finish();
    return WithReplaced(OpenSafetensors(folder_ / "a.safetensors"),
                        std::make_shared<const ReplacedTensors>(std::move(tensors)), config_);
  }

  static std::vector<float> ValuesOf(const TensorReader& reader, const char* name) {
    const TensorInfo& tensor = *reader.Find(name);
    std::vector<float> values(tensor.elements());
    std::memcpy(values.data(), reader.Bytes(tensor).data(), tensor.bytes());
    return values;
  }

  TemporaryFolder folder_;
  DecoderConfig config_;
};

TEST_F(ReplacedTensorsTest, ShiftsTheNormsThatTheFamilyStoresLessOne) {
  const ReplacedTensors tensors = {{kInputNorm, {{16}, std::vector<float>(16, 0.5f)}},
                                   {kDeltaNorm, {{4}, std::vector<float>(4, 0.5f)}}};
  for (const bool is_gguf : {false, true}) {
    config_.one_plus_norm = !is_gguf;
    const auto reader = Replace(tensors);
    EXPECT_EQ(ValuesOf(*reader, kInputNorm), std::vector<float>(16, is_gguf ? 1.5f : 0.5f));
    // The norm of a delta rule has its weight itself in every file.
    EXPECT_EQ(ValuesOf(*reader, kDeltaNorm), std::vector<float>(4, 0.5f));
  }
}

TEST_F(ReplacedTensorsTest, AddsAChange) {
  const auto reader = Replace({{kRouter, {{3, 16}, std::vector<float>(48, 2), true}}});
  EXPECT_EQ(ValuesOf(*reader, kRouter), std::vector<float>(48, 3));
  EXPECT_EQ(ValuesOf(*reader, kInputNorm), std::vector<float>(16, 1));
}

TEST_F(ReplacedTensorsTest, RefusesAnotherShapeOfAsManyValues) {
  ExpectRefused(
      [&] {
        Replace({{kRouter, {{16, 3}, std::vector<float>(48, 2), true}}});
      },
      "'model.layers.0.mlp.gate.weight' of shape [16, 3], and this model has it as F32 of "
      "shape [3, 16]");
  Replace({{kInputNorm, {{1, 16}, std::vector<float>(16, 2)}}});
}

TEST_F(ReplacedTensorsTest, RefusesATensorThatTheCheckpointLacks) {
  const char* const lacking = "model.layers.0.post_attention_layernorm.weight";
  ASSERT_TRUE(IsReplaceable(config_, lacking));
  ExpectRefused(
      [&] {
        Replace({{lacking, {{16}, std::vector<float>(16, 2)}}});
      },
      "the checkpoint of this model has no such tensor");
}

}  // namespace
}  // namespace qlora
