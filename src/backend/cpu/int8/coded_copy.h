// A 4-bit weight prepacked for products in 8 bits: all that its codes are made of, in the order in
// which few rows of activations read it.
//
//   scales of all rows | row 0: factors of its chunks, values | row 1: ... | ...
#ifndef QLORA_BACKEND_CPU_INT8_CODED_COPY_H_
#define QLORA_BACKEND_CPU_INT8_CODED_COPY_H_

#include <cstddef>
#include <cstdint>

#include "backend/cpu/int8/coded_chunks.h"
#include "backend/int8/codes.h"
#include "qlora/context.h"
#include "qlora/nf4.h"

namespace qlora::cpu {

class CodedCopy {
 public:
  // data: CodedCopyBytes(q) bytes.
  CodedCopy(const QuantizedView& q, const std::byte* data) : q_(q), data_(data) {}

  const int8::RowScale* scales() const { return reinterpret_cast<const int8::RowScale*>(data_); }
  // Whole rows, without an offset.
  PackedChunks Rows(std::int64_t row, std::int64_t rows) const;

 private:
  const QuantizedView& q_;
  const std::byte* data_;
};

// 0: a weight whose codes are not made of whole chunks with a scale each.
std::size_t CodedCopyBytes(const QuantizedView& q);
// out: aligned to 64 bytes.
void MakeCodedCopy(Context& context, const QuantizedView& q, std::byte* out);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_INT8_CODED_COPY_H_
