// A backend: runs the ops of ops.h on one device, owns the memory that they read and write, and
// decides what depends on the device.
//
// Memory. Operands are in the memory of the backend (base/memory.h: allocate, upload, download,
// zero). Nothing outside src/backend reads or writes it except through ops and transfers, so a
// device may have a memory of its own. tests/backend/guarded_backend.h proves this: whole jobs run
// on pages that fault when the host touches them, and end in the bits of the CPU backend. Sums of
// losses stay in that memory until a micro-batch has run.
//
// Order. Ops run in the order of the calls, and may run after them: a Download waits for all ops.
//
// Weights. Backend::Adopt takes a frozen weight: the CPU reads mapped files in place, and copies or
// prepacks weights to generate; a device of its own memory has a copy. Backend::Quantize reads a
// file in host memory, outside the order of ops, and is checked as ops are.
//
// A BackendFactory (backend_factory.h) makes the backends of a job, one for each operand type. A
// backend around another one derives from backend_decorator.h.
#ifndef QLORA_BACKEND_BACKEND_H_
#define QLORA_BACKEND_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/ops.h"
#include "base/arena.h"
#include "base/memory.h"
#include "qlora/context.h"
#include "qlora/error.h"

namespace qlora {

// The largest operands that ops will be called with, from which a backend plans its workspace.
struct BackendLimits {
  std::int64_t rows = 0;        // N
  std::int64_t features = 0;    // I or O of any linear of the blocks, summed over a group
  std::int64_t vocab_rows = 0;  // rows of one call of the output head
  std::int64_t vocab = 0;       // V
  std::int64_t lora_rank = 0;   // R, summed over a group
  bool any_order = false;       // linears with any SumOrder, not kFastest alone
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // G
  std::int64_t head_dim = 0;    // K
  // Backward passes; 0: none.
  std::int64_t gradient_rows = 0;    // N
  std::int64_t gradient_length = 0;  // tokens of the longest sequence
  // Of layers with the gated delta rule, the longest of whose backward passes is gradient_length.
  DeltaRuleShape delta_rule = {};
};

// What a backend computes products in.
struct Compute {
  // Implicit: a type of operands is enough.
  Compute(DType type, FrozenProducts products = FrozenProducts::kFloat)
      : operands(type), frozen(products) {}
  Compute(const Precision& precision) : Compute(precision.activation, precision.frozen) {}

  DType operands;  // kF32 or kBF16
  FrozenProducts frozen;
};

// How a frozen weight will be read, which decides the form that a backend adopts it in.
enum class WeightUse : std::uint8_t {
  kTraining,    // passes over many rows: as stored; the CPU reads mapped files in place
  kGeneration,  // passes over few rows: copied, in the order that few rows are multiplied in
};

// Everything virtual is pure, so that a backend that wraps another one (backend_decorator.h) cannot
// miss a part of it.
class Backend {
 public:
  virtual ~Backend() = default;

  // Checks the operands and runs the op. Ops run in the order of the calls. A call may return
  // before the op has run, but not before the host memory that the op refers to (views, spans) has
  // been read; memory().Download waits for all ops. No op allocates memory of the backend: call
  // Reserve first. Results do not depend on the number of threads.
  void Run(const Op& op) {
    CheckOp(op);
    DoRun(op);
  }

  // The memory of all operands: the memory of the device, which its backends share. It lives as
  // long as any of them. Nothing outside src/backend reads or writes it but through ops and
  // transfers.
  virtual Memory& memory() const = 0;

  // Bytes of workspace that Reserve will take for these limits.
  virtual std::size_t WorkspaceBytes(const BackendLimits& limits) const = 0;
  // Makes room for ops within these limits and within the limits of earlier calls.
  virtual void Reserve(const BackendLimits& limits) = 0;

  // A part of a frozen weight as ops read it: the host memory itself, which must then outlive the
  // weight, or a copy in memory that is carved. While `carver` only counts, nothing is copied.
  virtual const void* Adopt(const void* host, std::size_t bytes, WeightUse use, Carver& carver) = 0;
  // Quantizes a dense weight (O, I) of host memory into `storage` (1, StorageBytes;
  // kU8). Checks both, and waits for the end. This is not an op: the host reads files, one tensor
  // at a time, and the returned view holds values that the backend has computed. Errors:
  // InvalidInput that names options.name for a NaN or Inf.
  QuantizedView Quantize(const ConstMatrixView& host, const QuantizeOptions& options,
                         const MatrixView& storage);
  // What is made of a quantized weight once, so that Linear reads it faster, above all when x has
  // few rows: of a 4-bit weight the values and scales in another order, of blocks what scales the
  // codes of their rows. 0: this backend reads the weight as it is.
  virtual std::size_t PrepackedBytes(const WeightView& weight) const = 0;
  // out: room for PrepackedBytes(weight) bytes, which is not 0, aligned to 64.
  virtual void Prepack(const WeightView& weight, std::byte* out) = 0;

 private:
  virtual void DoRun(const Op& op) = 0;
  virtual QuantizedView DoQuantize(const ConstMatrixView& host, const QuantizeOptions& options,
                                   const MatrixView& storage) = 0;
};

// Prepack of a backend whose PrepackedBytes is 0. Errors: Runtime, a bug of the caller.
[[noreturn]] void RefuseToPrepack();

// The bytes of a contiguous view.
inline std::span<std::byte> BytesIn(const MatrixView& m) {
  return {static_cast<std::byte*>(m.data), BytesOf(m.dtype, m.rows * m.cols)};
}

// Indices of host memory before they are uploaded: ops rely on values in [0, count).
// Errors: Runtime, a bug of the caller.
void CheckIndices(const char* what, std::span<const std::int32_t> indices, std::int64_t count);

// Runs SumOfSquares and waits for the sum. sum: (1, 1) float64, where the backend leaves it.
double ReadSumOfSquares(Backend& backend, const ConstMatrixView& x, const MatrixView& sum);

// The backend of the CPU; jobs get theirs from backend_factory.h. Errors: InvalidInput for a type
// without a backend.
std::unique_ptr<Backend> MakeCpuBackend(Context& context, const Compute& compute);

// The definition of every op as plain scalar loops; operands may be kF32, kF64 or kC128 throughout.
// Products in 8 bits are defined for kF32.
std::unique_ptr<Backend> MakeReferenceBackend(FrozenProducts frozen = FrozenProducts::kFloat);

}  // namespace qlora

#endif  // QLORA_BACKEND_BACKEND_H_
