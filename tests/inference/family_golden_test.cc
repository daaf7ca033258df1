// Families of models against the float64 results of transformers' own classes. The checkpoints lie
// outside of the tree.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "adapter/expert_stack.h"
#include "inference/engine.h"
#include "io/json.h"
#include "model/checkpoint.h"
#include "model/golden.h"
#include "pass/loss.h"
#include "pass/pass_shape.h"

namespace qlora {
namespace {

constexpr std::int64_t kMostPositions = 160;
constexpr Precision kFloat{DType::kF32, DType::kF32};

using Rows = std::vector<std::vector<std::int32_t>>;

fs::path FamiliesFolder() { return SharedFolder() / "golden" / "families"; }

// The recorded gradients are their norm and 12 products with normal numbers. Row p of the file: the
// numbers of numpy.random.default_rng(p).
std::vector<float> Normals(std::int64_t p, std::int64_t count) {
  constexpr std::int64_t kRow = 2048;
  std::vector<float> values(count);
  std::ifstream file(kGoldenDir / "normals.f32", std::ios::binary);
  file.seekg(static_cast<std::streamoff>(p * kRow * sizeof(float)));
  file.read(static_cast<char*>(static_cast<void*>(values.data())),
            static_cast<std::streamsize>(count * sizeof(float)));
  EXPECT_TRUE(file);
  return values;
}

class FamilyGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = FamiliesFolder() / GetParam();
    if (!fs::exists(folder_ / "golden.json")) GTEST_SKIP() << "no " << folder_;
    golden_ = ReadJsonFile(folder_ / "golden.json");
    rows_ = golden_.contains("rows")
                ? golden_.at("rows").get<Rows>()
                : ReadJsonFile(FamiliesFolder() / "ids.json").at("rows").get<Rows>();
    if (golden_.contains("difference_in_float32")) {
      // Families whose gated norms magnify rounding.
      for (const auto& [what, difference] : golden_.at("difference_in_float32").items()) {
        if (what == "gradients") continue;
        tolerance_ = std::max({tolerance_, 5e-5, 5 * difference.get<double>()});
      }
    }
    // Norms, softmax and rotary tables are float32 in these classes, so that their values are not
    // those of float64 either.
    if (golden_.contains("float32_islands_move_by")) {
      golden_error_ = golden_.at("float32_islands_move_by").get<double>();
      tolerance_ = std::max(tolerance_, 5 * golden_error_);
    }
    config_ = LoadDecoderConfig(folder_);
    load_.load_in_4bit = false;
    weights_ = LoadWeights(context_, *backend_, folder_, config_, load_);
    decoder_.emplace(*backend_, config_, weights_, kFloat, kMostPositions);
  }

  Rows RowsOf(const Json& numbers) const {
    Rows some;
    for (const std::size_t i : numbers.get<std::vector<std::size_t>>()) some.push_back(rows_[i]);
    return some;
  }

  Batch BatchOfRows(const Rows& rows) const {
    std::vector<Sample> samples;
    for (const auto& row : rows) samples.push_back({row, row});
    return MakeBatch(samples);
  }

  void Reserve(LoraAdapter* adapter, std::int64_t rows) {
    backend_->Reserve(LimitsOf(config_, AdaptersOf(adapter), rows, rows, rows, rows));
  }

  // Of each token but the first of each row; the rows are packed into one batch.
  std::vector<double> LogProbsOf(const Rows& rows, LoraAdapter* adapter) {
    const Batch batch = BatchOfRows(rows);
    Reserve(adapter, batch.rows());
    Runner runner(*decoder_, adapter, batch, Recompute::kNone, batch.rows());
    const PassInputs inputs = runner.Prepare();
    Forward(*decoder_, inputs, runner.activations());
    std::vector<double> logprobs;
    Loss(*decoder_, inputs, runner.activations(), &logprobs);
    return logprobs;
  }

