#include "pass/neftune.h"

#include <algorithm>
#include <cmath>

namespace qlora {

std::vector<float> NoiseMagnitudes(const Batch& batch, double alpha, std::int64_t hidden_size) {
  std::vector<float> magnitudes(batch.rows());
  for (std::size_t s = 0; s + 1 < batch.sequence_begin.size(); ++s) {
    const std::int64_t begin = batch.sequence_begin[s];
    const std::int64_t end = batch.sequence_begin[s + 1];
    // T * D values of the sequence: the longer it is, the less noise each value gets.
    const auto values = static_cast<double>((end - begin) * hidden_size);
    std::fill(magnitudes.begin() + begin, magnitudes.begin() + end,
              static_cast<float>(alpha / std::sqrt(values)));
  }
  return magnitudes;
}

void AddEmbeddingNoise(Backend& backend, const PassInputs& inputs, const MatrixView& x) {
  if (inputs.noise.empty()) return;
  const DropoutState& state = inputs.dropout;
  // Keyed by the micro-batch, so that a resumed run adds the same noise.
  backend.Run(
      ops::AddNoise{MakeKey(state.seed, RandomPlace::kNeftune, state.micro_step), inputs.noise, x});
}

}  // namespace qlora
