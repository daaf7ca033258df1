#include "step/non_finite.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"

namespace qlora {
namespace {

// A NaN or Inf makes the sum of squares NaN or Inf. The sum may also overflow without either, which
// counts as not finite too: such values are of no use to a step.
bool IsFinite(Backend& backend, const ConstMatrixView& m, const MatrixView& sum) {
  return std::isfinite(ReadSumOfSquares(backend, Reshape(m, m.rows * m.cols), sum));
}

}  // namespace

std::string FirstBadActivation(Backend& backend, const IndexRange& layers,
                               Activations& activations) {
  const MatrixView sum = Columns(activations.sums, 0, 1);
  std::int64_t first = layers.end;  // the lowest layer with a bad input
  for (std::int64_t l = layers.end - 1; l >= layers.begin; --l) {
    // x_in of layer l is the output of layer l - 1.
    if (!IsFinite(backend, activations.layers[l].x_in, sum)) first = l;
  }
  if (first == 0) return "the embeddings";
  // In a stage of a pipeline: or in a layer before it.
  if (first < layers.end) return fmt::format("the output of model.layers.{}", first - 1);
  // The residual stream is finite to its end, so the loss broke in the head.
  if (IsFinite(backend, activations.x_out, sum)) return "the logits";
  return fmt::format("the output of model.layers.{}", layers.end - 1);
}

std::string FirstBadGradient(Backend& backend, LoraAdapter& adapter) {
  const MatrixView sum = adapter.gradient_sum();
  // Backward order: the head, the layers from the last, the embeddings. ForEach visits a layer in
  // forward order, so the last one found is the first that Backward reached.
  std::string bad;
  if (adapter.head() != nullptr && !IsFinite(backend, adapter.head()->gradient, sum)) {
    return adapter.head()->name;
  }
  for (auto layer = adapter.layers().rbegin(); layer != adapter.layers().rend(); ++layer) {
    // Within a layer the last linear comes first.
    layer->ForEach([&](const LoraLinear& lora) {
      if (lora.rank == 0) return;
      for (const auto& [name, m] : {std::pair("lora_A", lora.da), std::pair("lora_B", lora.db),
                                    std::pair("lora_magnitude_vector", lora.d_magnitude)}) {
        if (m.empty()) continue;
        if (!IsFinite(backend, m, sum)) bad = fmt::format("{}.{}", lora.path, name);
      }
    });
    if (!bad.empty()) return bad;
  }
  if (adapter.embedding() != nullptr && !IsFinite(backend, adapter.embedding()->gradient, sum)) {
    return adapter.embedding()->name;
  }
  return bad;
}

}  // namespace qlora
