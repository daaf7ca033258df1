// Checkpoints in the layouts that programs save: the same weights under other names, in other
// pieces, in 8 and in 4 bits. A generator (layout_rewriter.h) draws a layout and stores a model so;
// the weights that are loaded are those of the plain checkpoint, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/matrix.h"
#include "model/checkpoint.h"
#include "model/layout_models.h"
#include "model/layout_rewriter.h"
#include "model/tensor_list.h"
#include "model/weights.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

std::vector<Json> Models() {
  const LayoutParts parts;
  return {LayoutModel("llama", {{"tie_word_embeddings", false}}),
          LayoutModel("qwen2", {{"tie_word_embeddings", true}}),
          LayoutModel("phi3", {{"tie_word_embeddings", false}, {"pad_token_id", 0}}),
          LayoutModel("gemma3_text", {{"sliding_window", 8}, {"sliding_window_pattern", 2}}),
          LayoutModel("qwen3_moe", parts.experts),
          LayoutModel("mixtral", {{"num_local_experts", 3}, {"num_experts_per_tok", 2}}),
          LayoutModel("gpt_oss", {{"num_local_experts", 3}, {"num_experts_per_tok", 2}}),
          LayoutModel("lfm2_moe", parts.convolutions),
          LayoutModel("qwen3_5_moe_text", parts.delta_rule)};
}

// All values that layers read, by name.
std::map<std::string, std::vector<float>> ValuesOf(const std::filesystem::path& dir) {
  Context context(1);
  const auto backend = MakeCpuBackend(context, DType::kF32);
  const DecoderConfig config = LoadDecoderConfig(dir);
  LoadOptions options;
  options.load_in_4bit = false;
  const DecoderWeights weights = LoadWeights(context, *backend, dir, config, options);
  std::map<std::string, std::vector<float>> all;
  const auto add = [&](const std::string& name, const WeightView& weight) {
    std::vector<float>& values = all[name];
    values.resize(weight.rows() * weight.cols());
    const HostWeight host(HostMemory(), weight);
    for (std::int64_t r = 0; r < weight.rows(); ++r)
      host.Read(r, values.data() + r * weight.cols());
  };
  add("embed", weights.embed);
  add("head", weights.head);
  add("final_norm", weights.final_norm);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerWeights& layer = weights.layers[l];
    for (const LayerTensor& row : LayerTensors(config, l)) {
      if (row.kind == TensorKind::kTable) {
        add(fmt::format("{} router", l), layer.router);
      } else if (row.kind != TensorKind::kLinear) {
        add(fmt::format("{} {}", l, row.name), row.member.read(layer));
      } else {
        std::int64_t expert = 0;
        for (const FrozenLinear* linear : StackOf(layer.linears, row)) {
          const std::string name = fmt::format("{} {}", l, row.Module(expert++));
          add(name, linear->weight);
          if (!linear->bias.empty()) add(name + ".bias", linear->bias);
        }
      }
    }
  }
  return all;
}

void Compare(const Json& model, unsigned seed) {
  TemporaryFolder folder;
  Rewriter rewriter(model, seed);
  rewriter.Rewrite();
  rewriter.Write(folder.path() / "plain", folder.path() / "rewritten");
  SCOPED_TRACE(fmt::format("seed {}: {}{}", seed, model.at("model_type").get<std::string>(),
                           rewriter.story()));
  std::map<std::string, std::vector<float>> found;
  try {
    found = ValuesOf(folder.path() / "rewritten");
  } catch (const Error& error) {
    FAIL() << error.what();
  }
  for (const auto& [name, values] : ValuesOf(folder.path() / "plain")) {
    ASSERT_EQ(found.at(name), values) << name;
  }
}

// QLORA_LAYOUTS in the environment: the number of layouts of each model, for a long run.
TEST(LayoutsTest, EachLayoutIsThePlainModel) {
  const char* const count = std::getenv("QLORA_LAYOUTS");
  const unsigned layouts = count == nullptr ? 8 : static_cast<unsigned>(std::stoul(count));
  for (const Json& model : Models()) {
    for (unsigned seed = 1; seed <= layouts && !testing::Test::HasFailure(); ++seed) {
      Compare(model, seed);
    }
  }
}

}  // namespace
}  // namespace qlora
