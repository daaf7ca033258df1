// Whole language models on the CUDA backend: gradients of every family against
// PyTorch, twenty steps of training, and what is generated.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "backend/cuda/cuda_backend.h"
#include "base/file.h"
#include "cuda/test_device.h"
#include "io/json.h"
#include "model/golden.h"
#include "model/model_loader.h"
#include "train/prepared_run.h"

namespace qlora {
namespace {

constexpr cuda::WorkspaceBudget kBudget = {.weight = 1 << 16, .rows = 1 << 15, .sums = 1 << 14};

// Backends that share one device. seed: that of MakeTestDevice.
BackendMaker OnDevice(std::uint64_t seed = 31) {
  std::shared_ptr<cuda::Device> device = testing_util::MakeTestDevice(seed);
  return [device](Context& context, DType compute) {
    return cuda::MakeBackendOn(context, device, compute, kBudget);
  };
}

double Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double product = 0, square_a = 0, square_b = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    product += double{a[i]} * b[i];
    square_a += double{a[i]} * a[i];
    square_b += double{b[i]} * b[i];
  }
  return product / std::sqrt(square_a * square_b);
}

class CudaGolden : public testing::TestWithParam<std::string> {
 protected:
  // Bounds of the relative errors of the loss and of the gradient of each matrix, and of its
  // cosine. compute: the type of activations and products.
  void ExpectGradients(DType compute, const std::string& prefix, double loss_bound, double bound,
                       double least_cosine) {
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
        const auto expect_near = [&](const MatrixView& gradient, const std::string& suffix) {
          const std::vector<float> found = Download<float>(backend->memory(), gradient);
          const std::vector<float> expected = golden.Floats(name + suffix);
          EXPECT_LT(RelativeError(found.data(), expected), bound) << lora.path << suffix;
          EXPECT_GT(Cosine(found, expected), least_cosine) << lora.path << suffix;
        };
        expect_near(lora.da, ".lora_A.weight");
        expect_near(lora.db, ".lora_B.weight");
      });
    }
  }
};

TEST_P(CudaGolden, LossAndGradients) {
  ExpectGradients(DType::kF32, "dense.", 1e-5, 1e-5, 1 - 1e-9);
}

TEST_P(CudaGolden, LossAndGradientsInBfloat16) {
  ExpectGradients(DType::kBF16, "dense.", 1e-2, 0.1, 0.999);
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
class CudaTraining : public testing::Test {
 protected:
  ~CudaTraining() override { fs::remove_all(dir_); }

  // The log.
  std::vector<Json> TrainOn(const BackendMaker& device, const std::string& compute_dtype) const {
    TrainOptions options;
    options.model_name_or_path = kGoldenDir / "llama-tiny";
    options.adapter = kGoldenDir / "llama-tiny" / "adapter";
    options.output_dir = dir_;
    options.overwrite_output_dir = true;
    options.compute_dtype = compute_dtype;
    options.data.dataset = {golden_ / "data.jsonl"};
    OptionTable table;
    options.Declare(table);
    const Json recipe = ReadJsonFile(golden_ / "recipe.json");
    for (const auto& [key, value] : recipe.items()) {
      table.Set(key, value.is_string() ? value.get<std::string>() : value.dump(), "recipe.json");
    }
    Context context(1);
    TrainObserver observer;
    Train(context, PlanTrainingOn(context, options, device), observer);
    return ReadLines(dir_ / "train_log.jsonl");
  }
  // Relative bounds.
  void ExpectLogOfPyTorch(const std::vector<Json>& found, double loss_bound,
                          double norm_bound) const {
    const std::vector<Json> expected = ReadLines(golden_ / "log-nf4.jsonl");
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(i + 1);
      const auto expect_near = [&](const char* key, double bound) {
        const auto value = expected[i].at(key).get<double>();
        EXPECT_NEAR(found[i].at(key).get<double>(), value, bound * value) << key;
      };
      expect_near("loss", loss_bound);
      expect_near("grad_norm", norm_bound);
    }
  }
  std::string Adapter() const { return ReadTextFile(dir_ / "adapter_model.safetensors"); }

  fs::path golden_ = kGoldenDir / "train-20";
  fs::path dir_ = fs::path(testing::TempDir()) / ("qlora-cuda-train-" + std::to_string(getpid()));
};

TEST_F(CudaTraining, TwentySteps) {
  ExpectLogOfPyTorch(TrainOn(OnDevice(), "float32"), 1e-5, 1e-4);
}

