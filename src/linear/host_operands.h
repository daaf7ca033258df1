// Matrices of the caller, in host memory, as a backend reads and writes them.
#ifndef QLORA_LINEAR_HOST_OPERANDS_H_
#define QLORA_LINEAR_HOST_OPERANDS_H_

#include <vector>

#include "base/arena.h"
#include "base/memory.h"
#include "qlora/tensor.h"

namespace qlora {

// The operands of one pass: in place where the backend computes in host memory, otherwise copies.
class HostOperands {
 public:
  explicit HostOperands(Memory& memory) : memory_(memory) {}

  ConstMatrixView Read(const ConstMatrixView& host);
  // Write: an operand that the pass overwrites; Update: one that it reads and writes. Finish copies
  // both to `host`.
  MatrixView Write(const MatrixView& host) { return Borrow(host, false); }
  MatrixView Update(const MatrixView& host) { return Borrow(host, true); }
  void Finish();

 private:
  struct Copy {
    MatrixView host;
    MatrixView copy;
  };

  bool in_place() const { return IsHost(memory_); }
  // A contiguous matrix of the shape of `host`.
  MatrixView Allocate(const ConstMatrixView& host);
  void Upload(const ConstMatrixView& host, const MatrixView& copy);
  MatrixView Borrow(const MatrixView& host, bool read);

  Memory& memory_;
  std::vector<Arena> arenas_;
  std::vector<Copy> written_;
};

}  // namespace qlora

#endif  // QLORA_LINEAR_HOST_OPERANDS_H_
