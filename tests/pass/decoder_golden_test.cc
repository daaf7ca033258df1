// Logits, loss and LoRA gradients against PyTorch (tests/golden, made by tools/make_goldens.py).
#include <gtest/gtest.h>

#include <numeric>

#include "machine/simd_target.h"
#include "model/checkpoint.h"
#include "model/golden.h"
#include "pass/loss.h"
#include "pass/pass_shape.h"

namespace qlora {
namespace {

struct Case {
  std::string model;
  bool four_bit;
  bool reference;  // the reference backend instead of the CPU
};

// (rows of the batch, V)
MatrixView LogitsOf(const Decoder& decoder, const DecoderConfig& config, const Batch& batch,
                    Runner& runner) {
  PassInputs inputs = runner.Prepare();
  Forward(decoder, inputs, runner.activations());
  std::vector<std::int32_t> rows(batch.rows());
  std::iota(rows.begin(), rows.end(), 0);
  inputs.head_rows = rows;
  inputs.heads = {{nullptr, 0, batch.rows()}};
  const MatrixView logits = Logits(decoder, inputs, 0, batch.rows(), runner.activations());
  if (config.final_softcap > 0) {
    for (std::int64_t i = 0; i < logits.rows * logits.cols; ++i) {
      float& value = logits.Row<float>(0)[i];
      value = config.final_softcap * std::tanh(value / config.final_softcap);
    }
  }
  return logits;
}

class DecoderGoldenTest : public testing::TestWithParam<Case> {};

TEST_P(DecoderGoldenTest, LogitsLossAndGradients) {
  const Case& c = GetParam();
  const fs::path dir = kGoldenDir / c.model;
  const Golden golden(c.model);
  const std::string prefix = c.four_bit ? "nf4." : "dense.";
  Context context(2);
  const DecoderConfig config = LoadDecoderConfig(dir);
  LoadOptions load;
  load.load_in_4bit = c.four_bit;
  const auto backend = c.reference ? MakeReferenceBackend() : MakeCpuBackend(context, DType::kF32);
  const DecoderWeights weights = LoadWeights(context, *backend, dir, config, load);
  LoraAdapter adapter = LoraAdapter::Load(dir / "adapter", config, HostMemory());
  adapter.AllocateGradients();
  const Batch batch = BatchOf(golden);
  backend->Reserve(
      LimitsOf(config, {&adapter}, batch.rows(), batch.rows(), batch.rows(), batch.rows()));
  const Decoder decoder(*backend, config, weights, {DType::kF32, DType::kF32}, 128);

  Runner runner(decoder, &adapter, batch, Recompute::kLayer, batch.rows());
  const auto supervised = static_cast<double>(batch.supervised());
  const double loss = runner.LossAndGradients({}, 1 / supervised) / supervised;
  const double expected_loss = golden.Floats(prefix + "loss")[0];
  EXPECT_NEAR(loss, expected_loss, 1e-5 * expected_loss);
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) {
      const std::string name = prefix + "grad.base_model.model." + lora.path;
      EXPECT_LT(RelativeError(lora.da.Row<float>(0), golden.Floats(name + ".lora_A.weight")), 1e-5)
          << lora.path;
      EXPECT_LT(RelativeError(lora.db.Row<float>(0), golden.Floats(name + ".lora_B.weight")), 1e-5)
          << lora.path;
    });
  }

  const MatrixView logits = LogitsOf(decoder, config, batch, runner);
  EXPECT_LT(RelativeError(logits.Row<float>(0), golden.Floats(prefix + "logits")), 1e-5);
}

// Weights as they are held for generating, with bfloat16 products.
TEST(DecoderForGenerating, Logits) {
  SetSimdTarget(SimdTargets().back());
  const fs::path dir = kGoldenDir / "llama-tiny";
  const Golden golden("llama-tiny");
  Context context(2);
  const auto backend = MakeCpuBackend(context, DType::kBF16);
  const DecoderConfig config = LoadDecoderConfig(dir);
  LoadOptions load;
  load.use = WeightUse::kGeneration;
  const DecoderWeights weights = LoadWeights(context, *backend, dir, config, load);
  LoraAdapter adapter = LoraAdapter::Load(dir / "adapter", config, HostMemory());
  const Batch batch = BatchOf(golden);
  backend->Reserve(
      LimitsOf(config, {&adapter}, batch.rows(), batch.rows(), batch.rows(), batch.rows()));
  const Decoder decoder(*backend, config, weights, {DType::kF32, DType::kF32}, 128);
  Runner runner(decoder, &adapter, batch, Recompute::kLayer, batch.rows());
  const MatrixView logits = LogitsOf(decoder, config, batch, runner);
  EXPECT_LT(RelativeError(logits.Row<float>(0), golden.Floats("nf4.logits")), 0x1p-7);
  SetSimdTarget(BestSimdTarget());
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool reference : {true, false}) {
    for (const std::string& model : kGoldenModels) {
      cases.push_back({model, false, reference});
    }
    cases.push_back({"llama-tiny", true, reference});
  }
  return cases;
}

std::string NameOfCase(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + (info.param.four_bit ? "_nf4" : "_dense") +
                     (info.param.reference ? "_reference" : "_cpu");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, DecoderGoldenTest, testing::ValuesIn(Cases()), NameOfCase);

}  // namespace
}  // namespace qlora
