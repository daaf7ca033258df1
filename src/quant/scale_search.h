// The scale search: the scale of a block that gives the least squared error, which is rarely the
// largest absolute value.
#ifndef QLORA_QUANT_SCALE_SEARCH_H_
#define QLORA_QUANT_SCALE_SEARCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "quant/encode_table.h"

namespace qlora {

// One per thread: holds the scratch memory of a block.
class ScaleSearch {
 public:
  // code (16): the value of each code. importance: weights of the squared errors by column of the
  // matrix, or empty; borrowed.
  ScaleSearch(const EncodeTable& table, const float* code, std::int64_t block_size,
              std::span<const float> importance);

  // The scale of a block of n finite values with the given largest magnitude. first: flat index of
  // its first value in the matrix.
  template <typename T>
  float Best(const T* x, std::int64_t n, std::int64_t first, float absmax);

 private:
  const EncodeTable* table_;
  const float* code_;
  std::span<const float> importance_;
  std::vector<float> x_;  // (block_size in whole steps) values / absmax
  std::vector<float> weights_;
};

}  // namespace qlora

#endif  // QLORA_QUANT_SCALE_SEARCH_H_
