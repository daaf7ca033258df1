// The softmax of attention and its gradient, on one tile of scores between the matrix products.
//
// A tile has one row per query and one column per key; in every row the visible columns are
// [first[r], last[r]). Rows are kTile floats apart.
#ifndef QLORA_BACKEND_CPU_ATTENTION_ATTENTION_SOFTMAX_H_
#define QLORA_BACKEND_CPU_ATTENTION_ATTENTION_SOFTMAX_H_

#include <cstdint>

#include "qlora/tensor.h"

namespace qlora::cpu {

inline constexpr std::int64_t kTile = 64;  // columns

struct ScoreTile {
  std::int64_t rows = 0;
  std::int64_t cols = 0;    // <= kTile
  float* scores = nullptr;  // (rows, kTile): products q . k
  const std::int32_t* first = nullptr;
  const std::int32_t* last = nullptr;
  float scale = 1;
  float softcap = 0;
};

// Softmax of rows seen tile by tile (Milakov and Gimelshein, arXiv:1805.02867).
struct RunningSoftmax {
  float* largest = nullptr;  // (rows) score so far; -infinity at first
  float* sum = nullptr;      // (rows) of exp(score - largest); 0 at first
  float* values = nullptr;   // (rows, width) sums of exp(score - largest) * v so far
  std::int64_t stride = 0;
  std::int64_t width = 0;
};

// scores = exp(cap(scale * scores) - largest), 0 where not visible; the sums so far are rescaled to
// the new `largest`, and the sums of this tile are added to `sum` (to `values` by the caller).
void SoftmaxTile(const ScoreTile& tile, const RunningSoftmax& state);
// values /= sum; largest + log(sum) is written to lse (rows) with the given distance.
void FinishSoftmax(std::int64_t rows, const RunningSoftmax& state, float* lse,
                   std::int64_t lse_stride);

// scores = p = exp(cap(scale * scores) - lse);
// d_scores(rows, kTile), the products d_o . v, become scale * p (d_scores - delta) cap'.
// lse, delta: (rows); delta is the sum of d_o * o.
void SoftmaxGradientTile(const ScoreTile& tile, const float* lse, const float* delta,
                         float* d_scores);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ATTENTION_ATTENTION_SOFTMAX_H_
