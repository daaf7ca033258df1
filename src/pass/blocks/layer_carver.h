// Carves the buffers of one layer of a pass.
#ifndef QLORA_PASS_BLOCKS_LAYER_CARVER_H_
#define QLORA_PASS_BLOCKS_LAYER_CARVER_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "backend/backend.h"
#include "base/arena.h"
#include "config/config.h"

namespace qlora {

// The order of the calls is the order in memory, the same for planning and for the pass itself.
// Letters as in ops.h.
class LayerCarver {
 public:
  // Everything must outlive this.
  LayerCarver(Carver& carver, const DecoderConfig& decoder, const Precision& precision,
              std::int64_t l, std::int64_t n, bool with_gradients, std::int64_t m = 0)
      : config(decoder),
        sizes(decoder.layer(l)),
        layer(l),
        rows(n),
        unfolded(m),
        training(with_gradients),
        carver_(carver),
        precision_(precision) {}

  MatrixView Act(std::int64_t count, std::int64_t cols) {
    return carver_.Matrix(precision_.activation, count, cols);
  }
  MatrixView Wide(std::int64_t count, std::int64_t cols) {
    return carver_.Matrix(precision_.wide, count, cols);
  }
  IndexSpan Indices(std::int64_t count) {
    const MatrixView m = carver_.Matrix(DType::kI32, 1, count);
    return {static_cast<std::int32_t*>(m.data), count};
  }
  // (slots * (taps - 1), channels) act: the last inputs of a convolution in each slot of a pool;
  // empty with one tap.
  MatrixView Windows(std::int64_t slots, std::int64_t channels) {
    return config.conv_taps > 1 ? Act(slots * (config.conv_taps - 1), channels) : MatrixView{};
  }
  // (count, cols) act: the gradient of what the last linear of a block reads. One block at a time
  // has it, so that a second call gives the memory of the first, behind which nothing may lie yet.
  MatrixView LastInputGradient(std::int64_t count, std::int64_t cols);

  const DecoderConfig& config;
  const LayerConfig sizes;
  const std::int64_t layer;
  const std::int64_t rows;      // N of a pass, or the positions of a slot
  const std::int64_t unfolded;  // M: rows of all sequences with their prefixes; 0: none has one
  const bool training;          // with the buffers of the backward pass

 private:
  Carver& carver_;
  const Precision& precision_;
  // Where LastInputGradient begins, and where it ended last.
  std::optional<Carver> gradient_;
  std::size_t gradient_end_ = 0;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_LAYER_CARVER_H_
