#include "linear/host_operands.h"

namespace qlora {

// Every operand has an arena, freed with this object. A copy is contiguous, whatever the stride of
// the caller's matrix is.
MatrixView HostOperands::Allocate(const ConstMatrixView& host) {
  Arena& arena = arenas_.emplace_back(BytesOf(host.dtype, host.rows * host.cols), memory_);
  return {arena.data(), host.dtype, host.rows, host.cols, host.cols};
}

// Row by row, because the caller's rows may be apart.
void HostOperands::Upload(const ConstMatrixView& host, const MatrixView& copy) {
  for (std::int64_t r = 0; r < host.rows; ++r) {
    memory_.Upload(Rows(host, r, 1).data, Rows(copy, r, 1).data, BytesOf(host.dtype, host.cols));
  }
}

ConstMatrixView HostOperands::Read(const ConstMatrixView& host) {
  if (in_place() || host.empty()) return host;
  const MatrixView copy = Allocate(host);
  Upload(host, copy);
  return copy;
}

// An operand that is only written is not uploaded: the pass overwrites every value.
MatrixView HostOperands::Borrow(const MatrixView& host, bool read) {
  if (in_place() || host.empty()) return host;
  const MatrixView copy = Allocate(host);
  if (read) Upload(host, copy);
  written_.push_back({host, copy});
  return copy;
}

// Download waits for the pass. After an error no Finish comes, and the caller's matrices keep their
// values.
void HostOperands::Finish() {
  for (const auto& [host, copy] : written_) {
    for (std::int64_t r = 0; r < host.rows; ++r) {
      memory_.Download(Rows(copy, r, 1).data, Rows(host, r, 1).data,
                       BytesOf(host.dtype, host.cols));
    }
  }
  written_.clear();
}

}  // namespace qlora