// The log is that of float32 on the CPU as well, to 1e-5 (tests/train/train_golden_test.cc).
TEST_F(CudaTraining, TwentyStepsInBfloat16) {
  ExpectLogOfPyTorch(TrainOn(OnDevice(), "bfloat16"), 2e-3, 3e-2);
}

// In another order of blocks, warps and lanes.
TEST_F(CudaTraining, ARunRepeatedGivesTheSameBits) {
  for (const char* compute : {"float32", "bfloat16"}) {
    TrainOn(OnDevice(31), compute);
    const std::string first = Adapter();
    TrainOn(OnDevice(5), compute);
    EXPECT_TRUE(Adapter() == first) << compute;
  }
}

// Short runs without dropout of a model whose embedding and head are two tables.
class CudaMemory : public testing::Test {
 protected:
  CudaMemory() { fs::create_directories(root_); }
  ~CudaMemory() override { fs::remove_all(root_); }

  TrainOptions Options(const std::string& name) const {
    TrainOptions options;
    options.model_name_or_path = kGoldenDir / "mistral-tiny";
    options.output_dir = root_ / name;
    options.compute_dtype = "bfloat16";
    options.recompute = "none";
    options.data.dataset = {kGoldenDir / "train-20" / "data.jsonl"};
    options.data.reading.max_length = 64;
    options.per_device_train_batch_size = 2;
    options.gradient_accumulation_steps = 2;
    options.learning_rate = 1e-2;
    options.max_steps = 2;
    return options;
  }

  fs::path root_ = fs::path(testing::TempDir()) / ("qlora-cuda-memory-" + std::to_string(getpid()));
};

// Without what the plan counts for the context and libraries of a GPU.
TEST_F(CudaMemory, IsWhatThePlanSays) {
  class Observer : public TrainObserver {
   public:
    void OnStep(const StepReport&) override { allocated = testing_util::AllocatedBytes(); }
    std::optional<std::size_t> allocated;
  };
  Context context(1);
  const std::pair<const char*, const char*> cases[] = {
      {"adamw", "none"}, {"paged_adamw_8bit", "layer"}, {"adamw_8bit", "offload"}};
  for (const auto& [optim, recompute] : cases) {
    SCOPED_TRACE(optim);
    TrainOptions options = Options(optim);
    options.optim = optim;
    options.recompute = recompute;
    const TrainPlan plan = PlanTrainingOn(context, options, OnDevice());
    const std::size_t held = OnDevice()(context, DType::kF32)->memory().Held();
    Observer observer;
    Train(context, plan, observer);
    if (!observer.allocated) GTEST_SKIP() << "a GPU rounds allocations up";
    const double ratio = static_cast<double>(*observer.allocated) /
                         static_cast<double>(plan.memory.bytes(MemoryPlace::kDevice) - held);
    EXPECT_LT(ratio, 1.03);
    EXPECT_GT(ratio, 0.97);
  }
}

// Nor does the host wait more often.
TEST_F(CudaMemory, WhatIsOnTheHostGivesTheSameBits) {
  Context context(1);
  std::vector<std::int64_t> waits;
  const auto train = [&](const TrainOptions& options) {
    const std::int64_t before = testing_util::Waits().value_or(0);
    const TrainPlan plan = PlanTrainingOn(context, options, OnDevice());
    TrainObserver observer;
    Train(context, plan, observer);
    waits.push_back(testing_util::Waits().value_or(0) - before);
    return plan;
  };
  const TrainPlan all = train(Options("all"));
  EXPECT_FALSE(all.run->needs.host_embedding);
  TrainOptions options = Options("less");
  options.max_memory = std::to_string(all.memory.peak() - 1);
  EXPECT_TRUE(train(options).run->needs.host_embedding);
  const auto adapter = [&](const char* name) {
    return ReadTextFile(root_ / name / "adapter_model.safetensors");
  };
  EXPECT_TRUE(adapter("all") == adapter("less"));
  TrainOptions offloaded = Options("offloaded");
  offloaded.recompute = "offload";
  const TrainPlan offloads = train(offloaded);
  EXPECT_TRUE(adapter("all") == adapter("offloaded"));
  TrainOptions both = offloaded;
  both.output_dir = root_ / "both";
  both.max_memory = std::to_string(offloads.memory.peak() - 1);
  EXPECT_TRUE(train(both).run->needs.host_embedding);
  EXPECT_TRUE(adapter("all") == adapter("both"));
  EXPECT_EQ(waits, std::vector<std::int64_t>(4, waits[0]));
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
