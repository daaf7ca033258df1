#include "pass/blocks/unfold.h"

namespace qlora {

void Unfold(const LayerContext& context, const MatrixView& x, const MatrixView& whole) {
  if (!context.inputs.unfolds()) return;
  context.Run(ops::GatherRows{x, context.inputs.unfolded, whole});
}

void Fold(const LayerContext& context, const MatrixView& whole, const MatrixView& x) {
  if (!context.inputs.unfolds()) return;
  context.Run(ops::Zero{x});
  context.Run(ops::ScatterAddRows{whole, context.inputs.unfolded, x});
}

void TakeOwn(const LayerContext& context, const MatrixView& whole, const MatrixView& x) {
  if (!context.inputs.unfolds()) return;
  context.Run(ops::GatherRows{whole, context.inputs.folded, x});
}

void GiveOwn(const LayerContext& context, const MatrixView& x, const MatrixView& whole) {
  if (!context.inputs.unfolds()) return;
  context.Run(ops::Zero{whole});
  context.Run(ops::ScatterAddRows{x, context.inputs.folded, whole});
}

}  // namespace qlora
