// What must not change the gradients of a whole decoder: recomputing, threads, and other sequences
// in the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "pass/decoder_families.h"
#include "pass/pass_shape.h"

namespace qlora {
namespace {

class DecoderBitsTest : public testing::TestWithParam<TestedFamily> {};

void ReserveFor(Backend& backend, const DecoderConfig& config, const LoraAdapter& adapter,
                const Batch& batch) {
  const std::int64_t rows = batch.rows();
  backend.Reserve(LimitsOf(config, {&adapter}, rows, rows, rows, rows));
}

// Compares the gradients with `kept`, which the first call fills.
void ExpectSameBits(const LoraAdapter& adapter, std::vector<float>& kept) {
  const ConstMatrixView flat = adapter.gradients();
  const std::vector<float> gradients(flat.Row<float>(0), flat.Row<float>(0) + flat.cols);
  if (kept.empty()) kept = gradients;
  EXPECT_EQ(0, std::memcmp(kept.data(), gradients.data(), kept.size() * sizeof(float)));
}

// Weights are quantized where products with them are of another kind then.
void ExpectRecomputingChangesNoBit(const DecoderConfig& config, Backend& backend,
                                   const Precision& precision, double dropout) {
  const Batch batch = RandomBatch(config, {6, 3}, 4);
  RandomWeights weights(config, DType::kF32, 12, precision.frozen != FrozenProducts::kFloat);
  AdapterConfig whole;
  whole.modules_to_save = {"embed_tokens", "lm_head"};
  LoraAdapter adapter = RandomAdapter(config, 3, DType::kF32, 6, dropout, whole);
  adapter.InitializeModules(weights.get());
  const Decoder decoder(backend, config, weights.get(), precision, 16);
  ReserveFor(backend, config, adapter, batch);
  std::vector<float> kept;
  for (Recompute recompute :
       {Recompute::kNone, Recompute::kAttention, Recompute::kMlp, Recompute::kLayer}) {
    Runner runner(decoder, &adapter, batch, recompute);
    runner.LossAndGradients({true, 9, 2});
    ExpectSameBits(adapter, kept);
  }
}

constexpr Precision kInt8 = {DType::kBF16, DType::kF32, FrozenProducts::kInt8};

// On the definitions and on the CPU, in all types of products.
TEST_P(DecoderBitsTest, RecomputingChangesNoBit) {
  const DecoderConfig& config = GetParam().config;
  Context context(2);
  // Experts that are parameters to PEFT are adapted without dropout alone.
  std::vector<double> dropouts = {0.2};
  if (config.joins_experts()) dropouts.push_back(0);
  for (const double dropout : dropouts) {
    ExpectRecomputingChangesNoBit(config, *MakeReferenceBackend(), {}, dropout);
    for (const Precision& precision : {Precision{}, Precision{DType::kBF16}, kInt8}) {
      ExpectRecomputingChangesNoBit(config, *MakeCpuBackend(context, precision), precision,
                                    dropout);
    }
  }
}

void ExpectSameBitsOnAnyThreads(const DecoderConfig& config, const std::vector<int>& lengths,
                                const Precision& precision = {}) {
  const Batch batch = RandomBatch(config, lengths, 4);
  const RandomWeights weights(config, DType::kF32, 12, precision.frozen != FrozenProducts::kFloat);
  LoraAdapter adapter = RandomAdapter(config, 3, DType::kF32, 6);
  std::vector<float> kept;
  for (const int threads : {1, 2, 5}) {
    Context context(threads);
    const std::unique_ptr<Backend> backend = MakeCpuBackend(context, precision);
    const Decoder decoder(*backend, config, weights.get(), precision, 64);
    ReserveFor(*backend, config, adapter, batch);
    Runner runner(decoder, &adapter, batch, Recompute::kMlp);
    runner.LossAndGradients();
    ExpectSameBits(adapter, kept);
  }
}

TEST_P(DecoderBitsTest, AnyNumberOfThreadsGivesTheSameBits) {
  ExpectSameBitsOnAnyThreads(GetParam().config, {9, 1, 6});
  ExpectSameBitsOnAnyThreads(GetParam().config, {9, 1, 6}, kInt8);
}

// Gate and up of an expert add to the gradient of one A, which has more columns than one task
// takes.
TEST(DecoderBits, OfSharedMatricesAreTheSameOnAnyThreads) {
  DecoderConfig config;
  for (const TestedFamily& family : Families()) {
    if (family.name == "GptOssWithOneAOfGateAndUp") config = family.config;
  }
  config.hidden_size = 600;
  EXPECT_TRUE(RandomAdapter(config, 3, DType::kF32, 6).layers()[0].gate_up[1].shares_a);
  ExpectSameBitsOnAnyThreads(config, {40, 30});
}

// `tolerance` bounds the errors of the loss and, in the 2-norm, of all gradients, relative to them.
template <typename T>
void ExpectPackedEqualsSeparate(const DecoderConfig& config, Backend& backend, DType dtype,
                                double tolerance) {
  const RandomWeights weights(config, dtype, 13);
  LoraAdapter adapter = RandomAdapter(config, 2, dtype, 8);
  const Decoder decoder(backend, config, weights.get(), {dtype, dtype}, 16);
  const std::vector<int> lengths = {4, 6, 2};
  const Batch packed = RandomBatch(config, lengths, 5);
  ReserveFor(backend, config, adapter, packed);
  Runner packed_runner(decoder, &adapter, packed, Recompute::kLayer);
  const double packed_loss = packed_runner.LossAndGradients();
  const MatrixView flat = adapter.gradients();
  const std::vector<double> packed_gradients(flat.Row<T>(0), flat.Row<T>(0) + flat.cols);

  double loss = 0;
  std::vector<double> gradients(packed_gradients.size());
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const auto begin = static_cast<std::size_t>(packed.sequence_begin[s]);
    const auto end = static_cast<std::size_t>(packed.sequence_begin[s + 1]);
    Batch one;
    one.ids.assign(packed.ids.begin() + begin, packed.ids.begin() + end);
    one.targets.assign(packed.targets.begin() + begin, packed.targets.begin() + end);
    one.positions.assign(packed.positions.begin() + begin, packed.positions.begin() + end);
    one.sequence_begin = {0, static_cast<std::int64_t>(end - begin)};
    Runner runner(decoder, &adapter, one, Recompute::kLayer);
    loss += runner.LossAndGradients();
    for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] += flat.Row<T>(0)[i];
  }
  EXPECT_NEAR(packed_loss, loss, tolerance * loss);
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    error += std::pow(packed_gradients[i] - gradients[i], 2);
    norm += std::pow(gradients[i], 2);
  }
  EXPECT_GT(norm, 1e-4);
  EXPECT_LT(std::sqrt(error / norm), tolerance);
}

