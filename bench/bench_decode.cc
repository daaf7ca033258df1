#include "bench/bench_decode.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "backend/backend_factory.h"
#include "bench/bench_limits.h"
#include "bench/bench_row.h"
#include "bench/bench_weights.h"
#include "inference/engine.h"
#include "model/shared_options.h"
#include "pass/flops.h"

namespace qlora::bench {
namespace {

constexpr int kRounds = 3;

double SecondsOf(Clock clock, const std::function<void()>& run) {
  const Timer watch(clock);
  run();
  return watch.seconds();
}

// Returns the bytes that one token must read with any kernels: its share of the linears and of the
// output head, and the keys and values of all positions before it. The embedding is one row.
double BytesOfToken(const DecodeBenchOptions& options, const DecoderConfig& config,
                    const Precision& precision, const RandomModel& model) {
  // On average, prompt + new / 2 positions are before a token.
  const double positions =
      static_cast<double>(options.prompt_tokens) + static_cast<double>(options.new_tokens) / 2;
  std::size_t position_bytes = 0;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    position_bytes += BytesOf(precision.activation, 2 * config.layer(l).kv_features());
  }
  const DecoderWeights& weights = model.get();
  const double shared =
      LinearBytesOfToken(config, weights) + static_cast<double>(BytesOf(weights.head));
  return shared / static_cast<double>(options.sequences) +
         static_cast<double>(position_bytes) * positions;
}

struct DecodeSeconds {
  double prefill = 1e30;
  double token = 1e30;
  double whole = 1e30;  // of a round
};

// A prompt of any ids: times do not depend on them. Prompts begin with different tokens, because
// those that begin alike are read once.
EngineRequest RequestOf(const DecodeBenchOptions& options, std::int64_t sequence,
                        std::int64_t vocab_size, const Adapters& adapters) {
  std::vector<std::int32_t> ids;
  for (std::int64_t n = 0; n < options.prompt_tokens; ++n) {
    ids.push_back(static_cast<std::int32_t>((sequence + 1 + n) % vocab_size));
  }
  EngineRequest request{.prompt = std::move(ids)};
  if (!adapters.empty()) request.adapter = adapters[sequence % std::ssize(adapters)];
  // The first token comes with the prompt. Each is the likeliest one.
  request.options.max_new_tokens = options.new_tokens + 1;
  return request;
}

// Returns the fastest of the rounds, each of which is the prompts of all sequences and new_tokens
// tokens of each. The bandwidth is measured in turn with them. decoder: for all positions of a
// round.
DecodeSeconds TimeDecode(Clock clock, const DecodeBenchOptions& options, const Decoder& decoder,
                         const Adapters& adapters, Bandwidth& bandwidth) {
  // The slots are planned for all positions, as `generate` plans them.
  const std::int64_t capacity = options.prompt_tokens + options.new_tokens;
  const std::int64_t rows = std::min(options.prompt_tokens * options.sequences, kMostPromptRows);
  Arena memory = ReserveSlots(decoder, adapters, rows);
  EvalMemory passes(decoder, adapters, memory);
  const PoolMemory pool(decoder.backend().memory(), decoder.config(), decoder.precision(),
                        options.sequences, capacity);
  DecodeSeconds best;
  for (int round = 0; round <= kRounds; ++round) {
    // Forgets the round before; the memory stays.
    Engine engine(decoder, passes, pool.pool(), rows);
    for (std::int64_t s = 0; s < options.sequences; ++s) {
      engine.Submit(RequestOf(options, s, decoder.config().vocab_size, adapters));
    }
    std::set<RequestId> begun;
    std::int64_t left = options.sequences * (options.new_tokens + 1);
    const double prefill_seconds = SecondsOf(clock, [&] {
      while (std::ssize(begun) < options.sequences) {
        for (const EngineToken& token : engine.Step(options.prompt_rows)) {
          begun.insert(token.request);
          --left;
        }
      }
    });
    const double decode_seconds = SecondsOf(clock, [&] {
      while (!engine.is_idle()) engine.Step();
    });
    bandwidth.Measure();
    if (round == 0) continue;  // warms up
    best.prefill = std::min(best.prefill, prefill_seconds);
    best.token = std::min(best.token, decode_seconds / static_cast<double>(left));
    best.whole = std::min(best.whole, prefill_seconds + decode_seconds);
  }
  return best;
}

}  // namespace

void DecodeBenchOptions::Declare(OptionTable& table) {
  table.Section("decode");
  table.Add("prompt_tokens", &prompt_tokens, "tokens read at once");
  table.Add("new_tokens", &new_tokens, "tokens generated one by one");
  table.Add("sequences", &sequences, "texts that are written at the same time");
  table.Add("adapters", &adapters, "adapters of the texts, in turn; 0: none");
  table.Add("prompt_rows", &prompt_rows,
            "rows of prompts in a step, between two tokens of texts that are written");
}

std::vector<BenchRow> BenchDecode(Context& context, Clock clock,
                                  const DecodeBenchOptions& options) {
  const std::int64_t capacity = options.prompt_tokens + options.new_tokens;
  const DecoderConfig config = ConfigOf(options.model, capacity);
  const BackendFactory::Ptr backends = BackendFactory::ForJob(context, options.model.device);
  const Precision precision = ParsePrecision(options.model.compute_dtype, *backends);
  const std::unique_ptr<Backend> backend = backends->Make(context, precision);
  std::vector<BenchRow> all;
  for (const std::string& format : options.model.Formats()) {
    const RandomModel model(context, *backend, config, format, WeightUse::kGeneration);
    const Decoder decoder(*backend, config, model.get(), precision, capacity);
    std::deque<LoraAdapter> adapters;
    Adapters used;
    for (std::int64_t a = 0; a < options.adapters; ++a) {
      adapters.push_back(RandomAdapter(options.model, config, backend->memory()));
      adapters.back().Pack(precision.activation);
      used.push_back(&adapters.back());
    }
    Bandwidth bandwidth(context, clock);
    const DecodeSeconds best = TimeDecode(clock, options, decoder, used, bandwidth);

    const FlopRates peak = MeasureFlops(context, precision, clock);
    const Limit& read = bandwidth.limit();
    const double bytes = BytesOfToken(options, config, precision, model);
    const double prompt_tokens = static_cast<double>(options.prompt_tokens * options.sequences);
    // At the peak: all prompts, and a token.
    const auto seconds_of = [&](std::int64_t tokens) {
      return qlora::SecondsOf(PrefillFlops(config, QuantizedSharesOf(model.get()), tokens), peak);
    };
    const double prompt_seconds =
        seconds_of(options.prompt_tokens) * static_cast<double>(options.sequences);
    const double token_limit = std::min(read.value / bytes, 1 / seconds_of(1));
    RowList rows(options.model.ShapeOf(options.model.ShapeText(), format),
                 OperandType(precision, format), context.threads());
    rows.Add("prefill", best.prefill, prompt_tokens / best.prefill, "tokens/s",
             prompt_tokens / prompt_seconds, kPeak);
    rows.Add("decode", best.token, 1 / best.token, "tokens/s", token_limit,
             token_limit < read.value / bytes ? kPeak : read.kind);
    rows.Add("decode, bytes read", best.token, bytes / best.token / 1e9, "GB/s", read.value / 1e9,
             read.kind);
    const double written = static_cast<double>(options.sequences * (options.new_tokens + 1));
    rows.Add("prompts and texts", best.whole, written / best.whole, "tokens/s");
    std::ranges::move(rows.Take(), std::back_inserter(all));
  }
  return all;
}

}  // namespace qlora::bench
