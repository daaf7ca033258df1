// Linear, its gradient and the gradient of dense weights, as products of the GPU's library.
//
// Products read operands of the compute type with aligned rows. Other operands are first
// converted, part by part, into the workspace: 4-bit weights always, activations that are float32
// where products are bfloat16, and the small matrices of adapters. Terms that are added to a
// product with the base become part of it, by copies with more columns or rows, so that a result is
// written and rounded once.
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
