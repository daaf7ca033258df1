// GGUF files that we write are read as the models that they were made from: keys, names and order
// of rows, for every family, against PyTorch's values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "convert/convert_fixture.h"
#include "export/gguf/gguf_metadata.h"
#include "io/json.h"
#include "io/test_util.h"
#include "model/checkpoint.h"
#include "model/golden.h"
#include "pass/rope.h"

namespace qlora {
namespace {

class GgufModelTest : public ConvertTest {
 protected:
  // Writes the base alone.
  fs::path WriteGguf(const std::string& model) {
    ExportOptions options = ExportTo(model + ".gguf");
    options.model_name_or_path = kGolden / model;
    options.verify = "false";
    Export(context_, options);
    return options.output;
  }
};

// (rows of the batch, V), with the cap of the logits. adapter_dir: empty for the model alone.
std::vector<float> LogitsOf(Context& context, const fs::path& model, const DecoderConfig& config,
                            const fs::path& adapter_dir, const Batch& batch) {
  LoadOptions load;
  load.load_in_4bit = false;
  const auto backend = MakeCpuBackend(context, DType::kF32);
  const DecoderWeights weights = LoadWeights(context, *backend, model, config, load);
  std::optional<LoraAdapter> adapter;
  if (!adapter_dir.empty()) {
    adapter.emplace(LoraAdapter::Load(adapter_dir, config, HostMemory()));
    adapter->AllocateGradients();
  }
  LoraAdapter* lora = adapter ? &*adapter : nullptr;
  const std::int64_t rows = batch.rows();
  backend->Reserve(LimitsOf(config, AdaptersOf(lora), rows, rows, rows, rows));
  const Decoder decoder(*backend, config, weights, {DType::kF32, DType::kF32}, 128);
  Runner runner(decoder, lora, batch, Recompute::kLayer, rows);
  PassInputs inputs = runner.Prepare();
  Forward(decoder, inputs, runner.activations());
  std::vector<std::int32_t> all(rows);
  std::iota(all.begin(), all.end(), 0);
  inputs.head_rows = all;
  inputs.heads = {{nullptr, 0, rows}};
  const MatrixView logits = Logits(decoder, inputs, 0, rows, runner.activations());
  std::vector<float> values(logits.Row<float>(0), logits.Row<float>(0) + logits.rows * logits.cols);
  if (config.final_softcap == 0) return values;
  for (float& v : values) v = config.final_softcap * std::tanh(v / config.final_softcap);
  return values;
}

TEST_F(GgufModelTest, LogitsOfEveryFamilyAreThoseOfPyTorch) {
  for (const std::string& model : kGoldenModels) {
    SCOPED_TRACE(model);
    const fs::path path = WriteGguf(model);
    const fs::path dir = kGolden / model;
    const Golden golden(model);
    const Batch batch = BatchOf(golden);
    const DecoderConfig original = LoadDecoderConfig(dir);
    DecoderConfig config = LoadDecoderConfig(path);
    // llama.cpp ignores these windows; the texts are longer.
    if (!model.starts_with("gemma")) {
      for (std::size_t l = 0; l < config.layers.size(); ++l) {
        config.layers[l].window = original.layers[l].window;
      }
    }
    // The export of Gemma 2 multiplies a part of the scale of scores into q_proj, which an adapter
    // of q_proj does not know.
    if (model == "gemma2-tiny") {
      const std::vector<float> expected = LogitsOf(context_, dir, original, {}, batch);
      const std::vector<float> logits = LogitsOf(context_, path, config, {}, batch);
      EXPECT_LT(RelativeError(logits.data(), expected), 1e-5);
      continue;
    }
    // The adapter is PEFT's: modules have the names that it expects.
    const std::vector<float> logits = LogitsOf(context_, path, config, dir / "adapter", batch);
    EXPECT_LT(RelativeError(logits.data(), golden.Floats("dense.logits")), 1e-5);
  }
}

// Each dim of a table, in radians per position.
void ExpectSameRope(const RopeConfig& found, const RopeConfig& expected) {
  EXPECT_NEAR(found.attention_factor, expected.attention_factor, 1e-6);
  for (const bool beyond : {false, true}) {
    if (beyond && expected.type != RopeType::kLongrope) continue;
    const std::vector<double> a = RopeFrequencies(found, beyond);
    const std::vector<double> b = RopeFrequencies(expected, beyond);
    ASSERT_EQ(a.size(), b.size());
    // Divisors are float32 in the file.
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6 * b[i]);
  }
}

TEST_F(GgufModelTest, ConfigurationOfEveryFamilyIsThatOfConfigJson) {
  for (const std::string& model : kGoldenModels) {
    SCOPED_TRACE(model);
    const DecoderConfig expected = LoadDecoderConfig(kGolden / model);
    const DecoderConfig config = LoadDecoderConfig(WriteGguf(model));
    // Mistral is a llama in GGUF.
    EXPECT_EQ(config.model_type, model == "mistral-tiny" ? "llama" : expected.model_type);
    EXPECT_EQ(config.vocab_size, expected.vocab_size);
    EXPECT_EQ(config.hidden_size, expected.hidden_size);
    EXPECT_EQ(config.intermediate_size, expected.intermediate_size);
    EXPECT_EQ(config.num_hidden_layers, expected.num_hidden_layers);
    EXPECT_EQ(config.num_attention_heads, expected.num_attention_heads);
    EXPECT_EQ(config.num_key_value_heads, expected.num_key_value_heads);
    EXPECT_EQ(config.head_dim, expected.head_dim);
    EXPECT_EQ(config.rms_norm_eps, expected.rms_norm_eps);
    EXPECT_EQ(config.tie_word_embeddings, expected.tie_word_embeddings);
    EXPECT_EQ(config.hidden_act, expected.hidden_act);
    EXPECT_EQ(config.qkv_bias, expected.qkv_bias);
    EXPECT_EQ(config.o_bias, expected.o_bias);
    EXPECT_EQ(config.mlp_bias, expected.mlp_bias);
    EXPECT_EQ(config.qk_norm, expected.qk_norm);
    EXPECT_EQ(config.post_norms, expected.post_norms);
    EXPECT_EQ(config.fused_qkv, expected.fused_qkv);
    EXPECT_EQ(config.fused_gate_up, expected.fused_gate_up);
    EXPECT_EQ(config.embed_scale, expected.embed_scale);
    EXPECT_EQ(config.attention_softcap, expected.attention_softcap);
    EXPECT_EQ(config.final_softcap, expected.final_softcap);
    EXPECT_EQ(config.moe.num_experts, expected.moe.num_experts);
    EXPECT_EQ(config.moe.num_experts_per_tok, expected.moe.num_experts_per_tok);
    EXPECT_EQ(config.moe.norm_topk_prob, expected.moe.norm_topk_prob);
    // The norms of GGUF are 1 + w.
    EXPECT_FALSE(config.one_plus_norm);
    ASSERT_EQ(config.layers.size(), expected.layers.size());
    for (std::size_t l = 0; l < config.layers.size(); ++l) {
      // llama.cpp has windows in Gemma alone, and a context for the others in which they are whole.
      const std::int64_t window = model.starts_with("gemma") ? expected.layers[l].window : 0;
      EXPECT_EQ(config.layers[l].window, window);
      EXPECT_EQ(config.layers[l].rope, expected.layers[l].rope);
    }
    ASSERT_EQ(config.ropes.size(), expected.ropes.size());
    for (std::size_t r = 0; r < config.ropes.size(); ++r) {
      ExpectSameRope(config.ropes[r], expected.ropes[r]);
    }
  }
}

// What is read from a file can be written to the next one.
TEST_F(GgufModelTest, KeysOfEveryFamilyAreWrittenAsTheyWereRead) {
  for (const std::string& model : kGoldenModels) {
    SCOPED_TRACE(model);
    const fs::path path = WriteGguf(model);
    const DecoderConfig config = LoadDecoderConfig(path);
    const std::unique_ptr<GgufReader> file = OpenGguf(path);
    GgufMetadata again;
    AddModelMetadata(config, model, 0, again);
    for (const auto& [key, value] : again.entries()) {
      if (key == "general.name") continue;
      ASSERT_NE(file->values().Find(key), nullptr) << key;
      EXPECT_TRUE(*file->values().Find(key) == value) << key;
    }
    std::vector<std::string> names;
    for (const RopeFactors& factors : GgufRopeFactors(config)) {
      names.push_back(factors.name);
      const TensorInfo* tensor = file->Find(factors.name);
      ASSERT_NE(tensor, nullptr) << factors.name;
      EXPECT_EQ(std::memcmp(factors.values.data(), file->Bytes(*tensor).data(), tensor->bytes()),
                0);
    }
    for (const char* name :
         {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}) {
      EXPECT_EQ(file->Find(name) != nullptr, std::ranges::count(names, name) == 1) << name;
    }
  }
}

}  // namespace
}  // namespace qlora
