// The gradients of the whole decoder, by complex step: with x + ih in one parameter, the imaginary
// part of the loss divided by h is the derivative, without cancellation.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <vector>

#include "pass/decoder_families.h"
#include "pass/loss.h"
#include "pass/pass_shape.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using Complex = std::complex<double>;
constexpr double kStep = 1e-50;
constexpr Precision kComplex{DType::kC128, DType::kC128};
constexpr Precision kDouble{DType::kF64, DType::kF64};

class DecoderGradientTest : public testing::TestWithParam<TestedFamily> {};

AdapterConfig Dora() {
  AdapterConfig config;
  config.use_dora = true;
  return config;
}

// d(loss)/d(parameter i) for a sample of parameters that covers both matrices of every linear and
// every whole module.
void CompareWithComplexStep(const DecoderConfig& config, bool quantize, const DropoutState& dropout,
                            double dropout_probability, const AdapterConfig& kind = {}) {
  const auto backend = MakeReferenceBackend();
  const Batch batch = RandomBatch(config, {5, 1, 7}, 3);

  RandomWeights weights(config, DType::kF64, 11, quantize);
  LoraAdapter adapter = RandomAdapter(config, 2, DType::kF64, 5, dropout_probability, kind);
  adapter.InitializeModules(weights.get());
  const Decoder decoder(*backend, config, weights.get(), kDouble, 16);
  RefreshNorms(*backend, weights.get(), adapter);
  Runner runner(decoder, &adapter, batch, Recompute::kNone);
  const double loss = runner.LossAndGradients(dropout);

  RandomWeights complex_weights(config, DType::kC128, 11, quantize);
  LoraAdapter complex_adapter =
      RandomAdapter(config, 2, DType::kC128, 5, dropout_probability, kind);
  complex_adapter.InitializeModules(complex_weights.get());
  const Decoder complex_decoder(*backend, config, complex_weights.get(), kComplex, 16);
  RefreshNorms(*backend, complex_weights.get(),
               complex_adapter);  // of the real values: they count as constants
  Runner complex_runner(complex_decoder, &complex_adapter, batch, Recompute::kNone, batch.rows());
  EXPECT_NEAR(complex_runner.Loss(dropout), loss, 1e-12 * loss);

  const auto derivative = [&](Complex& parameter) {
    const Complex before = parameter;
    parameter += Complex(0, kStep);
    complex_runner.Loss(dropout);
    parameter = before;
    Complex sum = 0;
    for (std::int64_t i = 0; i < batch.supervised(); ++i) {
      sum -= complex_runner.activations().row_stats.Row<Complex>(0)[i];
    }
    return sum.imag() / kStep;
  };
  std::uint64_t draw = 0;
  double largest = 0;
  const auto compare = [&](const std::string& name, const MatrixView& gradient,
                           const MatrixView& parameter, int samples) {
    for (int sample = 0; sample < samples; ++sample) {
      const auto i = static_cast<std::int64_t>(
          RandomBelow(MakeKey(1, RandomPlace::kTest), draw++,
                      static_cast<std::uint64_t>(gradient.rows * gradient.cols)));
      const double expected = derivative(parameter.Row<Complex>(0)[i]);
      const double found = gradient.Row<double>(0)[i];
      EXPECT_NEAR(found, expected, 1e-11 * (1 + std::abs(expected))) << name << " element " << i;
      largest = std::max(largest, std::abs(expected));
    }
  };
  for (std::size_t l = 0; l < adapter.layers().size(); ++l) {
    ForEachPair(adapter.layers()[l], complex_adapter.layers()[l],
                [&](const LoraLinear& lora, const LoraLinear& complex_lora) {
                  if (lora.rank == 0) return;
                  compare(lora.path, lora.da, complex_lora.a, 4);
                  compare(lora.path, lora.db, complex_lora.b, 4);
                  if (kind.use_dora)
                    compare(lora.path, lora.d_magnitude, complex_lora.magnitude, 4);
                });
  }
  EXPECT_GT(largest, 1e-2);  // the check would pass on zeros otherwise
  for (std::size_t i = 0; i < adapter.modules().size(); ++i) {
    const TrainedModule& module = adapter.modules()[i];
    largest = 0;
    compare(module.name, module.gradient, complex_adapter.modules()[i].weight, 40);
    EXPECT_GT(largest, 1e-2) << module.name;
  }
}

TEST_P(DecoderGradientTest, AgreeWithComplexStep) {
  CompareWithComplexStep(GetParam().config, false, {}, 0);
}

INSTANTIATE_TEST_SUITE_P(All, DecoderGradientTest, testing::ValuesIn(Families()),
                         [](const auto& family) { return family.param.name; });

TEST(DecoderGradient, OverFourBitWeights) { CompareWithComplexStep(TinyConfig(), true, {}, 0); }

TEST(DecoderGradient, WithDropout) {
  CompareWithComplexStep(TinyConfig(), false, {true, 77, 5}, 0.3);
}