// The sums over the rows of the batch are what packing adds up in another order.
TEST_P(DecoderBitsTest, PackedEqualsSeparate) {
  const DecoderConfig& config = GetParam().config;
  // Sums over 12 rows, which cancel: errors of scalar and AVX2 kernels are at most two thirds of
  // the bound in every family. Scores that are not divided by the root of the size of heads magnify
  // the errors of q and k, and more layers have more of them.
  const double scores = config.attention_scale * std::sqrt(static_cast<double>(config.head_dim));
  const double layers = static_cast<double>(config.num_hidden_layers) / 2;
  const double rows = 32 * std::max(1.0, scores) * layers;
  ExpectPackedEqualsSeparate<double>(config, *MakeReferenceBackend(), DType::kF64,
                                     rows * std::numeric_limits<double>::epsilon());
  Context context(2);
  ExpectPackedEqualsSeparate<float>(config, *MakeCpuBackend(context, DType::kF32), DType::kF32,
                                    rows * double{std::numeric_limits<float>::epsilon()});
}

// Branches of one prefix: in one pass that computes the prefix once, and each behind a prefix of
// its own.
struct SharedPrefix {
  Sample together;
  std::vector<Sample> apart;
};

SharedPrefix RandomBranches(const DecoderConfig& config, int prefix, const std::vector<int>& rows,
                            std::uint64_t seed) {
  std::uint64_t draw = 0;
  const auto token = [&] {
    return static_cast<std::int32_t>(RandomBelow(MakeKey(seed, RandomPlace::kTest), draw++,
                                                 static_cast<std::uint64_t>(config.vocab_size)));
  };
  SharedPrefix sample;
  for (int t = 0; t < prefix; ++t) sample.together.ids.push_back(token());
  sample.together.labels.assign(prefix, kIgnoreLabel);
  const Sample shared = sample.together;
  for (const int count : rows) {
    Sample one = shared;
    sample.together.branches.push_back(std::ssize(sample.together.ids));
    for (int t = 0; t < count; ++t) {
      const std::int32_t id = token();
      for (Sample* of : {&one, &sample.together}) {
        of->ids.push_back(id);
        of->labels.push_back(t == 0 ? kIgnoreLabel : id);
      }
    }
    sample.apart.push_back(std::move(one));
  }
  return sample;
}