  void ExpectLogProbs(const Rows& rows, const Json& expected, LoraAdapter* adapter) {
    std::vector<double> values;
    for (const auto& row : expected.get<std::vector<std::vector<double>>>()) {
      values.insert(values.end(), row.begin(), row.end());
    }
    const std::vector<double> found = LogProbsOf(rows, adapter);
    ASSERT_EQ(found.size(), values.size());
    double worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      worst = std::max(worst, std::abs(found[i] - values[i]));
    }
    EXPECT_LE(worst, tolerance_);
  }

  void ExpectGradients(const Json& expected, LoraAdapter& adapter) {
    adapter.AllocateGradients();
    const Batch batch = BatchOfRows(RowsOf(golden_.at("step_rows")));
    Reserve(&adapter, batch.rows());
    const auto supervised = static_cast<double>(batch.supervised());
    for (const Recompute recompute : {Recompute::kNone, Recompute::kLayer}) {
      Runner runner(*decoder_, &adapter, batch, recompute, batch.rows());
      const double loss = runner.LossAndGradients({}, 1 / supervised) / supervised;
      EXPECT_NEAR(loss, expected.at("loss").get<double>(), tolerance_);
      std::size_t compared = 0;
      for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
        compared += CompareStacks(expected, layer);
        layer.ForEach([&](const LoraLinear& lora) {
          if (lora.rank == 0 || IsJoinedExpert(config_, lora.path)) return;
          compared += Compare(expected, lora, "lora_A", lora.da);
          compared += Compare(expected, lora, "lora_B", lora.db);
        });
      }
      EXPECT_EQ(compared, expected.at("gradients").size());
    }
  }

  // The gradients of experts in the two parameters of a layer.
  std::size_t CompareStacks(const Json& expected, const PerLinear<LoraLinear>& layer) const {
    std::vector<LoraValues> gradients;
    layer.ForEach([&](const LoraLinear& lora) {
      if (lora.rank == 0 || !IsJoinedExpert(config_, lora.path)) return;
      const auto values = [](const MatrixView& m) {
        return std::vector<float>(m.Row<float>(0), m.Row<float>(0) + m.rows * m.cols);
      };
      gradients.push_back({.path = lora.path,
                           .in = lora.in,
                           .out = lora.out,
                           .rank = lora.rank,
                           .a = values(lora.da),
                           .b = values(lora.db)});
    });
    std::size_t compared = 0;
    for (const StackedLora& stack : StackExperts(gradients, config_)) {
      compared += Compare(expected, stack.wrapper, "lora_A", stack.a);
      compared += Compare(expected, stack.wrapper, "lora_B", stack.b);
    }
    return compared;
  }

  std::size_t Compare(const Json& expected, const LoraLinear& lora, const char* side,
                      const MatrixView& gradient) const {
    const float* values = gradient.Row<float>(0);
    return Compare(expected, lora.path, side, {values, values + gradient.rows * gradient.cols});
  }

  std::size_t Compare(const Json& expected, const std::string& path, const char* side,
                      const std::vector<float>& found) const {
    // Names of the class that was recorded: of the wrapper, or of the text model.
    const std::string rest = path.substr(std::string("model.").size());
    for (const char* prefix : {"model.", "model.language_model."}) {
      const std::string name = fmt::format("base_model.model.{}{}.{}.weight", prefix, rest, side);
      if (!expected.at("gradients").contains(name)) continue;
      const auto values = expected.at("gradients").at(name).get<std::vector<double>>();
      const std::int64_t count = std::ssize(found);
      double squares = 0;
      for (std::int64_t i = 0; i < count; ++i) squares += double{found[i]} * found[i];
      EXPECT_NEAR(std::sqrt(squares), values[0], 1e-4 * values[0]) << name;
      for (std::size_t p = 1; p < values.size(); ++p) {
        const std::vector<float> normals = Normals(static_cast<std::int64_t>(p) - 1, count);
        double product = 0;
        for (std::int64_t i = 0; i < count; ++i) product += double{found[i]} * normals[i];
        // Some standard deviations of the product with an error of 1e-4 of the norm.
        EXPECT_NEAR(product, values[p], 4e-4 * values[0]) << name << " product " << p;
      }
      return 1;
    }
    ADD_FAILURE() << "no gradient of " << path << " " << side << " is recorded";
    return 0;
  }

  // Greedy, prompt in parts and then token by token.
  void ExpectContinuation(const Json& text) {
    const auto prompt = text.at("prompt_ids").get<std::vector<std::int32_t>>();
    const auto expected = text.at("new_ids").get<std::vector<std::int32_t>>();
    const auto length = static_cast<std::int64_t>(prompt.size() + expected.size());
    const std::int64_t rows = Engine::LeastRows(config_);
    Arena memory = ReserveSlots(*decoder_, {}, rows);
    EvalMemory passes(*decoder_, {}, memory);
    const PoolMemory pool(backend_->memory(), config_, kFloat, 1, length);
    Engine engine(*decoder_, passes, pool.pool(), rows);
    EngineRequest request{.prompt = prompt};
    request.options.max_new_tokens = std::ssize(expected);
    engine.Submit(request);
    std::vector<std::int32_t> found;
    while (!engine.is_idle()) {
      for (const EngineToken& token : engine.Step()) found.push_back(token.token);
    }
    EXPECT_EQ(found, expected);
  }

  Context context_{2};
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(context_, DType::kF32);
  fs::path folder_;
  Json golden_;
  Rows rows_;
  double tolerance_ = 1e-5;
  double golden_error_ = 0;
  DecoderConfig config_;
  LoadOptions load_;
  DecoderWeights weights_;
  std::optional<Decoder> decoder_;
};

