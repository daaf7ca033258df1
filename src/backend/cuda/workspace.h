// The room that ops work in: reserved before they run, sized by the limits of the model, and used
// by one op after the other.
#ifndef QLORA_BACKEND_CUDA_WORKSPACE_H_
#define QLORA_BACKEND_CUDA_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "base/arena.h"

namespace qlora::cuda {

// Elements of each piece. The first four pieces have the compute type. Ops cut their rows and
// columns into parts that fit, so most pieces are bounded whatever the model.
struct WorkspaceSize {
  std::int64_t weight = 0;     // a part of the weights of a group
  std::int64_t inputs = 0;     // rows of x
  std::int64_t gradients = 0;  // rows of dy
  std::int64_t adapter = 0;    // the A of a group, and as much for the B of a linear
  std::int64_t sums = 0;       // float32: a part of dx where adapters have dropout, twice
  std::int64_t low_rank = 0;   // float32 and compute type: (N, R) of u and du
  std::int64_t attention = 0;  // float32: parts of decoding, or a value of each row and head
  std::int64_t room = 0;       // bytes of all pieces together, at least
};

// The sizes that pieces are cut to, unless fewer elements are enough for the whole of an op. The
// defaults are enough for products at full speed: gate and up of 14336 x 4096, 4096 rows of their
// gradients or 8192 of the input of down, a chunk of the gradients of logits, and sums of 2048 x
// 2048, which stay in the cache of a data-centre GPU.
struct WorkspaceBudget {
  std::int64_t weight = std::int64_t{128} << 20;
  std::int64_t rows = std::int64_t{128} << 20;
  std::int64_t sums = std::int64_t{4} << 20;
  std::int64_t least_part = 64;  // rows or columns that a part has at least
  bool has_library = true;       // with LibraryRoom, for products in bfloat16
};

// For cards that are too small for the defaults: parts that still keep a small GPU busy, of about
// 1000 rows or columns for 14336 features.
inline constexpr WorkspaceBudget kLeanBudget = {.weight = std::int64_t{32} << 20,
                                                .rows = std::int64_t{16} << 20,
                                                .sums = std::int64_t{1} << 20,
                                                .has_library = false};

WorkspaceSize SizeOf(const BackendLimits& limits, DType compute, const WorkspaceBudget& budget);
WorkspaceSize Max(const WorkspaceSize& a, const WorkspaceSize& b);
// compute: the operand type of products.
std::size_t WorkspaceBytes(const BackendLimits& limits, DType compute,
                           const WorkspaceBudget& budget);

class Workspace {
 public:
  Workspace(Memory& memory, DType compute) : memory_(memory), compute_(compute) {}

  // Reserves at least the room that the limits need; limits of earlier calls stay covered.
  void Reserve(const BackendLimits& limits, const WorkspaceBudget& budget);

  // Each piece as one row of its elements.
  struct Pieces {
    MatrixView weight, inputs, gradients, a, b, sums, more_sums, low_rank, wide_low_rank, attention;
  };
  const Pieces& pieces() const { return pieces_; }
  // All pieces, for an op that uses none of them.
  std::span<std::byte> room() { return {arena_.data(), arena_.bytes()}; }
  DType compute() const { return compute_; }

 private:
  Memory& memory_;
  DType compute_;
  WorkspaceSize size_;
  Arena arena_;
  Pieces pieces_;
};

inline std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows of matrices that products read begin at multiples of this many elements: of 16 bytes for
// narrow matrices, of 128 bytes, a line of the cache, for wide ones, which then take at most 12 %
// more.
inline constexpr std::int64_t kRowStep = 8;
inline constexpr std::int64_t kWideRowStep = 64;
inline constexpr std::int64_t kWideCols = 512;
inline std::int64_t RowStepOf(std::int64_t cols) {
  return cols < kWideCols ? kRowStep : kWideRowStep;
}
inline std::int64_t PaddedCols(std::int64_t cols) {
  return CeilDiv(cols, RowStepOf(cols)) * RowStepOf(cols);
}

// A (rows, cols) matrix at the beginning of a piece, with aligned rows. `used` elements are left
// out. Errors: Runtime where the piece is too small, that is, where Reserve was not called for the
// op.
MatrixView PlaceIn(const MatrixView& piece, std::int64_t rows, std::int64_t cols,
                   std::int64_t used = 0);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_WORKSPACE_H_