// The loss and the gradients (P) of a batch.
template <typename T>
std::pair<double, std::vector<double>> GradientsOf(const Decoder& decoder, LoraAdapter& adapter,
                                                   const Batch& batch, Recompute recompute) {
  Runner runner(decoder, &adapter, batch, recompute);
  const double loss = runner.LossAndGradients();
  const MatrixView flat = adapter.gradients();
  return {loss, std::vector<double>(flat.Row<T>(0), flat.Row<T>(0) + flat.cols)};
}

template <typename T>
void ExpectSharedEqualsSeparate(const DecoderConfig& config, Backend& backend, DType dtype,
                                double tolerance) {
  const RandomWeights weights(config, dtype, 13);
  LoraAdapter adapter = RandomAdapter(config, 2, dtype, 8);
  const Decoder decoder(backend, config, weights.get(), {dtype, dtype}, 32);
  const SharedPrefix first = RandomBranches(config, 7, {3, 5, 2}, 5);
  const SharedPrefix second = RandomBranches(config, 1, {4, 2}, 6);
  std::vector<Sample> apart = first.apart;
  apart.insert(apart.end(), second.apart.begin(), second.apart.end());
  const Batch separate = MakeBatch(apart);
  const Batch shared = MakeBatch(std::vector<Sample>{first.together, second.together});
  EXPECT_EQ(shared.supervised(), separate.supervised());
  EXPECT_LT(shared.rows(), separate.rows());
  backend.Reserve(LimitsOf(config, {&adapter}, separate.rows(), separate.rows(),
                           shared.unfolded_rows(), shared.unfolded_rows()));
  const auto [loss, gradients] = GradientsOf<T>(decoder, adapter, separate, Recompute::kLayer);
  std::vector<double> kept;
  for (const Recompute recompute : {Recompute::kLayer, Recompute::kNone}) {
    const auto [found_loss, found] = GradientsOf<T>(decoder, adapter, shared, recompute);
    EXPECT_NEAR(found_loss, loss, tolerance * loss);
    double error = 0;
    double norm = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      error += std::pow(found[i] - gradients[i], 2);
      norm += std::pow(gradients[i], 2);
    }
    EXPECT_GT(norm, 1e-4);
    EXPECT_LT(std::sqrt(error / norm), tolerance);
    if (!kept.empty()) {
      EXPECT_EQ(found, kept);
    }
    kept = found;
  }
}

// The bound is that of PackedEqualsSeparate for the rows of here.
TEST_P(DecoderBitsTest, ASharedPrefixEqualsSeparateSequences) {
  const DecoderConfig& config = GetParam().config;
  const double scores = config.attention_scale * std::sqrt(static_cast<double>(config.head_dim));
  const double layers = static_cast<double>(config.num_hidden_layers) / 2;
  const double rows = 100 * std::max(1.0, scores) * layers;
  ExpectSharedEqualsSeparate<double>(config, *MakeReferenceBackend(), DType::kF64,
                                     rows * std::numeric_limits<double>::epsilon());
  Context context(2);
  ExpectSharedEqualsSeparate<float>(config, *MakeCpuBackend(context, DType::kF32), DType::kF32,
                                    rows * double{std::numeric_limits<float>::epsilon()});
}

INSTANTIATE_TEST_SUITE_P(All, DecoderBitsTest, testing::ValuesIn(Families()),
                         [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace qlora
