// Checkpoints of a family whose names are uncertain: LFM3's.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/file.h"
#include "config/families.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/checkpoint.h"
#include "model/tensor_list.h"
#include "model/weights.h"
#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using testing::HasSubstr;

// A module of the usual names, and what it is called in the place of that; "": it is not there.
using Renames = std::vector<std::pair<std::string, std::string>>;

class SpellingsTest : public testing::Test {
 protected:
  // Writes a checkpoint of zeros.
  void Write(const Renames& renames) const {
    const Json json = {
        {"model_type", "lfm3"},   {"vocab_size", 6},
        {"hidden_size", 4},       {"intermediate_size", 3},
        {"num_hidden_layers", 3}, {"num_attention_heads", 2},
        {"head_dim", 2},          {"layer_types", {"conv", "full_attention", "sliding_attention"}}};
    WriteTextFile(folder_.path() / "config.json", json.dump());
    const DecoderConfig config = ParseDecoderConfig(json, "config.json");
    std::vector<TensorInfo> infos;
    const auto add = [&](const ListedTensor& row, std::string name) {
      for (const auto& [from, to] : renames) {
        const std::size_t at = name.find(fmt::format(".{}.", from));
        if (at == std::string::npos) continue;
        if (to.empty()) return;
        name.replace(at + 1, from.size(), to);
      }
      std::vector<std::int64_t> shape = {row.shape.out, row.shape.in};
      if (row.kind == TensorKind::kNorm) shape = {row.shape.in};
      if (row.kind == TensorKind::kConv) shape = {row.shape.out, 1, row.shape.in};
      infos.push_back({std::move(name), DType::kF32, std::move(shape)});
    };
    for (const DecoderTensor& row : DecoderTensors(config)) {
      if (!row.is_head()) add(row, "model." + row.name);
    }
    for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
      for (const LayerTensor& row : LayerTensors(config, l)) add(row, row.TensorIn("model.", l));
    }
    const auto writer = CreateSafetensors(folder_.path() / "model.safetensors", infos, {});
    for (const TensorInfo& info : infos) writer->Write(std::vector<std::byte>(info.bytes()));
    writer->Finish();
  }

  DecoderConfig Config() const { return LoadDecoderConfig(folder_.path()); }
  WeightSizes Load() const {
    Context context(1);
    const auto backend = MakeCpuBackend(context, DType::kF32);
    return LoadWeights(context, *backend, folder_.path(), Config(), {}).sizes;
  }
  std::string Refusal() const {
    try {
      Load();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

// Also where a spelling of one name is the first of another: gates of attention and of the MLP.
TEST_F(SpellingsTest, EachNameIsFoundInAnyOfItsSpellings) {
  Write({});
  EXPECT_TRUE(Load().notes.empty());
  EXPECT_EQ(Config().names,
            ParseDecoderConfig(ReadJsonFile(folder_.path() / "config.json"), "").names);
  const Renames all = {{"norm", "embedding_norm"},
                       {"operator_norm", "input_layernorm"},
                       {"ffn_norm", "post_attention_layernorm"},
                       {"self_attn.q_norm", "self_attn.q_layernorm"},
                       {"self_attn.k_norm", "self_attn.k_layernorm"},
                       {"self_attn.o_proj", "self_attn.out_proj"},
                       {"feed_forward", "mlp"},
                       {"w1", "gate_proj"},
                       {"w3", "up_proj"},
                       {"w2", "down_proj"}};
  for (const auto& rename : all) {
    SCOPED_TRACE(rename.second);
    Write({rename});
    EXPECT_TRUE(Load().notes.empty());
  }
  Write(all);
  EXPECT_TRUE(Load().notes.empty());
  const DecoderConfig config = Config();
  EXPECT_EQ(config.names.mlp, "mlp");
  EXPECT_EQ(config.names.gate, "gate_proj");
  EXPECT_EQ(config.names.attn_gate, "self_attn.gate_proj");
  EXPECT_EQ(LinearPaths(config, 1).gate_up[0], "model.layers.1.mlp.gate_proj");
}

TEST_F(SpellingsTest, AMissingNameIsToldByItsRoleAndWhatIsThere) {
  Write({{"post_operator_norm", "after_operator"}});
  EXPECT_THAT(Refusal(), HasSubstr("the norm behind the mixer of tokens"));
  EXPECT_THAT(Refusal(), HasSubstr("that it has: after_operator.weight, conv.conv.weight"));
  Write({{"w2", "w_out"}});
  EXPECT_THAT(Refusal(),
              HasSubstr("'model.layers.0.feed_forward.w2.weight' (the last linear of the MLP, one "
                        "of: w2 down_proj) is missing"));
  EXPECT_THAT(Refusal(), HasSubstr("feed_forward.w_out.weight"));
}

// Norms behind the blocks may be absent, but not under a name that is not known.
TEST_F(SpellingsTest, NormsBehindBlocksMayBeAbsent) {
  Write({{"post_operator_norm", ""}, {"post_ffn_norm", ""}});
  EXPECT_FALSE(Config().post_norms);
  EXPECT_TRUE(Load().notes.empty());
  Write({{"post_operator_norm", "after_operator"}, {"post_ffn_norm", "after_ffn"}});
  EXPECT_THAT(Refusal(), HasSubstr("after_ffn.weight' is none of a lfm3 that is known here"));
  Write({{"post_operator_norm", ""}});
  EXPECT_THAT(Refusal(), HasSubstr("post_operator_norm.weight"));
}

}  // namespace
}  // namespace qlora
