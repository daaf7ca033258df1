// A model with an adapter of a resized vocabulary, evaluated with and without the adapter.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "io/peft/peft.h"
#include "io/test_util.h"
#include "model/checkpoint.h"
#include "model/weights.h"
#include "qlora/model.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = SourceDir() / "tests" / "golden" / "llama-tiny";

// An adapter whose tables have `rows` rows.
void WriteResized(const fs::path& folder, std::int64_t rows) {
  AdapterConfig config;
  config.r = 2;
  config.target_modules = std::vector<std::string>{"q_proj"};
  const DecoderConfig decoder = LoadDecoderConfig(kModel);
  const LoraAdapter lora = LoraAdapter::Create(config, decoder, HostMemory(), 1);
  std::vector<AdapterWeights> weights;
  for (const PerLinear<LoraLinear>& layer : lora.layers()) {
    weights.push_back({layer.qkv[0].path, layer.qkv[0].a, layer.qkv[0].b, {}});
  }
  std::vector<float> table(rows * decoder.hidden_size);
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = 0.125f * static_cast<float>(i % 17) - 1;
  }
  const MatrixView view = MakeView(table.data(), rows, decoder.hidden_size);
  config.modules_to_save = {"embed_tokens", "lm_head"};
  const std::vector<ReplacedMatrix> replaced = {{"model.embed_tokens.weight", view},
                                                {"lm_head.weight", view}};
  WriteAdapter(folder, config, weights, DType::kF32, replaced);
}

TEST(ResizedAdapterTest, TheBaseIsEvaluatedWithItsOwnVocabulary) {
  Context context(2);
  ModelOptions options;
  options.model_name_or_path = kModel;
  options.load_in_4bit = "false";
  options.compute_dtype = "float32";
  EvalOptions eval;
  eval.dataset = {SourceDir() / "tests" / "golden" / "train-20" / "data.jsonl"};
  const double base = Model::Load(context, options).Evaluate(eval).loss;
  const std::int64_t vocab = LoadDecoderConfig(kModel).vocab_size;
  TemporaryFolder folder;
  // More rows than the base, and fewer.
  for (const std::int64_t rows : {vocab + 8, vocab - 1}) {
    SCOPED_TRACE(rows);
    WriteResized(folder.path(), rows);
    options.adapter = {folder.path()};
    Model model = Model::Load(context, options);
    eval.without_adapter = false;
    const double with = model.Evaluate(eval).loss;
    EXPECT_TRUE(std::isfinite(with));
    EXPECT_NE(with, base);
    eval.without_adapter = true;
    EXPECT_EQ(model.Evaluate(eval).loss, base);
  }
}

}  // namespace
}  // namespace qlora
