// Sequences that share a prefix, written whole for what mixes tokens (PassInputs::unfolded).
// Linears and everything else that takes one row at a time compute a prefix once, N rows; keys,
// values and recurrences see M rows, in which each sequence stands behind a copy of its prefix.
// Without prefixes both are the same matrices, and nothing is copied.
#ifndef QLORA_PASS_BLOCKS_UNFOLD_H_
#define QLORA_PASS_BLOCKS_UNFOLD_H_

#include "pass/linear_group.h"

namespace qlora {

// `unfolded` where sequences have prefixes, else the matrix itself.
inline MatrixView WholeOf(const LayerContext& context, const MatrixView& x,
                          const MatrixView& unfolded) {
  return context.inputs.unfolds() ? unfolded : x;
}

// whole (M, D) = x (N, D), with copies of prefixes.
void Unfold(const LayerContext& context, const MatrixView& x, const MatrixView& whole);
// x (N, D): the gradients of all copies of each row in whole (M, D), added in the order of rows.
void Fold(const LayerContext& context, const MatrixView& whole, const MatrixView& x);
// x (N, D): of each row the copy in its own sequence.
void TakeOwn(const LayerContext& context, const MatrixView& whole, const MatrixView& x);
// The mirror: other copies get no gradient.
void GiveOwn(const LayerContext& context, const MatrixView& x, const MatrixView& whole);

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_UNFOLD_H_
