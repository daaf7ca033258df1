// Reads single weights of a checkpoint into memory that a carver hands out. tensor_list.h says
// which tensors a model has.
//
// The same calls run twice, in the same order: first with a carver that counts, which only looks at
// headers, then with memory. The second run therefore takes the memory that the first one counted.
#ifndef QLORA_MODEL_WEIGHT_READER_H_
#define QLORA_MODEL_WEIGHT_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint_tensors.h"
#include "model/weight_placement.h"
#include "model/weights.h"

namespace qlora {

// Errors of all: InvalidInput naming file and tensor: missing, of the wrong shape or type, NaN or
// Inf.
class WeightReader {
 public:
  WeightReader(Context& context, Backend& backend, const DecoderConfig& config,
               const LoadOptions& options, CheckpointTensors& tensors)
      : context_(context),
        backend_(backend),
        config_(config),
        options_(options),
        tensors_(tensors),
        reader_(tensors.reader()) {}

  std::vector<std::shared_ptr<const void>> TakeOwners() { return std::move(owners_); }

 protected:
  // Begins a run. read: false where it only counts.
  void Begin(Carver& carver, bool read);
  bool read() const { return place_->read(); }

  // ---- Matrices as the file stores them: dense, or in blocks.

  // (rows, D).
  WeightView Table(const std::string& name, std::int64_t rows, WeightUse use);
  WeightView Table(const TensorInfo& tensor, std::int64_t rows, WeightUse use);
  // A matrix (rows, cols) that is only read row by row, in place unless the file has it in 4 or 8
  // bits.
  WeightView RowsInFile(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols);
  // A head that is not tied.
  WeightView Head();

  // ---- Linears of the layers: as the checkpoint stores them, or quantized here from a dense
  // tensor of a checkpoint that is not quantized itself.

  // With its bias, which only some families have.
  FrozenLinear Linear(const std::string& path, const LinearShape& shape, bool bias);
  // Linears (O, I) that one tensor (E, O, I) holds. paths: of each.
  std::vector<FrozenLinear> Stack(const std::string& name, const std::vector<std::string>& paths,
                                  const LinearShape& shape);

  // ---- Values in the wide type.

  // A vector, plus `shift`, times `factor`.
  ConstMatrixView Wide(const std::string& name, std::int64_t size, double shift = 0,
                       double factor = 1);
  // The same of a small matrix that no product reads.
  ConstMatrixView Wide(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols, double shift,
                       double factor);
  // A vector of equal values.
  ConstMatrixView Constant(std::int64_t size, float value);
  // A vector of values that the host computed; empty in a run that only counts.
  ConstMatrixView Vector(std::int64_t size, const std::vector<float>& values);
  // The values of a small tensor. Errors: InvalidInput for NaN or Inf.
  std::vector<float> Values(const TensorInfo& tensor);
  [[noreturn]] void ThrowNotFinite(const TensorInfo& tensor, std::int64_t element) const;

  Context& context_;
  Backend& backend_;
  const DecoderConfig& config_;
  const LoadOptions& options_;
  CheckpointTensors& tensors_;
  const TensorReader& reader_;
  std::optional<WeightPlacement> place_;  // of the current run
  std::optional<QuantizationFields> stored_4bit_;
  std::set<std::string> block_formats_;  // of linears

 private:
  WeightView HostView(const TensorInfo& tensor, const void* data, std::int64_t rows,
                      std::int64_t cols) const;
  // Rows [first, first + count) of a matrix in host memory; null: of a plan.
  WeightView HostRows(const TensorInfo& tensor, const void* data, std::int64_t first,
                      std::int64_t count, std::int64_t cols) const;
  WeightView AsStored(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols,
                      WeightUse use);
  // Stored values are checked as they are loaded, so that a damaged file is not found as a bad
  // loss.
  void CheckFinite(const WeightView& weight, const TensorInfo& tensor);
  // As the file names it.
  const std::string& StoredName(const TensorInfo& tensor) const;
  WeightView Weight(const std::string& path, const LinearShape& shape);
  // A weight that the checkpoint holds in 4 bits.
  WeightView Stored(const std::string& name, const LinearShape& shape);
  QuantizedView Quantized(const TensorInfo& tensor, const ConstMatrixView& dense,
                          const QuantizeOptions& options, const MatrixView& storage);
  // One matrix of a tensor of several.
  QuantizedView QuantizedPart(const TensorInfo& tensor, ConstMatrixView part,
                              const MatrixView& storage);

  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace qlora

#endif  // QLORA_MODEL_WEIGHT_READER_H_
