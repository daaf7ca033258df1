// Rotary position tables (Su et al., arXiv:2104.09864, and its scalings in Hugging Face
// transformers' modeling_rope_utils).
#ifndef QLORA_PASS_ROPE_H_
#define QLORA_PASS_ROPE_H_

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "config/config.h"

namespace qlora {

// The rotation of each of the rotary_dim / 2 pairs per position, in radians. beyond_original:
// whether sequences are longer than original_max_position_embeddings (longrope only).
std::vector<double> RopeFrequencies(const RopeConfig& rope, bool beyond_original);

// The cosines and sines of a decoder: one table for each of DecoderConfig::ropes, with one row per
// position. longrope has two frequencies, of sequences up to the original length and of longer
// ones; the rows of the latter follow the rows of the former.
class RopeTables {
 public:
  RopeTables(Memory& memory, const DecoderConfig& config, DType wide, std::int64_t max_positions);
  static std::size_t Bytes(const DecoderConfig& config, DType wide, std::int64_t max_positions);

  const RopeTable& table(std::int64_t rope) const { return tables_[rope]; }
  // The row of position 0 of a sequence of `length` tokens. Errors: Runtime beyond max_positions.
  std::int32_t FirstRow(std::int64_t rope, std::int64_t length) const;
  // True when sequences of a and of b tokens have the same rows; a sequence without tokens has any.
  bool HaveSameTables(std::int64_t a, std::int64_t b) const;

 private:
  std::vector<RopeConfig> ropes_;
  std::int64_t max_positions_;
  Arena arena_;
  std::vector<RopeTable> tables_;
};

}  // namespace qlora

#endif  // QLORA_PASS_ROPE_H_
