// A pass over rows of several adapters reads each weight of the base once.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "backend/backend_decorator.h"
#include "inference/engine.h"
#include "pass/random_decoder.h"

namespace qlora {
namespace {

// Counts the ops that read a frozen weight, and the rows and adapters that meet it there.
class ReadingsBackend final : public BackendDecorator {
 public:
  struct Count {
    int ops = 0;
    std::int64_t rows = 0;
    std::int64_t adapters = 0;
  };

  explicit ReadingsBackend(std::unique_ptr<Backend> cpu)
      : BackendDecorator(*cpu), cpu_(std::move(cpu)) {}

  std::map<const void*, Count> counts;  // of each weight

 private:
  void DoRun(const Op& op) override {
    if (const auto* linear = std::get_if<ops::Linear>(&op)) {
      for (const LinearView& one : linear->linears) {
        const WeightView& weight = one.weight;
        Count& count = counts[weight.dense.empty() ? weight.quantized.packed : weight.dense.data];
        ++count.ops;
        count.rows += linear->x.rows;
        count.adapters += std::ssize(linear->ranges);
      }
    }
    inner().Run(op);
  }

  std::unique_ptr<Backend> cpu_;
};

TEST(WeightReadings, RowsOfFourAdaptersReadAWeightOnce) {
  constexpr std::int64_t kTexts = 16;
  const DecoderConfig config = TinyConfig();
  const Precision precision{DType::kF32, DType::kF32};
  Context context(2);
  for (const bool quantize : {false, true}) {
    ReadingsBackend backend(MakeCpuBackend(context, DType::kF32));
    const RandomWeights weights(config, DType::kF32, 3, quantize);
    const Decoder decoder(backend, config, weights.get(), precision, 32);
    std::vector<LoraAdapter> adapters;
    for (int i = 0; i < 4; ++i) adapters.push_back(RandomAdapter(config, 2 + i, DType::kF32, 5));
    std::vector<const LoraAdapter*> views;
    for (LoraAdapter& adapter : adapters) views.push_back(&adapter);
    Arena memory = ReserveSlots(decoder, views, kTexts);
    EvalMemory passes(decoder, views, memory);
    const PoolMemory pool(backend.memory(), config, precision, kTexts, 32);
    Engine engine(decoder, passes, pool.pool(), kTexts);
    for (std::int32_t i = 0; i < kTexts; ++i) {
      EngineRequest request{.prompt = {i}, .adapter = views[i % 4]};
      request.options.max_new_tokens = 20;
      engine.Submit(std::move(request));
    }
    while (engine.running() < kTexts) engine.Step();
    backend.counts.clear();
    EXPECT_EQ(std::ssize(engine.Step()), kTexts);
    // q, k, v, o, gate, up and down of two layers, and the head.
    EXPECT_EQ(backend.counts.size(), 2u * 7 + 1);
    for (const auto& [weight, count] : backend.counts) {
      EXPECT_EQ(count.ops, 1);
      EXPECT_EQ(count.rows, kTexts);
      EXPECT_EQ(count.adapters, weight == weights.get().head.dense.data ? 0 : 4);
    }
  }
}

}  // namespace
}  // namespace qlora
