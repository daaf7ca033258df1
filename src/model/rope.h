// Rotary position tables (Su et al., arXiv:2104.09864, and its scalings in Hugging Face
// transformers' modeling_rope_utils).
#ifndef QLORA_MODEL_ROPE_H_
#define QLORA_MODEL_ROPE_H_

#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "model/config.h"

namespace qlora {

// The rotation of each of the rotary_dim / 2 pairs per position, in radians. beyond_original:
// whether sequences are longer than original_max_position_embeddings (longrope only).
std::vector<double> RopeFrequencies(const RopeConfig& rope, bool beyond_original);

// Fills cos and sin (positions, rotary_dim / 2) in `memory`, computed in float64 and scaled by
// attention_factor.
void FillRopeTable(const RopeConfig& rope, bool beyond_original, Memory& memory, MatrixView cos,
                   MatrixView sin);

}  // namespace qlora

#endif  // QLORA_MODEL_ROPE_H_
