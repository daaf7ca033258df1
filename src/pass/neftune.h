// NEFTune (Jain et al., arXiv:2310.05914): uniform noise on the embeddings of training passes.
#ifndef QLORA_PASS_NEFTUNE_H_
#define QLORA_PASS_NEFTUNE_H_

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/batch.h"
#include "pass/pass_inputs.h"

namespace qlora {

// (N) alpha / sqrt(T * D) of the sequence of each row.
std::vector<float> NoiseMagnitudes(const Batch& batch, double alpha, std::int64_t hidden_size);

// x (N, D) += magnitude * uniform in [-1, 1), where inputs.noise is there.
void AddEmbeddingNoise(Backend& backend, const PassInputs& inputs, const MatrixView& x);

}  // namespace qlora

#endif  // QLORA_PASS_NEFTUNE_H_
