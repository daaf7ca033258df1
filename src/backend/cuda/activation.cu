// Gated activations.
#include "backend/cuda/elements.h"
#include "backend/cuda/kernels.h"

namespace qlora::cuda {
namespace {

struct Activated {
  float value, slope;
};

// reference_elementwise.h defines the formulas.
GPU_INLINE Activated Silu(float x) {
  // Where expf overflows (x < -88), sigma is 1 / infinity = 0: the limit, without a branch.
  const float sigma = 1.0f / (1.0f + expf(-x));
  return {x * sigma, sigma * (1.0f + x * (1.0f - sigma))};
}
// y = x (1 + t) / 2,  t = tanh z,  z = sqrt(2 / pi) (x + 0.044715 x^3)
// y' = (1 + t) / 2 + x (1 - t^2) z' / 2
GPU_INLINE Activated GeluTanh(float x) {
  constexpr float kRoot = 0.79788456080286536f;  // sqrt(2 / pi)
  constexpr float kCubic = 0.044715f;
  const float t = tanhf(kRoot * (x + kCubic * x * x * x));
  const float z_slope = kRoot * (1.0f + 3.0f * kCubic * x * x);
  return {0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * z_slope};
}
GPU_INLINE Activated Activate(Activation activation, float x) {
  return activation == Activation::kSilu ? Silu(x) : GeluTanh(x);
}

__global__ void __launch_bounds__(kThreads)
    GatedActivationKernel(ops::GatedActivation op, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  float gate[kChunk], up[kChunk];
  Load(op.gate, c, gate);
  Load(op.up, c, up);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) gate[i] = Activate(op.activation, gate[i]).value * up[i];
  StoreTo(op.y, c, gate);
}

__global__ void __launch_bounds__(kThreads)
    GatedActivationBackwardKernel(ops::GatedActivationBackward op, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  float dy[kChunk], gate[kChunk], up[kChunk];
  Load(op.dy, c, dy);
  Load(op.gate, c, gate);
  Load(op.up, c, up);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    // y = act(gate) up. act is computed again: activations of the forward pass are not kept.
    const Activated act = Activate(op.activation, gate[i]);
    gate[i] = dy[i] * up[i] * act.slope;
    up[i] = dy[i] * act.value;
  }
  StoreTo(op.d_gate, c, gate);
  StoreTo(op.d_up, c, up);
}

}  // namespace

void Queue(Stream stream, const ops::GatedActivation& op) {
  const Tiling tiling = TilingOf(op.y.rows, op.y.cols);
  Launch(op.kName, GatedActivationKernel, tiling.blocks(), kThreads, 0, stream, op, tiling);
}
void Queue(Stream stream, const ops::GatedActivationBackward& op) {
  const Tiling tiling = TilingOf(op.dy.rows, op.dy.cols);
  Launch(op.kName, GatedActivationBackwardKernel, tiling.blocks(), kThreads, 0, stream, op, tiling);
}

}  // namespace qlora::cuda
