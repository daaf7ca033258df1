// The divergence from the base, as a loss of the whole decoder: its gradients by complex step.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <vector>

#include "base/arena.h"
#include "pass/decoder_families.h"
#include "pass/loss.h"

namespace qlora {
namespace {

using Complex = std::complex<double>;
constexpr double kStep = 1e-50;
constexpr float kScale = 0.25;

// A decoder with an adapter, and what its base computes of a batch.
class Model {
 public:
  Model(Backend& backend, const DecoderConfig& config, const AdapterConfig& kind,
        const Batch& batch, DType wide)
      : config_(config),
        batch_(batch),
        weights_(config, wide, 11),
        adapter_(RandomAdapter(config, 2, wide, 5, 0, kind)),
        decoder_(backend, config_, weights_.get(), {wide, wide}, 16),
        base_(decoder_, nullptr, batch_, Recompute::kLayer),
        runner_(decoder_, &adapter_, batch_, Recompute::kLayer, 6) {
    adapter_.InitializeModules(weights_.get());
    RefreshNorms(backend, weights_.get(), adapter_);
    base_.Loss();
  }

  // With gradients where `trains`.
  double Divergence(bool trains) {
    adapter_.ZeroGradients();
    const PassInputs inputs = runner_.Prepare();
    Activations& activations = runner_.activations();
    Forward(decoder_, inputs, activations);
    const double sum = qlora::Divergence(decoder_, inputs, base_.activations().x_out, kScale,
                                         activations, trains ? &adapter_ : nullptr);
    if (!trains) return sum;
    const std::vector<Recompute> recompute(config_.num_hidden_layers, Recompute::kLayer);
    Backward(decoder_, inputs, recompute, activations, adapter_);
    return sum;
  }
  // Of the sum of the divergences of the rows, which the last call left.
  Complex Rows() {
    Complex sum = 0;
    for (std::int64_t i = 0; i < batch_.supervised(); ++i) {
      sum += runner_.activations().row_stats.Row<Complex>(0)[i];
    }
    return sum;
  }
  LoraAdapter& adapter() { return adapter_; }

 private:
  DecoderConfig config_;
  const Batch& batch_;
  RandomWeights weights_;
  LoraAdapter adapter_;
  Decoder decoder_;
  Runner base_;
  Runner runner_;
};

void CompareWithComplexStep(const DecoderConfig& config, const AdapterConfig& kind = {}) {
  const auto backend = MakeReferenceBackend();
  const Batch batch = RandomBatch(config, {5, 2, 7}, 3);
  Model real(*backend, config, kind, batch, DType::kF64);
  Model complex(*backend, config, kind, batch, DType::kC128);
  const double value = real.Divergence(true);
  EXPECT_GT(value, 1e-2);
  EXPECT_NEAR(complex.Divergence(false), value, 1e-12 * value);

  std::uint64_t draw = 0;
  double largest = 0;
  const auto compare = [&](const std::string& name, const MatrixView& gradient,
                           const MatrixView& parameter, int samples) {
    for (int sample = 0; sample < samples; ++sample) {
      const auto i = static_cast<std::int64_t>(
          RandomBelow(MakeKey(1, RandomPlace::kTest), draw++,
                      static_cast<std::uint64_t>(gradient.rows * gradient.cols)));
      Complex& changed = parameter.Row<Complex>(0)[i];
      const Complex before = changed;
      changed += Complex(0, kStep);
      complex.Divergence(false);
      changed = before;
      const double expected = kScale * complex.Rows().imag() / kStep;
      EXPECT_NEAR(gradient.Row<double>(0)[i], expected, 1e-11 * (1 + std::abs(expected)))
          << name << " element " << i;
      largest = std::max(largest, std::abs(expected));
    }
  };
  for (std::size_t l = 0; l < real.adapter().layers().size(); ++l) {
    ForEachPair(real.adapter().layers()[l], complex.adapter().layers()[l],
                [&](const LoraLinear& lora, const LoraLinear& complex_lora) {
                  if (lora.rank == 0) return;
                  compare(lora.path, lora.da, complex_lora.a, 2);
                  compare(lora.path, lora.db, complex_lora.b, 2);
                });
  }
  EXPECT_GT(largest, 1e-3);  // the check would pass on zeros otherwise
  for (std::size_t i = 0; i < real.adapter().modules().size(); ++i) {
    const TrainedModule& module = real.adapter().modules()[i];
    compare(module.name, module.gradient, complex.adapter().modules()[i].weight, 20);
  }
}

class DivergenceTest : public testing::TestWithParam<TestedFamily> {};

TEST_P(DivergenceTest, AgreesWithComplexStep) { CompareWithComplexStep(GetParam().config); }

INSTANTIATE_TEST_SUITE_P(All, DivergenceTest, testing::ValuesIn(Families()),
                         [](const auto& family) { return family.param.name; });

TEST(Divergence, OfDora) {
  AdapterConfig dora;
  dora.use_dora = true;
  CompareWithComplexStep(TinyConfig(), dora);
}

// The base is without the modules that are trained whole.
TEST(Divergence, OfEmbeddingsAndHead) {
  for (const bool tied : {false, true}) {
    DecoderConfig config = TinyConfig();
    config.tie_word_embeddings = tied;
    AdapterConfig whole;
    whole.modules_to_save = {"embed_tokens", "lm_head"};
    CompareWithComplexStep(config, whole);
  }
}

}  // namespace
}  // namespace qlora
