// Models that llama.cpp quantized, with log-probabilities that a float64 forward pass computed from
// their decoded weights. They lie outside of the tree.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "config/config.h"
#include "io/json.h"
#include "model/checkpoint.h"
#include "model/weights.h"
#include "pass/random_decoder.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

class GgufGolden : public testing::TestWithParam<const char*> {};

TEST_P(GgufGolden, LogProbabilitiesAreThoseOfTheDecodedWeights) {
  const fs::path folder = SharedFolder() / "golden" / "gguf" / "models";
  const fs::path path = folder / (std::string(GetParam()) + ".gguf");
  if (!fs::exists(path)) GTEST_SKIP() << "no " << path;
  const Json expected = ReadJsonFile(folder / (std::string(GetParam()) + ".json"));
  const DecoderConfig config = LoadDecoderConfig(path);

  Context context(2);
  const auto backend = MakeCpuBackend(context, DType::kF32);
  const DecoderWeights weights = LoadWeights(context, *backend, path, config, LoadOptions());
  EXPECT_FALSE(weights.sizes.block_formats.empty());
  const auto ids = expected.at("ids").get<std::vector<std::int32_t>>();
  const std::vector<Sample> samples = {{ids, ids}};
  const Batch batch = MakeBatch(samples);
  const std::int64_t rows = batch.rows();
  backend->Reserve(LimitsOf(config, {}, rows, rows, rows, rows));
  const Decoder decoder(*backend, config, weights, {DType::kF32, DType::kF32}, 128);
  Runner runner(decoder, nullptr, batch, Recompute::kLayer, rows);
  const PassInputs inputs = runner.Prepare();
  Forward(decoder, inputs, runner.activations());
  std::vector<double> logprobs;
  Loss(decoder, inputs, runner.activations(), &logprobs);
  const auto values = expected.at("float64").get<std::vector<double>>();
  ASSERT_EQ(logprobs.size(), values.size());
  // Float32 against float64; the reference is printed with 6 digits.
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(logprobs[i], values[i], 2e-5);
}

std::string NameOfCase(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, GgufGolden,
                         testing::Values("llama-q4_k_m", "qwen3-iq4_xs", "mixtral-q3_k_m",
                                         "gemma3-q5_k_m", "lfm3-q4_k", "spark2_5-q8_0"),
                         NameOfCase);

}  // namespace
}  // namespace qlora
