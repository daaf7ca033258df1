// The tensors of a GGUF file that is to be written: declared first, since the head of the file
// states all of them, then produced, encoded and written in pieces of some rows, so that memory
// never holds more than one piece.
#ifndef QLORA_EXPORT_GGUF_GGUF_PLAN_H_
#define QLORA_EXPORT_GGUF_GGUF_PLAN_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "gguf/gguf.h"
#include "io/tensor_file.h"
#include "qlora/context.h"

namespace qlora {

// Writes rows [first, first + count) of a matrix to out (count, cols).
using GgufRows = std::function<void(std::int64_t first, std::int64_t count, float* out)>;

// A tensor that is declared now and produced when its turn comes.
struct GgufTensor {
  TensorInfo info;
  GgufRows rows;  // of all matrices of a stack, one after the other
  // The same rows before a change of which the file shall keep as much as it can: without the
  // adapter. Empty where nothing changed.
  GgufRows unchanged = {};
  // (matrices, cols), weights of the squared errors of blocks; empty: all 1.
  std::span<const float> importance = {};
  // The bytes of all rows, in pieces, where another file has them; `rows` is then not called.
  std::vector<std::span<const std::byte>> stored = {};
};

// What is left of a change of a tensor after its rounding, as sums over its values.
struct KeptChange {
  std::string tensor;
  double wanted = 0;    // <change, change>
  double achieved = 0;  // <change in the file, change>
  // The length of the change in the file along the wanted one: 1 when it is all there, 0 when
  // rounding has undone it. Rounding errors that know nothing of the change do not count.
  double share() const { return wanted == 0 ? 1 : achieved / wanted; }
};

class GgufPlan {
 public:
  // Rows that the blocks of the type do not divide become F16. Returns the tensor until the next
  // one is added.
  GgufTensor& Matrix(const std::string& name, TensorType type, std::int64_t rows, std::int64_t cols,
                     GgufRows produce);
  // One tensor (E, rows, cols) of the matrices of E experts. A single matrix keeps two dimensions.
  GgufTensor& Stack(const std::string& name, TensorType type, std::int64_t rows, std::int64_t cols,
                    std::vector<GgufRows> producers);
  // A tensor that another file has in this type. It may be of a type that is never encoded.
  void Copy(TensorInfo info, std::vector<std::span<const std::byte>> stored);
  // Float32; nothing where there are no values, as of a norm that a family lacks.
  void Vector(const std::string& name, std::vector<float> values);

  // Writes the file; the threads of the context do not change its bytes. check: is told what is
  // left of every rounded tensor with `unchanged`, before the file takes its name: an error that
  // it throws leaves none. Errors: InvalidInput for values that a type cannot hold; those of
  // CreateGguf.
  using Check = std::function<void(const std::vector<KeptChange>&)>;
  void Write(Context& context, const std::filesystem::path& path, OpenMode mode,
             const GgufMetadata& metadata, const ProgressFn& progress,
             const Check& check = {}) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }

 private:
  std::vector<GgufTensor> tensors_;
};

// Puts the columns of `count` rows into another order: column order[i] becomes column i.
void MoveColumns(const std::vector<std::int64_t>& order, std::int64_t count, float* rows);

// Rows of E matrices of `rows` rows as rows of one matrix.
GgufRows StackedRows(std::int64_t rows, std::int64_t cols, std::vector<GgufRows> producers);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_PLAN_H_
