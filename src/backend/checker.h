// Checks of the operands of a backend's ops, with messages that name op and operand.
#ifndef QLORA_BACKEND_CHECKER_H_
#define QLORA_BACKEND_CHECKER_H_

#include <cstddef>
#include <cstdint>

#include "backend/ops.h"
#include "base/check.h"
#include "base/matrix.h"

namespace qlora {

// The bytes [begin, end) between the first and the last element of a matrix.
struct Extent {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};
inline Extent ExtentOf(const ConstMatrixView& m) {
  const auto begin = reinterpret_cast<std::uintptr_t>(m.data);
  return {begin, begin + BytesOf(m.dtype, (m.rows - 1) * m.stride + m.cols)};
}

// True when two matrices share memory. Matrices that are interleaved column ranges of one larger
// matrix (q, k and v of a fused projection) do not.
inline bool Overlap(const ConstMatrixView& a, const ConstMatrixView& b) {
  if (a.empty() || b.empty()) return false;
  const Extent x = ExtentOf(a);
  const Extent y = ExtentOf(b);
  if (x.end <= y.begin || y.end <= x.begin) return false;
  const std::size_t pitch = BytesOf(a.dtype, a.stride);
  if (pitch != BytesOf(b.dtype, b.stride)) return true;
  const std::size_t shift = y.begin >= x.begin ? (y.begin - x.begin) % pitch
                                               : pitch - 1 - (x.begin - y.begin - 1) % pitch;
  return shift < BytesOf(a.dtype, a.cols) || shift + BytesOf(b.dtype, b.cols) > pitch;
}

inline bool Same(const ConstMatrixView& a, const ConstMatrixView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.stride == b.stride;
}

// The checks of one call of one op. Nothing is formatted or allocated unless a check fails.
class Checker {
 public:
  explicit Checker(const char* op) : op_(op) {}

  // Operands from here on belong to linear number `index` of the group.
  void SetLinear(std::size_t index) { linear_ = static_cast<int>(index); }

  // An operand of either element type of the model.
  void Activation(const char* name, const ConstMatrixView& m, std::int64_t rows,
                  std::int64_t cols) {
    Matrix(name, m, rows, cols);
    Element(name, m.empty(), m.dtype, m.dtype == DType::kBF16 ? DType::kF32 : m.dtype, "F32, BF16");
  }

  // An operand of the wide type.
  void Wide(const char* name, const ConstMatrixView& m, std::int64_t rows, std::int64_t cols) {
    Matrix(name, m, rows, cols);
    Element(name, m.empty(), m.dtype, m.dtype, "F32");
  }

  // A frozen weight or table: float32, float16, bfloat16 or the wide type.
  void Frozen(const char* name, const ConstMatrixView& m, std::int64_t rows, std::int64_t cols) {
    Matrix(name, m, rows, cols);
    if (IsFloat(m.dtype)) return;
    Element(name, m.empty(), m.dtype, m.dtype, "F32, F16, BF16");
  }

  // Sums in float64.
  void Float64(const char* name, const ConstMatrixView& m, std::int64_t rows,
               std::int64_t cols) const {
    Matrix(name, m, rows, cols);
    if (!m.empty() && m.dtype != DType::kF64) Fail(name, "F64", NameOf(m.dtype));
  }

  // An operand of bytes.
  void Bytes(const char* name, const ConstMatrixView& m, std::int64_t rows,
             std::int64_t cols) const {
    Matrix(name, m, rows, cols);
    if (m.dtype != DType::kU8) Fail(name, "U8", NameOf(m.dtype));
  }

  void Equal(const char* what, std::int64_t expected, std::int64_t found) const {
    if (expected != found) Fail(what, fmt::format("{}", expected), fmt::format("{}", found));
  }
  void AtLeast(const char* what, std::int64_t least, std::int64_t found) const {
    if (found < least) Fail(what, fmt::format("at least {}", least), fmt::format("{}", found));
  }

  void Absent(const char* name, const ConstMatrixView& m) const {
    if (!m.empty())
      Fail(name, "nothing without an adapter", fmt::format("({}, {})", m.rows, m.cols));
  }

  void Apart(const char* out_name, const ConstMatrixView& out, const char* name,
             const ConstMatrixView& m) const {
    if (Overlap(out, m)) Fail(out_name, fmt::format("no overlap with {}", name), "overlap");
  }
  // The output may be the operand itself, but must not overlap it in any other way.
  void ApartOrSame(const char* out_name, const ConstMatrixView& out, const char* name,
                   const ConstMatrixView& m) const {
    if (!Same(out, m)) Apart(out_name, out, name, m);
  }

  [[noreturn]] void Fail(const char* name, const std::string& expected,
                         const std::string& found) const {
    const std::string where = linear_ < 0 ? "" : fmt::format(" of linear {}", linear_);
    ThrowRuntime("{}: {}{}: expected {}, found {} (a bug of the caller)", op_, name, where,
                 expected, found);
  }

 private:
  void Matrix(const char* name, const ConstMatrixView& m, std::int64_t rows,
              std::int64_t cols) const {
    if (m.rows != rows || m.cols != cols) {
      Fail(name, fmt::format("shape ({}, {})", rows, cols),
           fmt::format("({}, {})", m.rows, m.cols));
    }
    if (m.empty()) return;
    if (m.data == nullptr) Fail(name, "storage", "a null pointer");
    if (m.stride < m.cols)
      Fail(name, fmt::format("stride >= {}", m.cols), fmt::format("{}", m.stride));
  }

  // All operands of a call have one wide type: F32 (with BF16 activations or not), F64 or C128.
  void Element(const char* name, bool empty, DType dtype, DType wide, const char* allowed) {
    if (empty) return;
    const bool known = wide == DType::kF32 || wide == DType::kF64 || wide == DType::kC128;
    if (!known) Fail(name, fmt::format("type {}, F64 or C128", allowed), NameOf(dtype));
    if (!has_wide_) wide_ = wide;
    has_wide_ = true;
    if (wide != wide_) {
      Fail(name, fmt::format("a type that goes with the {} of earlier operands", NameOf(wide_)),
           NameOf(dtype));
    }
  }

  const char* op_;
  int linear_ = -1;
  bool has_wide_ = false;
  DType wide_ = DType::kF32;
};

}  // namespace qlora

#endif  // QLORA_BACKEND_CHECKER_H_
