// Linear, its gradient and the gradient of dense weights, as products of the GPU's library.
//
// Products read operands of the compute type with aligned rows. Other operands are first converted,
// part by part, into the workspace: 4-bit weights always, activations that are float32 where
// products are bfloat16, and the small matrices of adapters.
//
// Terms that are added to a product with the base become part of it, so that a result is written
// and rounded once:
//   forward   [x | s u | 1] [W | B | b]^T     x is read once for the u of a group
//   backward  [dy | du] [W ; A]               for the linears of a group together
// The residual is added by the product itself (LinearOutput::base).
//
// The decoder lays out x, and gate and up with their gradients, with columns to spare behind their
// rows (Backend::TailColumns, 0 on the CPU). Products append u, ones and du there without a copy of
// x or dy (x_tail, dy_tail). Outputs of a group that are beside each other in one matrix (q, k and
// v; gate and up) are one product. The gradients of q, k and v are copied, because cuDNN's room
// grows with the stride of their rows, and so is the float32 gradient of the residual stream, which
// is rounded anyway.
#ifndef QLORA_BACKEND_CUDA_LINEAR_H_
#define QLORA_BACKEND_CUDA_LINEAR_H_

#include "backend/cuda/blas.h"
#include "backend/cuda/workspace.h"
#include "backend/ops.h"

namespace qlora::cuda {

// The parts of a GPU that products use.
struct Machine {
  Stream stream;
  Blas& blas;
  Workspace& workspace;
  int multiprocessors = 1;
  bool deterministic = false;

  void Multiply(Gemm gemm) const {
    gemm.deterministic = deterministic;
    blas.Run(stream, gemm);
  }
  DType compute() const { return workspace.compute(); }
  const Workspace::Pieces& pieces() const { return workspace.pieces(); }
};

void LinearForward(const Machine& machine, const ops::Linear& op);
void LinearBackward(const Machine& machine, const ops::LinearBackward& op);
void WeightGradient(const Machine& machine, const ops::WeightGradient& op);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_LINEAR_H_
