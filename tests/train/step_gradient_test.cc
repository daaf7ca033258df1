// The gradient of the first step, entry by entry, against float64 PyTorch loops.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/safetensors.h"
#include "train/preference_run.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

std::vector<float> ValuesOf(const TensorReader& file, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  std::memcpy(values.data(), file.Bytes(tensor).data(), tensor.bytes());
  return values;
}

// A step of SGD takes the gradient, times the rate, from the adapter. The rate is large, so that
// the difference is larger than the rounding of what is left.
void ExpectGradient(TrainOptions options, const fs::path& expected) {
  constexpr double kRate = 1000;
  const fs::path start = options.adapter;
  options.optim = "sgd";
  options.sgd_momentum = 0;
  options.weight_decay = 0;
  options.max_grad_norm = 0;
  options.learning_rate = kRate;
  options.max_steps = 1;
  Context context(2);
  TrainObserver observer;
  PlanAndTrain(context, options, observer);
  const auto gradients = OpenSafetensors(expected);
  const auto before = OpenSafetensors(start / "adapter_model.safetensors");
  const auto after = OpenSafetensors(fs::path(options.output_dir) / "adapter_model.safetensors");
  for (const TensorInfo& tensor : gradients->tensors()) {
    const std::vector<float> want = ValuesOf(*gradients, tensor);
    const std::vector<float> from = ValuesOf(*before, *before->Find(tensor.name));
    const std::vector<float> to = ValuesOf(*after, *after->Find(tensor.name));
    double largest = 0;
    double worst = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(double{want[i]}));
      worst = std::max(worst, std::abs((double{from[i]} - to[i]) / kRate - want[i]));
    }
    EXPECT_LT(worst, 1e-4 * largest) << tensor.name;
  }
}

TEST(StepGradientTest, Preferences) {
  const fs::path shared = SharedFolder() / "golden" / "preference";
  if (!fs::exists(shared)) GTEST_SKIP() << "no " << shared;
  const TemporaryFolder folder;
  for (const char* name : {"dpo_sigmoid", "dpo_ipo", "orpo", "simpo", "kto"}) {
    SCOPED_TRACE(name);
    TrainOptions options = PreferenceOptions(folder / "run", "adapter_sft");
    const std::string loss = name;
    options.preference.preference_loss = {loss.starts_with("dpo_") ? loss.substr(4) : loss};
    if (loss == "simpo") options.preference.simpo_gamma = 0.5;
    if (loss == "kto") {
      options.data.dataset = {PreferenceGoldens() / "unpaired.jsonl"};
      options.per_device_train_batch_size = 8;
    }
    ExpectGradient(options, shared / ("grad_step0_" + loss + "_sft.safetensors"));
  }
}

TEST(StepGradientTest, Decisions) {
  const fs::path shared = SharedFolder() / "golden" / "decision" / "qwen3";
  if (!fs::exists(shared)) GTEST_SKIP() << "no " << shared;
  const TemporaryFolder folder;
  for (const std::string name : {"mixed", "brier", "continued"}) {
    SCOPED_TRACE(name);
    TrainOptions options;
    options.model_name_or_path = kGolden / "decision" / "tiny-qwen3";
    options.output_dir = folder / "run";
    options.overwrite_output_dir = true;
    options.compute_dtype = "float32";
    options.quantization.bnb_4bit_use_double_quant = false;
    options.adapter = shared / (name == "continued" ? "adapter_mixed" : "adapter_init");
    options.lora_r = 4;
    options.lora_alpha = 8;
    options.data.dataset = {kGolden / "decision" / "qwen3" / "train.jsonl"};
    options.data.shuffle = false;
    options.data.reading.decision.decision_template = "plain";
    options.data.reading.decision.soft_targets = name != "mixed";
    options.per_device_train_batch_size = 4;
    options.gradient_accumulation_steps = 1;
    options.lr_scheduler_type = "constant";
    options.warmup_ratio = 0;
    options.lora_dropout = 0;
    options.brier_weight = name == "brier" ? 0.5 : 0;
    ExpectGradient(options, shared / ("grad_step0_" + name + ".safetensors"));
  }
}

}  // namespace
}  // namespace qlora
