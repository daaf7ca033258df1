// Whole language models on the CUDA backend: gradients of every family against
// PyTorch, twenty steps of training, and what is generated.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "backend/cuda/cuda_backend.h"
#include "cuda/test_device.h"
#include "io/json.h"
#include "model/golden.h"
#include "model/model_loader.h"
#include "train/prepared_run.h"

namespace qlora {
namespace {

constexpr cuda::WorkspaceBudget kBudget = {.weight = 1 << 16, .rows = 1 << 15, .sums = 1 << 14};

// Backends that share one device.
BackendMaker OnDevice() {
  std::shared_ptr<cuda::Device> device = testing_util::MakeTestDevice(31);
  return [device](Context& context, DType compute) {
    return cuda::MakeBackendOn(context, device, compute, kBudget);
  };
}

class CudaGolden : public testing::TestWithParam<std::string> {
 protected:
  // Bounds of the relative errors of the loss and of the gradient of each matrix. compute: the type
  // of activations and products.
  void ExpectGradients(DType compute, const std::string& prefix, double loss_bound, double bound) {
    const fs::path dir = kGoldenDir / GetParam();
    const Golden golden(GetParam());
    Context context(1);
    const DecoderConfig config = LoadDecoderConfig(dir);
    LoadOptions load;
    load.load_in_4bit = prefix == "nf4.";
    const std::unique_ptr<Backend> backend = OnDevice()(context, compute);
    const DecoderWeights weights = LoadWeights(context, *backend, dir, config, load);
    LoraAdapter adapter = LoraAdapter::Load(dir / "adapter", config, backend->memory());
    adapter.AllocateGradients();
    const Batch batch = BatchOf(golden);
    backend->Reserve(
        LimitsOf(config, {&adapter}, batch.rows(), batch.rows(), batch.rows(), batch.rows()));
    const Decoder decoder(*backend, config, weights, {compute, DType::kF32}, 128);
    Runner runner(decoder, &adapter, batch, Recompute::kLayer, batch.rows());
    const auto supervised = static_cast<double>(batch.supervised());
    const double loss = runner.LossAndGradients({}, 1 / supervised) / supervised;
    const double expected_loss = golden.Floats(prefix + "loss")[0];
    EXPECT_NEAR(loss, expected_loss, loss_bound * expected_loss);
    for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
      layer.ForEach([&](const LoraLinear& lora) {
        const std::string name = prefix + "grad.base_model.model." + lora.path;
        const auto error = [&](const MatrixView& found, const std::string& suffix) {
          return RelativeError(Download<float>(backend->memory(), found).data(),
                               golden.Floats(name + suffix));
        };
        EXPECT_LT(error(lora.da, ".lora_A.weight"), bound) << lora.path;
        EXPECT_LT(error(lora.db, ".lora_B.weight"), bound) << lora.path;
      });
    }
  }
};

TEST_P(CudaGolden, LossAndGradients) { ExpectGradients(DType::kF32, "dense.", 1e-5, 1e-5); }

TEST_P(CudaGolden, LossAndGradientsInBfloat16) {
  ExpectGradients(DType::kBF16, "dense.", 1e-2, 0.1);
}

INSTANTIATE_TEST_SUITE_P(All, CudaGolden, testing::ValuesIn(kGoldenModels),
                         [](const testing::TestParamInfo<std::string>& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

std::vector<Json> ReadLines(const fs::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

// The run of tests/golden/train-20.
TEST(CudaTraining, TwentySteps) {
  const fs::path dir =
      fs::path(testing::TempDir()) / ("qlora-cuda-train-" + std::to_string(getpid()));
  const fs::path golden = kGoldenDir / "train-20";
  TrainOptions options;
  options.model_name_or_path = kGoldenDir / "llama-tiny";
  options.adapter = kGoldenDir / "llama-tiny" / "adapter";
  options.output_dir = dir;
  options.overwrite_output_dir = true;
  options.compute_dtype = "float32";
  options.data.dataset = {golden / "data.jsonl"};
  OptionTable table;
  options.Declare(table);
  const Json recipe = ReadJsonFile(golden / "recipe.json");
  for (const auto& [key, value] : recipe.items()) {
    table.Set(key, value.is_string() ? value.get<std::string>() : value.dump(), "recipe.json");
  }
  Context context(1);
  TrainObserver observer;
  Train(context, PlanTrainingOn(context, options, OnDevice()), observer);
  const std::vector<Json> found = ReadLines(dir / "train_log.jsonl");
  const std::vector<Json> expected = ReadLines(golden / "log-nf4.jsonl");
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i + 1);
    const auto expect_near = [&](const char* key, double bound) {
      const auto value = expected[i].at(key).get<double>();
      EXPECT_NEAR(found[i].at(key).get<double>(), value, bound * value) << key;
    };
    expect_near("loss", 1e-5);
    expect_near("grad_norm", 1e-4);
  }
  fs::remove_all(dir);
}

// In float32 the most likely tokens are those of the CPU.
TEST(CudaGeneration, TextOfTheCpu) {
  for (const char* compute : {"float32", "bfloat16"}) {
    ModelOptions options;
    options.model_name_or_path = kGoldenDir / "llama-tiny";
    options.adapter = kGoldenDir / "llama-tiny" / "adapter";
    options.compute_dtype = compute;
    const auto text = [&](const BackendMaker& backends) {
      Context context(1);
      Model model = ModelLoader::Load(context, options, backends);
      GenerateOptions generate;
      generate.max_new_tokens = 12;
      return model.Generate("Once upon", generate).text;
    };
    const std::string found = text(OnDevice());
    EXPECT_FALSE(found.empty());
    if (options.compute_dtype == "float32") {
      EXPECT_EQ(found, text(BackendsOf(Device::kCpu)));
    }
  }
}

}  // namespace
}  // namespace qlora
