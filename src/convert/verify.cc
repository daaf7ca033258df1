#include "convert/verify.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "pass/eval_memory.h"
#include "pass/loss.h"

namespace qlora {
namespace {

Batch FixedBatch(const DecoderConfig& config) {
  constexpr int kSequences = 4;
  constexpr std::int64_t kLength = 48;
  std::vector<Sample> samples(kSequences);
  std::uint64_t draw = 0;
  for (Sample& sample : samples) {
    for (std::int64_t t = 0; t < std::min(kLength, config.max_position_embeddings); ++t) {
      // Random ids: no tokenizer or data are needed, and rare rows of the embedding are tested too.
      sample.ids.push_back(
          static_cast<std::int32_t>(RandomBelow(MakeKey(0, RandomPlace::kVerify), draw++,
                                                static_cast<std::uint64_t>(config.vocab_size))));
    }
    sample.labels = sample.ids;
  }
  return MakeBatch(samples);
}

std::vector<double> LogProbs(Backend& backend, const DecoderConfig& config, const ModelForm& form,
                             const Batch& batch) {
  // Both sides are in float32, so that only the output differs.
  constexpr Precision kFloat32{DType::kF32, DType::kF32};
  const Decoder decoder(backend, config, form.weights, kFloat32, batch.rows());
  const Adapters adapters = AdaptersOf(form.adapter);
  PassMemory memory = ReserveEvaluation(decoder, adapters, batch.rows());
  EvalMemory passes(decoder, adapters, memory);
  // DoRA: lengths of rows belong to these weights, not to the other side's.
  if (form.adapter != nullptr) RefreshNorms(backend, form.weights, *form.adapter);
  Activations& activations = passes.ForRows(batch.rows());
  const PassInputs inputs =
      PrepareInputs(decoder, batch, {ForAllRows(form.adapter, batch.rows())}, activations);
  Forward(decoder, inputs, activations);
  std::vector<double> logprobs;
  Loss(decoder, inputs, activations, &logprobs);
  return logprobs;
}

}  // namespace

double MostExpectedMean(DType outtype) {
  switch (outtype) {
    case DType::kF32:
      // Mean differences of log-probabilities: float16 keeps 11 bits of a weight, bfloat16 8, Q8_0
      // about 7.
      return 0.001;
    case DType::kF16:
      return 0.02;
    case DType::kBF16:
      return 0.2;
    default:  // Q8_0
      return 0.5;
  }
}

Divergence Compare(Backend& backend, const DecoderConfig& config, const ModelForm& a,
                   const ModelForm& b) {
  const Batch batch = FixedBatch(config);
  const std::vector<double> la = LogProbs(backend, config, a, batch);
  const std::vector<double> lb = LogProbs(backend, config, b, batch);
  Divergence divergence;
  for (std::size_t i = 0; i < la.size(); ++i) {
    // The log-probability of a token of the batch, given all tokens before it.
    const double difference = std::abs(la[i] - lb[i]);
    divergence.mean += difference / static_cast<double>(la.size());
    divergence.max = std::max(divergence.max, difference);
  }
  return divergence;
}

}  // namespace qlora