TEST_P(FamilyGolden, LogProbabilitiesOfEachRow) {
  // Also where a file has tensors that no layer reads.
  EXPECT_TRUE(weights_.sizes.notes.empty());
  ExpectLogProbs(rows_, golden_.at("logprobs"), nullptr);
}

// The definitions, where no rounding of ours hides a difference.
TEST_P(FamilyGolden, LogProbabilitiesInFloat64) {
  const std::unique_ptr<Backend> reference = MakeReferenceBackend();
  load_.wide = DType::kF64;
  const DecoderWeights weights = LoadWeights(context_, *reference, folder_, config_, load_);
  const Decoder decoder(*reference, config_, weights, {DType::kF64, DType::kF64}, kMostPositions);
  const Batch batch = BatchOfRows(rows_);
  Runner runner(decoder, nullptr, batch, Recompute::kNone, batch.rows());
  const PassInputs inputs = runner.Prepare();
  Forward(decoder, inputs, runner.activations());
  std::vector<double> logprobs;
  Loss(decoder, inputs, runner.activations(), &logprobs);
  std::size_t n = 0;
  double worst = 0;
  for (const auto& row : golden_.at("logprobs").get<std::vector<std::vector<double>>>()) {
    for (const double value : row) worst = std::max(worst, std::abs(logprobs.at(n++) - value));
  }
  // Scales and epsilons are float32 here.
  EXPECT_LE(worst, std::max(1e-6, 1.05 * golden_error_));
}

TEST_P(FamilyGolden, AdapterAndItsGradients) {
  if (golden_.contains("adapter_logprobs")) {
    LoraAdapter adapter = LoraAdapter::Load(folder_ / "adapter", config_, HostMemory());
    ExpectLogProbs(RowsOf(golden_.at("adapter_rows")), golden_.at("adapter_logprobs"), &adapter);
    ExpectGradients(golden_, adapter);
    return;
  }
  for (const char* name : {"adapter", "adapter_all"}) {
    if (!golden_.contains(name)) continue;
    SCOPED_TRACE(name);
    LoraAdapter adapter = LoraAdapter::Load(folder_ / name, config_, HostMemory());
    ExpectLogProbs(RowsOf(golden_.at("adapter_rows")), golden_.at(name).at("logprobs"), &adapter);
    ExpectGradients(golden_.at(name), adapter);
  }
}

TEST_P(FamilyGolden, GreedyContinuations) {
  for (const Json& text : golden_.at("generate")) ExpectContinuation(text);
}

std::string NameOfFamily(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '/'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    All, FamilyGolden,
    testing::Values("granite/dense", "granite/hybrid-nope", "granite/hybrid-rope",
                    "ministral3/wrapped", "ministral3/fp8", "hunyuan/dense", "ernie4_5/dense",
                    "seed_oss/dense", "glm4/dense", "falcon3/llama", "qwen3_5", "qwen3_5-wrapped",
                    "qwen3_5_moe", "qwen3_next", "lfm2", "lfm2_moe", "lfm3", "lfm3-narrow",
                    "gemma4/e2b", "gemma4/31b", "gemma4/26b-a4b", "gpt_oss/bf16", "gpt_oss/mxfp4"),
    NameOfFamily);

}  // namespace
}  // namespace qlora
