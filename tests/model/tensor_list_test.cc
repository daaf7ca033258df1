#include "model/tensor_list.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "config/config_fixture.h"
#include "model/gguf_rows.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;

class TensorListTest : public ConfigTest {
 protected:
  // The row of this name in layer 0.
  static LayerTensor RowOf(const DecoderConfig& config, const std::string& name) {
    const std::vector<LayerTensor> rows = LayerTensors(config, 0);
    const auto found = std::ranges::find(rows, name, &LayerTensor::name);
    if (found == rows.end()) throw std::runtime_error("no row " + name);
    return *found;
  }
  static std::vector<std::int64_t> Sorted(std::vector<std::int64_t> values) {
    std::ranges::sort(values);
    return values;
  }
  static std::vector<std::int64_t> Count(std::int64_t size) {
    std::vector<std::int64_t> all(size);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
};

TEST_F(TensorListTest, NamesStandOnceInBothWorlds) {
  for (const char* model_type :
       {"llama", "qwen2", "phi3", "gemma2", "qwen3_moe", "qwen3_next", "qwen3_5_text", "lfm2"}) {
    SCOPED_TRACE(model_type);
    const DecoderConfig config = Load(Minimal(model_type));
    std::set<std::string> names;
    std::set<std::string> tensors;
    const auto add = [&](const ListedTensor& row, const std::string& name) {
      EXPECT_TRUE(names.insert(name).second) << name;
      for (const std::string& tensor : GgufTensorsOf(row)) {
        EXPECT_TRUE(tensors.insert(tensor).second) << tensor;
      }
    };
    for (const DecoderTensor& row : DecoderTensors(config)) add(row, row.name);
    for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
      for (const LayerTensor& row : LayerTensors(config, l)) add(row, row.TensorIn("", l));
    }
  }
}

TEST_F(TensorListTest, ExpertsTakeTurnsInTheirGroup) {
  Json json = Minimal("qwen3_moe");
  json["num_experts"] = 4;
  json["num_experts_per_tok"] = 2;
  const DecoderConfig config = Load(json);
  const PerLinear<std::string> names = LinearNames(config, 0);
  EXPECT_EQ(names.gate_up[2], "mlp.experts.1.gate_proj");
  EXPECT_EQ(names.gate_up[3], "mlp.experts.1.up_proj");
  const auto ups = StackOf(names, RowOf(config, "mlp.experts.*.up_proj.weight"));
  ASSERT_EQ(ups.size(), 4U);
  EXPECT_EQ(*ups[3], "mlp.experts.3.up_proj");
}

TEST_F(TensorListTest, DimsThatRotateTogetherBecomeNeighbours) {
  const DecoderConfig config = Load(Minimal("llama"));  // 4 heads of 16
  const LayerTensor q = RowOf(config, "self_attn.q_proj.weight");
  std::vector<std::int64_t> order = GgufRowsOf(config, 0, q, "blk.0.attn_q.weight").order;
  EXPECT_EQ(Sorted(order), Count(64));
  order.resize(4);
  EXPECT_THAT(order, ElementsAre(0, 8, 1, 9));
}

TEST_F(TensorListTest, RowsByKeyHeadAreTwoTensors) {
  const DecoderConfig config = Load(Minimal("qwen3_next"));
  const LayerTensor row = RowOf(config, "linear_attn.in_proj_qkvz.weight");
  EXPECT_THAT(GgufTensorsOf(row), ElementsAre("blk.0.attn_qkv.weight", "blk.0.attn_gate.weight"));
  std::vector<std::int64_t> all;
  for (const std::string& tensor : GgufTensorsOf(row)) {
    const std::vector<std::int64_t> order = GgufRowsOf(config, 0, row, tensor).order;
    all.insert(all.end(), order.begin(), order.end());
  }
  // 16 key heads of 128, of q, then of k.
  EXPECT_EQ(all[128], row.shape.out / 16);
  EXPECT_EQ(all[16 * 128], 128);
  EXPECT_EQ(Sorted(all), Count(row.shape.out));
}

TEST_F(TensorListTest, ValueHeadsChangePlacesWhereTheModelIsTheCheckpoints) {
  DecoderConfig config = Load(Minimal("qwen3_5_text"));
  const LayerTensor in = RowOf(config, "linear_attn.in_proj_qkv.weight");
  const LayerTensor out = RowOf(config, "linear_attn.out_proj.weight");
  const auto rows_of = [&](const LayerTensor& row) {
    return GgufRowsOf(config, 0, row, row.gguf[0][0].tensor);
  };
  const DeltaRuleShape& shape = config.delta_rule;
  const std::int64_t before = in.shape.out - shape.heads * shape.value_dim;
  const std::int64_t each = shape.heads / shape.key_heads;
  ASSERT_GT(each, 1);
  // The second head of the file reads the second key head.
  EXPECT_EQ(rows_of(in).order[before - 1], before - 1);
  EXPECT_EQ(rows_of(in).order[before + shape.value_dim], before + each * shape.value_dim);
  EXPECT_EQ(rows_of(out).columns[shape.value_dim], each * shape.value_dim);
  EXPECT_EQ(Sorted(rows_of(out).columns), Count(out.shape.in));
  config.delta_rule.tiled = true;
  EXPECT_TRUE(rows_of(in).order.empty());
  EXPECT_TRUE(rows_of(out).columns.empty());
}

}  // namespace
}  // namespace qlora
