// Adapters of models that are cut otherwise in checkpoints and in GGUF files.
#include "adapter/twin_values.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/json.h"

namespace qlora {
namespace {

DecoderConfig Hybrid() {
  return ParseDecoderConfig(Json{{"model_type", "granitemoehybrid"},
                                 {"vocab_size", 8},
                                 {"hidden_size", 4},
                                 {"num_hidden_layers", 1},
                                 {"num_attention_heads", 2},
                                 {"num_key_value_heads", 1},
                                 {"intermediate_size", 6},
                                 {"shared_intermediate_size", 3},
                                 {"num_local_experts", 0},
                                 {"layer_types", {"attention"}},
                                 {"position_embedding_type", "rope"}},
                            "test");
}

// Values that tell their place.
std::vector<float> Numbers(std::int64_t count, float first) {
  std::vector<float> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

LoraValues Module(const std::string& path, std::int64_t out, std::int64_t in, std::int64_t rank,
                  float first, double scale = 1) {
  return {.path = path,
          .in = in,
          .out = out,
          .rank = rank,
          .scale = scale,
          .a = Numbers(rank * in, first),
          .b = Numbers(out * rank, -first)};
}

const LoraValues& Find(const AdapterValues& values, const std::string& path) {
  return *std::ranges::find(values.modules, path, &LoraValues::path);
}

// scale B A
std::vector<double> ChangeOf(const LoraValues& m) {
  std::vector<double> change(m.out * m.in);
  for (std::int64_t o = 0; o < m.out; ++o) {
    for (std::int64_t i = 0; i < m.in; ++i) {
      for (std::int64_t r = 0; r < m.rank; ++r) {
        change[o * m.in + i] += m.scale * double{m.b[o * m.rank + r]} * double{m.a[r * m.in + i]};
      }
    }
  }
  return change;
}

constexpr const char* kMlp = "model.layers.0.mlp.";
constexpr const char* kShared = "model.layers.0.shared_mlp.";

TEST(TwinValuesTest, OneLinearBecomesTwoAndTheReverse) {
  const DecoderConfig hybrid = Hybrid();
  const std::optional<DecoderConfig> twin = TwinOf(hybrid);
  ASSERT_TRUE(twin);
  EXPECT_EQ(twin->model_type, "granite");
  AdapterValues values;
  values.modules = {Module("model.layers.0.self_attn.q_proj", 4, 4, 2, 1),
                    Module(std::string(kShared) + "input_linear", 6, 4, 2, 3, 0.5),
                    Module(std::string(kShared) + "output_linear", 4, 3, 2, 5)};
  const AdapterValues split = ToTwin(values, hybrid, *twin);
  ASSERT_EQ(split.modules.size(), 4U);
  const std::vector<double> whole = ChangeOf(values.modules[1]);
  std::vector<double> parts = ChangeOf(Find(split, std::string(kMlp) + "gate_proj"));
  const std::vector<double> up = ChangeOf(Find(split, std::string(kMlp) + "up_proj"));
  parts.insert(parts.end(), up.begin(), up.end());
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(Find(split, std::string(kMlp) + "down_proj").b, values.modules[2].b);
  // Both have one A, so the way back has its rank.
  const AdapterValues joined = ToTwin(split, *twin, hybrid);
  const LoraValues& input = Find(joined, std::string(kShared) + "input_linear");
  EXPECT_EQ(input.rank, 2);
  EXPECT_EQ(input.a, values.modules[1].a);
  EXPECT_EQ(input.b, values.modules[1].b);
}

TEST(TwinValuesTest, TwoLinearsOfAnyRanksAndScalesAreOne) {
  const DecoderConfig hybrid = Hybrid();
  const DecoderConfig granite = *TwinOf(hybrid);
  const LoraValues gate = Module(std::string(kMlp) + "gate_proj", 3, 4, 2, 1, 0.5);
  const LoraValues up = Module(std::string(kMlp) + "up_proj", 3, 4, 1, 9, 2);
  for (const bool up_first : {false, true}) {
    AdapterValues values;
    values.modules = {gate, up};
    if (up_first) std::swap(values.modules[0], values.modules[1]);
    const AdapterValues joined = ToTwin(values, granite, hybrid);
    ASSERT_EQ(joined.modules.size(), 1U);
    EXPECT_EQ(joined.modules[0].rank, 3);
    std::vector<double> expected = ChangeOf(gate);
    const std::vector<double> rest = ChangeOf(up);
    expected.insert(expected.end(), rest.begin(), rest.end());
    EXPECT_EQ(ChangeOf(joined.modules[0]), expected);
  }
  AdapterValues alone;
  alone.modules = {up};
  std::vector<double> expected(12);
  const std::vector<double> rest = ChangeOf(up);
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(ChangeOf(ToTwin(alone, granite, hybrid).modules[0]), expected);
}

TEST(TwinValuesTest, OtherFamiliesHaveNone) {
  DecoderConfig config = Hybrid();
  for (const char* type : {"llama", "mistral", "phi3", "qwen3", "gemma3_text"}) {
    config.model_type = type;
    config.fused_gate_up = type == std::string("phi3");
    EXPECT_FALSE(TwinOf(config)) << type;
  }
}

}  // namespace
}  // namespace qlora
