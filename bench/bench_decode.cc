#include "bench/bench_decode.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/stopwatch.h"
#include "bench/bench_limits.h"
#include "bench/bench_row.h"
#include "model/setup.h"

namespace qlora::bench {
namespace {

constexpr int kRounds = 3;

double SecondsOf(const std::function<void()>& run) {
  const Stopwatch watch;
  run();
  return watch.seconds();
}

// FLOPs of a prefill of `rows` tokens, of which the last one has logits.
double PrefillFlops(const DecoderConfig& config, std::int64_t rows) {
  double linear = 0;
  ShapeLinears(config).ForEach(
      [&](const LinearShape& shape) { linear += static_cast<double>(shape.out * shape.in); });
  // 2 FLOPs for each weight and token; the output head sees the last token alone.
  const auto n = static_cast<double>(rows);
  // Causal attention: q k^T and p v are 2 N^2 H K each, halved by the mask.
  const double attention = 2 * n * n * static_cast<double>(config.q_features());
  const double head =
      2 * static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  return static_cast<double>(config.num_hidden_layers) * (2 * n * linear + attention) + head;
}

}  // namespace

void DecodeBenchOptions::Declare(OptionTable& table) {
  table.Section("decode");
  table.Add("prompt_tokens", &prompt_tokens, "tokens read at once");
  table.Add("new_tokens", &new_tokens, "tokens generated one by one");
}

std::vector<BenchRow> BenchDecode(Context& context, const DecodeBenchOptions& options) {
  const std::int64_t prompt = options.prompt_tokens;
  // The cache is planned for all positions, as `generate` plans it.
  const std::int64_t capacity = prompt + options.new_tokens;
  const DecoderConfig config = ConfigOf(options.model, capacity);
  const Device device = ParseDevice(options.model.device);
  const Precision precision = ParsePrecision(options.model.compute_dtype, device);
  const std::unique_ptr<Backend> backend = MakeBackend(context, device, precision.activation);
  const RandomModel model(context, *backend, config, options.model.load_in_4bit,
                          WeightUse::kGeneration);
  const Decoder decoder(*backend, config, model.get(), precision, capacity);
  PassMemory memory = ReserveEvaluation(decoder, {}, prompt);
  EvalMemory passes(decoder, {}, memory);
  CacheMemory cache(decoder, capacity);
  Bandwidth bandwidth(context, *backend);
  const QueueEnd end(backend->memory());

  std::vector<std::int32_t> ids(prompt);
  std::iota(ids.begin(), ids.end(), 1);
  // Any ids: times do not depend on them.
  for (std::int32_t& id : ids) id %= static_cast<std::int32_t>(config.vocab_size);
  const auto next = [&](std::span<const std::int32_t> tokens) {
    Activations& activations = passes.ForRows(std::ssize(tokens));
    const PassInputs inputs =
        PrepareNextInputs(decoder, tokens, cache.cache(), capacity, nullptr, activations);
    ForwardCached(decoder, inputs, cache.cache(), activations);
    // The logits of one row: generation samples from the last token alone.
    Logits(decoder, inputs, 0, 1, activations);
  };

  double prefill = 1e30;
  double decode = 1e30;
  for (int round = 0; round <= kRounds; ++round) {
    // Forgets the round before; the memory stays.
    cache.cache().length = 0;
    const double prefill_seconds = SecondsOf([&] {
      next(ids);
      end.Wait();
    });
    const double decode_seconds = SecondsOf([&] {
      // Without sampling, which is the work of the host.
      for (std::int64_t t = 0; t < options.new_tokens; ++t) next(std::span(ids).first(1));
      end.Wait();
    });
    bandwidth.Measure();
    if (round == 0) continue;  // warms up
    prefill = std::min(prefill, prefill_seconds);
    decode = std::min(decode, decode_seconds / static_cast<double>(options.new_tokens));
  }

  const Limit peak = MeasureFlops(context, *backend, precision.activation);
  const Limit& read = bandwidth.limit();
  // A token reads the keys and values of all positions before it: on average prompt + new / 2.
  const double positions =
      static_cast<double>(prompt) + static_cast<double>(options.new_tokens) / 2;
  const double cache_bytes =
      static_cast<double>(
          BytesOf(precision.activation, 2 * config.num_hidden_layers * config.kv_features())) *
      positions;
  // The bytes that one token must read, whatever the kernels are. The embedding is one row.
  const double bytes = static_cast<double>(model.linear_bytes() + model.head_bytes()) + cache_bytes;
  const char* dtype = ShortName(precision.activation);
  const auto row = [&](const char* op, double seconds, double value, const char* unit, double limit,
                       const char* limit_kind) {
    return BenchRow{op,         options.model.ShapeText(),
                    dtype,      context.threads(),
                    seconds,    value,
                    unit,       limit,
                    limit_kind, limit > 0 ? value / limit : 0};
  };
  const double prompt_tokens = static_cast<double>(prompt);
  return {
      row("prefill", prefill, prompt_tokens / prefill, "tokens/s",
          prompt_tokens * peak.value / PrefillFlops(config, prompt), peak.kind),
      row("decode", decode, 1 / decode, "tokens/s", read.value / bytes, read.kind),
      row("decode, bytes read", decode, bytes / decode / 1e9, "GB/s", read.value / 1e9, read.kind)};
}

}  // namespace qlora::bench