TEST(DecoderGradient, OfDora) {
  CompareWithComplexStep(TinyConfig(), false, {}, 0, Dora());
  CompareWithComplexStep(TinyConfig(), true, {true, 77, 5}, 0.3, Dora());
  for (const TestedFamily& family : Families()) {
    SCOPED_TRACE(family.name);
    if (family.config.moe.num_experts > 0) {
      EXPECT_THROW(RandomAdapter(family.config, 2, DType::kF64, 5, 0, Dora()), Error);
      continue;
    }
    CompareWithComplexStep(family.config, false, {}, 0, Dora());
  }
  DecoderConfig narrow = TinyConfig();  // the outputs of o and down are the widest
  narrow.fused_qkv = narrow.fused_gate_up = true;
  narrow.hidden_size = 96;
  CompareWithComplexStep(narrow, false, {}, 0, Dora());
}

TEST(DecoderGradient, OfRslora) {
  AdapterConfig rslora;
  rslora.use_rslora = true;
  CompareWithComplexStep(TinyConfig(), false, {}, 0, rslora);
  CompareWithComplexStep(TinyConfig(), true, {true, 77, 5}, 0.3, rslora);
}

TEST(DecoderGradient, OfEmbeddingsAndHead) {
  for (const TestedFamily& family : Families()) {
    SCOPED_TRACE(family.name);
    AdapterConfig whole;
    whole.modules_to_save = {"embed_tokens", "lm_head"};
    CompareWithComplexStep(family.config, false, {}, 0, whole);
  }
  for (const char* module : {"embed_tokens", "lm_head"}) {  // one, where the base ties them or not
    for (const bool tied : {false, true}) {
      DecoderConfig config = TinyConfig();
      config.tie_word_embeddings = tied;
      AdapterConfig one;
      one.modules_to_save = {module};
      CompareWithComplexStep(config, false, {}, 0, one);
    }
  }
  AdapterConfig both = Dora();
  both.modules_to_save = {"lm_head", "embed_tokens"};
  DropoutState state{true, 77, 5};
  state.neftune_alpha = 5;
  CompareWithComplexStep(TinyConfig(), true, state, 0.3, both);
}

TEST(DecoderGradient, WithNoiseOnTheEmbeddings) {
  DropoutState state{true, 3, 1};
  state.neftune_alpha = 5;
  CompareWithComplexStep(TinyConfig(), false, state, 0);
}

// Uniform in +-alpha / sqrt(L D) for a sequence of L tokens.
TEST(DecoderGradient, NoiseOnTheEmbeddingsHasTheSizeOfThePaper) {
  const DecoderConfig config = TinyConfig();
  const auto backend = MakeReferenceBackend();
  const RandomWeights weights(config, DType::kF64, 13);
  const std::vector<int> lengths = {5, 40};
  const Batch batch = RandomBatch(config, lengths, 3);
  const Decoder decoder(*backend, config, weights.get(), kDouble, 64);
  const auto embeddings = [&](double alpha) {
    DropoutState state{true, 3, 1};
    state.neftune_alpha = alpha;
    Runner runner(decoder, nullptr, batch, Recompute::kNone);
    runner.Loss(state);
    const MatrixView x = runner.activations().layers[0].x_in;
    return std::vector<double>(x.Row<double>(0), x.Row<double>(0) + x.rows * x.cols);
  };
  const std::vector<double> plain = embeddings(0);
  const std::vector<double> noisy = embeddings(5);
  std::size_t i = 0;
  for (const int length : lengths) {
    const auto values = static_cast<std::size_t>(length * config.hidden_size);
    double largest = 0;
    for (const std::size_t end = i + values; i < end; ++i) {
      largest = std::max(largest, std::abs(noisy[i] - plain[i]));
    }
    const double limit = 5 / std::sqrt(static_cast<double>(values));
    EXPECT_LE(largest, limit * (1 + 1e-6));
    EXPECT_GE(largest, 0.9 * limit);  // 80 values and more: all below it in one draw of 4000
  }
}

TEST(DecoderGradient, DoraStartsAsTheBase) {
  const DecoderConfig config = TinyConfig();
  const auto backend = MakeReferenceBackend();
  const RandomWeights weights(config, DType::kF64, 13, true);
  const Batch batch = RandomBatch(config, {5, 7}, 3);
  const auto loss_with = [&](LoraAdapter* adapter) {
    const Decoder decoder(*backend, config, weights.get(), kDouble, 16);
    if (adapter != nullptr) InitializeMagnitudes(*backend, weights.get(), *adapter);
    Runner runner(decoder, adapter, batch, Recompute::kNone);
    return runner.Loss();
  };
  AdapterConfig adapter_config;
  adapter_config.use_dora = true;
  adapter_config.target_modules = std::string("all-linear");
  LoraAdapter adapter = LoraAdapter::Create(adapter_config, config, HostMemory(), 1, DType::kF64);
  EXPECT_NEAR(loss_with(&adapter), loss_with(nullptr), 1e-12);
}

}  // namespace
}  // namespace qlora
