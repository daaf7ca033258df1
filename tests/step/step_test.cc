// Steps of ranks that share the micro-batches of a window.
#include "step/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "dist/thread_ranks.h"
#include "pass/pass_shape.h"
#include "pass/random_decoder.h"

namespace qlora {
namespace {

constexpr std::int64_t kWindow = 4;
constexpr Precision kFloat{DType::kF32, DType::kF32};

// A rank with its own adapter and optimizer, which begin alike on all ranks.
class Rank {
 public:
  explicit Rank(Communicator& communicator)
      : communicator_(communicator),
        weights_(config_, DType::kF32, 3),
        adapter_(RandomAdapter(config_, 2, DType::kF32, 5, 0.1)),
        place_{communicator.rank(), 1, 1, {kWindow, 8, communicator.size()}},
        tree_(HostMemory(), place_, adapter_.gradients()),
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

  // A step of a window of `count` micro-batches.
  StepResult Step(std::int64_t count = kWindow) {
    StepBatch window{.count = count, .first_micro_batch = 8};
    const IndexRange mine =
        place_.split.WithMicroBatches(count).MicroBatchesOfReplica(communicator_.rank());
    for (std::int64_t m = 0; m < count; ++m) {
      window.totals.supervised += batches_[m].supervised();
      window.totals.rows += batches_[m].rows();
      if (mine.begin <= m && m < mine.end) window.micro_batches.push_back({m, batches_[m]});
    }
    return TrainStep(model(), options_, window, kUpdate, adapter_, tree_, optimizer_);
  }

  std::vector<float> Parameters() { return Download<float>(HostMemory(), adapter_.parameters()); }
  void SetParameter(float value) { adapter_.parameters().Row<float>(0)[0] = value; }

 private:
  static constexpr UpdateArgs kUpdate = {.learning_rate = 1e-2};

  static std::vector<Arena> MakeMemories() {
    std::vector<Arena> memories;
    memories.emplace_back(std::size_t{1} << 22);
    return memories;
  }
  StepModel model() { return {decoder_, memories_, communicator_}; }

  Communicator& communicator_;
  Context context_{2};
  DecoderConfig config_ = TinyConfig();
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(context_, DType::kF32);
  RandomWeights weights_;
  LoraAdapter adapter_;
  RankPlace place_;
  GradientTree tree_;
  Optimizer optimizer_;
  std::vector<Batch> batches_;
  std::int64_t rows_ = 0;
  StepOptions options_;
  Decoder decoder_{*backend_, config_, weights_.get(), kFloat, 64};
  std::vector<Arena> memories_ = MakeMemories();
};

struct Outcome {
  StepResult result;
  std::vector<float> parameters;
};

// Two steps, the second of a window at the end of an epoch, on each rank.
std::vector<Outcome> StepOn(int ranks, const std::function<void(Rank&, int)>& prepare = {}) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  OnRanks(ranks, [&](Communicator& communicator) {
    Rank rank(communicator);
    if (prepare) prepare(rank, communicator.rank());
    rank.Step();
    Outcome& outcome = outcomes[communicator.rank()];
    outcome.result = rank.Step(3);
    outcome.parameters = rank.Parameters();
  });
  return outcomes;
}

// Every rank has the bits of one process, also the rank that has no micro-batch of a short window.
TEST(Step, RanksGetTheBitsOfOne) {
  const Outcome expected = StepOn(1).front();
  EXPECT_TRUE(expected.result.applied);
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    for (const Outcome& found : StepOn(ranks)) {
      EXPECT_TRUE(found.result.applied);
      EXPECT_EQ(found.result.loss, expected.result.loss);
      EXPECT_EQ(found.result.grad_norm, expected.result.grad_norm);
      EXPECT_EQ(ValueOf(found.result.metrics, "token_accuracy"),
                ValueOf(expected.result.metrics, "token_accuracy"));
      EXPECT_EQ(found.result.totals.supervised, expected.result.totals.supervised);
      EXPECT_EQ(found.result.totals.rows, expected.result.totals.rows);
      EXPECT_EQ(found.parameters, expected.parameters);
    }
  }
}

// A NaN on one rank ends the step of all, and no rank is left waiting.
TEST(Step, ANanOfOneRankSkipsTheUpdateOfAll) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Outcome> outcomes = StepOn(2, [&](Rank& rank, int number) {
    if (number == 1) rank.SetParameter(nan);
  });
  for (const Outcome& found : outcomes) {
    EXPECT_FALSE(found.result.applied);
    EXPECT_FALSE(std::isfinite(found.result.grad_norm));
    EXPECT_EQ(found.result.bad_tensor, outcomes[0].result.bad_tensor);
    EXPECT_FALSE(found.result.bad_tensor.empty());
  }
}

}  // namespace
}  // namespace qlora
