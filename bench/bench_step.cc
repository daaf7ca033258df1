#include "bench/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/memory_info.h"
#include "base/random.h"
#include "base/stopwatch.h"
#include "bench/bench_limits.h"
#include "bench/timed_backend.h"
#include "model/setup.h"
#include "train/memory_plan.h"
#include "train/step.h"

namespace qlora::bench {
namespace {

Batch RandomBatch(const DecoderConfig& config, const StepBenchOptions& options) {
  std::vector<Sample> samples;
  std::uint64_t draw = 0;
  for (std::int64_t s = 0; s < options.per_device_train_batch_size; ++s) {
    Sample sample;
    for (std::int64_t t = 0; t < options.max_length; ++t) {
      sample.ids.push_back(static_cast<std::int32_t>(RandomBelow(
          MakeKey(3, RandomPlace::kTest), draw++, static_cast<std::uint64_t>(config.vocab_size))));
    }
    // All tokens are trained on, so that the head computes for every row.
    sample.labels = sample.ids;
    samples.push_back(std::move(sample));
  }
  return MakeBatch(samples);
}

}  // namespace

void StepBenchOptions::Declare(OptionTable& table) {
  table.Section("step");
  table.Add("max_length", &max_length, "tokens per sequence");
  table.Add("per_device_train_batch_size", &per_device_train_batch_size,
            "sequences per micro-batch", {"batch_size"});
  table.Choice("recompute", &recompute, {"none", "attention", "mlp", "layer"},
               "activations that each layer recomputes in its backward pass");
  table.Add("steps", &steps, "timed steps; the fastest is reported");
  table.Add("warmup_steps", &warmup_steps, "steps before the timed steps");
}

double StepFlops(const DecoderConfig& config, std::int64_t lora_r, std::int64_t rows,
                 std::int64_t length, Recompute recompute) {
  const auto n = static_cast<double>(rows);
  const PerLinear<LinearShape> shapes = ShapeLinears(config);
  const auto parameters = [](const LinearShape& s) { return static_cast<double>(s.out * s.in); };
  const auto adapter = [&](const LinearShape& s) {
    return static_cast<double>(lora_r * (s.out + s.in));
  };
  // Forward 2, gradient of the input 2; adapters also have the gradients of A and B: 2.
  double products = 0;
  shapes.ForEach([&](const LinearShape& s) { products += 4 * parameters(s) + 6 * adapter(s); });
  const auto again = [&](const LinearShape& s) { products += 2 * (parameters(s) + adapter(s)); };
  if (RecomputesAttention(recompute)) {
    for (const LinearShape& s : shapes.qkv) again(s);
    again(shapes.o);
  }
  if (RecomputesMlp(recompute)) {
    for (const LinearShape& s : shapes.gate_up) again(s);
  }
  // Causal attention of one sequence: q k^T and p v are 2 T^2 H K each, halved by the mask;
  // backward has five such products.
  const double pairs = static_cast<double>(length) * static_cast<double>(config.q_features());
  const double attention = pairs * (2 + 5 + (RecomputesAttention(recompute) ? 2 : 0));
  const double head =
      4 * static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  return n * (static_cast<double>(config.num_hidden_layers) * (products + attention) + head);
}

std::vector<BenchRow> BenchStep(Context& context, const StepBenchOptions& options) {
  if (options.steps < 1 || options.warmup_steps < 0) {
    ThrowInvalidInput(
        "bench step: expected at least 1 for steps and 0 for warmup_steps, found {} and {}",
        options.steps, options.warmup_steps);
  }
  const DecoderConfig config = ConfigOf(options.model, options.max_length);
  const Device device = ParseDevice(options.model.device);
  const Precision precision = ParsePrecision(options.model.compute_dtype, device);
  const std::unique_ptr<Backend> inner = MakeBackend(context, device, precision.activation);
  // Before the model is made, as a plan sees the device.
  const std::size_t available = inner->memory().Available();
  TimedBackend backend(*inner);
  const RandomModel model(context, backend, config, options.model.load_in_4bit,
                          WeightUse::kTraining);
  LoraAdapter adapter = RandomAdapter(options.model, config, backend.memory());
  adapter.AllocateGradients();
  Optimizer optimizer({}, adapter, "");

  const Batch batch = RandomBatch(config, options);
  const Recompute level = ParseRecompute(options.recompute);
  const ActivationNeeds needs{.train_rows = batch.rows(),
                              .train_length = options.max_length,
                              .eval_rows = 0,
                              // All layers alike: a mixture would be another measurement for each
                              // plan.
                              .recompute = std::vector<Recompute>(
                                  static_cast<std::size_t>(config.num_hidden_layers), level)};
  backend.Reserve(LimitsOf(backend, config, adapter, needs));
  PassMemory memory(backend.memory(), BytesOfPasses(backend, config, adapter, precision, needs));
  const Decoder decoder(backend, config, model.get(), precision, options.max_length);
  StepOptions step_options;
  step_options.recompute = needs.recompute;
  step_options.max_grad_norm = 1;
  // One micro-batch: nothing is accumulated.
  GradientTree tree(backend.memory(), 1, adapter.gradients());

  std::vector<double> losses;
  const auto seconds_of_step = [&](std::int64_t s, bool waits) {
    // waits: each part is timed by waiting for its end, which costs overlap; so only the one step
    // that the parts are of waits, and only on a device.
    backend.Reset(waits);
    const Stopwatch watch;
    const StepResult result = TrainStep(
        {decoder, memory}, step_options, {{{0, batch}}, 1, s, batch.supervised(), batch.rows()},
        {.learning_rate = 1e-4, .step = s + 1}, adapter, tree, optimizer);
    const double seconds = watch.seconds();
    // Reported, since a change that makes steps faster must not change them.
    losses.push_back(result.loss);
    return seconds;
  };
  std::vector<double> timed;
  double parted = 0;  // the step that the parts are of
  std::array<double, kParts> parts = {};
  const std::int64_t steps = options.warmup_steps + options.steps;
  for (std::int64_t s = 0; s < steps; ++s) {
    const double seconds = seconds_of_step(s, false);
    if (s < options.warmup_steps) continue;
    // Parts of the best step, to which the other figures belong as well.
    if (timed.empty() || seconds < std::ranges::min(timed)) {
      parted = seconds;
      parts = backend.seconds();
    }
    timed.push_back(seconds);
  }
  std::ranges::sort(timed);
  const double best = timed.front();
  const bool on_host = IsHost(backend.memory());
  if (!on_host) {
    parted = seconds_of_step(steps, true);
    parts = backend.seconds();
  }
  // On a device: what is gone since before the model was made.
  const std::size_t used = on_host ? PeakResidentBytes() : available - backend.memory().Available();
  const Limit peak = MeasureFlops(context, *inner, precision.activation);
  const double flops =
      StepFlops(config, options.model.lora_r, batch.rows(), options.max_length, level);
  const std::string shape = fmt::format("{}x{} {}", options.per_device_train_batch_size,
                                        options.max_length, options.recompute);
  const char* dtype = ShortName(precision.activation);
  const auto tokens = static_cast<double>(batch.rows());
  std::vector<BenchRow> rows;
  // A limit of 0 has no ratio.
  const auto add = [&](const std::string& op, double seconds, double value, const char* unit,
                       double limit, const char* limit_kind) {
    rows.push_back({op, shape, dtype, context.threads(), seconds, value, unit, limit, limit_kind,
                    limit > 0 ? value / limit : 0});
  };
  add("step " + options.model.ShapeText(), best, tokens / best, "tokens/s",
      peak.value / flops * tokens, peak.kind);
  add("step", best, flops / best / 1e9, "GFLOP/s", peak.value / 1e9, peak.kind);
  // The best says what the program can do, the median what a run will see.
  const double median = timed[std::ssize(timed) / 2];
  add("step, median", median, tokens / median, "tokens/s", 0, "");
  for (const std::int64_t s : {std::int64_t{0}, std::min<std::int64_t>(20, steps - 1)}) {
    add(fmt::format("loss of step {}", s), best, losses[s], "nats", 0, "");
  }
  double others = 0;
  for (std::size_t i = 0; i < kParts; ++i) {
    add(std::string("share of ") + kPartNames[i], parts[i], 100 * parts[i] / parted, "%", 0, "");
    // Products are what must be done; all else is what can be saved.
    if (i != static_cast<std::size_t>(Part::kProducts)) others += parts[i];
  }
  add("share of all but products", others, 100 * others / parted, "%", 0, "");
  add(on_host ? "peak memory of the process" : "memory of the device", best,
      static_cast<double>(used) / 1e9, "GB", 0, "");
  return rows;
}

}  // namespace qlora::bench
