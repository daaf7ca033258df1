// A backend that measures where the time of a pass goes.
#ifndef QLORA_BENCH_TIMED_BACKEND_H_
#define QLORA_BENCH_TIMED_BACKEND_H_

#include <array>
#include <tuple>
#include <type_traits>

#include "backend/backend_decorator.h"
#include "bench/bench_clock.h"

namespace qlora::bench {

// The ops of a step, by kind.
enum class Part : std::size_t {
  kProducts,
  kAttention,
  kNorms,
  kRope,
  kActivation,
  kLoss,
  kOptimizer,
  kOther,
};
inline constexpr std::size_t kParts = 8;
inline constexpr std::array<const char*, kParts> kPartNames = {
    "matrix products", "attention",     "RMSNorm",   "RoPE",
    "SwiGLU",          "cross-entropy", "optimizer", "embedding, rows"};

// Passes every op on to another backend, which must outlive it.
class TimedBackend final : public BackendDecorator {
 public:
  TimedBackend(Backend& backend, Clock clock) : BackendDecorator(backend), clock_(clock) {}

  // Seconds spent in each part since the last Reset.
  const std::array<double, kParts>& seconds() const { return seconds_; }
  void Reset() { seconds_ = {}; }

 private:
  // Returns the part that an op belongs to; rows are moved by all that no other part names.
  template <typename T>
  static constexpr Part PartOf(const T&) {
    using namespace ops;
    constexpr auto is = []<typename... Kinds>(std::type_identity<std::tuple<Kinds...>>) {
      return (std::is_same_v<T, Kinds> || ...);
    };
    using Products = std::tuple<Linear, LinearBackward, ExpertLinear, ExpertLinearBackward,
                                WeightGradient, RowNorms>;
    if (is(std::type_identity<Products>{})) return Part::kProducts;
    // Layers with a state have these in the place of attention.
    using Mixers = std::tuple<Attention, AttentionBackward, AttentionSinks, CausalConv,
                              CausalConvBackward, GatedDeltaRule, GatedDeltaRuleBackward>;
    if (is(std::type_identity<Mixers>{})) return Part::kAttention;
    if (is(std::type_identity<std::tuple<RmsNorm, RmsNormBackward>>{})) return Part::kNorms;
    if (is(std::type_identity<std::tuple<ops::Rope>>{})) return Part::kRope;
    using Gates = std::tuple<GatedActivation, GatedActivationBackward, GateRows, GateRowsBackward>;
    if (is(std::type_identity<Gates>{})) return Part::kActivation;
    using Losses = std::tuple<CrossEntropy, KlDivergence, SumRows>;
    if (is(std::type_identity<Losses>{})) return Part::kLoss;
    if (is(std::type_identity<std::tuple<Update, SumOfSquares>>{})) return Part::kOptimizer;
    return Part::kOther;
  }

  void DoRun(const Op& op) override {
    const Timer watch(clock_);
    inner().Run(op);
    const Part part = std::visit([](const auto& any) { return PartOf(any); }, op);
    seconds_[static_cast<std::size_t>(part)] += watch.seconds();
  }

  Clock clock_;
  std::array<double, kParts> seconds_ = {};
};

}  // namespace qlora::bench

#endif  // QLORA_BENCH_TIMED_BACKEND_H_
