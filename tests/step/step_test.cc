// Steps of processes that share the micro-batches of a window.
#include "step/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "pass/pass_shape.h"
#include "pass/random_decoder.h"

namespace qlora {
namespace {

constexpr std::int64_t kWindow = 4;
constexpr Precision kFloat{DType::kF32, DType::kF32};

// A process with its own adapter and optimizer, which begin alike in all processes.
class Process {
 public:
  Process()
      : weights_(config_, DType::kF32, 3),
        adapter_(RandomAdapter(config_, 2, DType::kF32, 5, 0.1)),
        tree_(HostMemory(), kWindow, adapter_.gradients()),
        optimizer_({}, adapter_, "") {
    for (int m = 0; m < kWindow; ++m) {
      batches_.push_back(RandomBatch(config_, {5 + m, 7}, 20 + m));
      rows_ = std::max(rows_, batches_.back().rows());
    }
    options_.recompute.assign(config_.num_hidden_layers, Recompute::kLayer);
    options_.max_grad_norm = 0.1;
    options_.seed = 11;
    backend_->Reserve(LimitsOf(config_, {&adapter_}, rows_, rows_, rows_, rows_));
  }

  // The micro-batches that `wanted` is true for.
  StepBatch Share(const std::function<bool(std::int64_t)>& wanted) const {
    StepBatch share{.count = kWindow, .first_micro_batch = 8};
    for (std::int64_t m = 0; m < kWindow; ++m) {
      share.supervised += batches_[m].supervised();
      share.rows += batches_[m].rows();
      if (wanted(m)) share.micro_batches.push_back({m, batches_[m]});
    }
    return share;
  }

  WindowSums Add(const std::function<bool(std::int64_t)>& wanted) {
    return AddGradients(model(), options_, Share(wanted), adapter_, tree_);
  }
  StepResult Apply(const WindowSums& sums) {
    return ApplyGradients(model(), options_, Share([](std::int64_t) { return false; }), sums,
                          kUpdate, adapter_, optimizer_);
  }
  StepResult Whole() {
    return TrainStep(model(), options_, Share([](std::int64_t) { return true; }), kUpdate, adapter_,
                     tree_, optimizer_);
  }

  std::vector<float> Gradients() { return Download<float>(HostMemory(), adapter_.gradients()); }
  std::vector<float> Parameters() { return Download<float>(HostMemory(), adapter_.parameters()); }
  void AddToGradients(const std::vector<float>& more) {
    for (std::size_t i = 0; i < more.size(); ++i) adapter_.gradients().Row<float>(0)[i] += more[i];
  }

 private:
  static constexpr UpdateArgs kUpdate = {.learning_rate = 1e-2};

  StepModel model() { return {decoder_, memory_}; }

  Context context_{2};
  DecoderConfig config_ = TinyConfig();
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(context_, DType::kF32);
  RandomWeights weights_;
  LoraAdapter adapter_;
  GradientTree tree_;
  Optimizer optimizer_;
  std::vector<Batch> batches_;
  std::int64_t rows_ = 0;
  StepOptions options_;
  Decoder decoder_{*backend_, config_, weights_.get(), kFloat, 64};
  PassMemory memory_{HostMemory(), {std::size_t{1} << 22, 0}};
};

WindowSums Together(const WindowSums& a, const WindowSums& b) {
  WindowSums sums = a;
  for (std::int64_t m = 0; m < kWindow; ++m) {
    sums.losses[m] += b.losses[m];
    sums.hits[m] += b.hits[m];
  }
  return sums;
}

TEST(Step, ProcessesThatShareAWindowGetItsBits) {
  Process whole;
  const std::vector<float> before = whole.Parameters();
  const StepResult expected = whole.Whole();
  EXPECT_TRUE(expected.applied);
  EXPECT_NE(whole.Parameters(), before);

  Process first, second;
  const WindowSums a = first.Add([](std::int64_t m) { return m < 2; });
  const WindowSums b = second.Add([](std::int64_t m) { return m >= 2; });
  first.AddToGradients(second.Gradients());
  const StepResult found = first.Apply(Together(a, b));
  EXPECT_TRUE(found.applied);
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.grad_norm, expected.grad_norm);
  EXPECT_EQ(found.hits, expected.hits);
  EXPECT_EQ(found.supervised, expected.supervised);
  EXPECT_EQ(found.rows, expected.rows);
  EXPECT_EQ(first.Parameters(), whole.Parameters());
}

// Any share can be described. Only the order of the sums differs from that of the tree.
TEST(Step, SharesNeedNotBeRuns) {
  Process whole, even, odd;
  const StepResult expected = whole.Whole();
  const WindowSums a = even.Add([](std::int64_t m) { return m % 2 == 0; });
  const WindowSums b = odd.Add([](std::int64_t m) { return m % 2 == 1; });
  even.AddToGradients(odd.Gradients());
  const StepResult found = even.Apply(Together(a, b));
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.hits, expected.hits);
  EXPECT_NEAR(found.grad_norm, expected.grad_norm, 1e-5 * expected.grad_norm);
}

// A NaN in another process ends the step of this one.
TEST(Step, ANanOfAnotherProcessSkipsTheUpdate) {
  for (const bool in_loss : {true, false}) {
    Process process;
    const std::vector<float> before = process.Parameters();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    WindowSums sums = process.Add([](std::int64_t m) { return m < 2; });
    if (in_loss) {
      sums.losses[3] = nan;
      sums.bad_tensor = "the embeddings";
    } else {
      process.AddToGradients({nan});
    }
    const StepResult found = process.Apply(sums);
    EXPECT_FALSE(found.applied);
    EXPECT_FALSE(std::isfinite(found.grad_norm));
    EXPECT_EQ(found.bad_tensor, in_loss ? "the embeddings"
                                        : "the gradient of model.layers.0.self_attn.q_proj.lora_A");
    EXPECT_EQ(process.Parameters(), before);
  }
}

}  // namespace
}  // namespace qlora
