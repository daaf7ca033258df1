#include "export/gguf/gguf_plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "gguf/gguf_writer.h"
#include "io/float_encoding.h"

namespace qlora {
namespace {

void WriteStored(const GgufTensor& tensor, TensorWriter& writer) {
  for (const std::span<const std::byte> part : tensor.stored) {
    constexpr std::size_t kPiece = std::size_t{1} << 22;
    for (std::size_t begin = 0; begin < part.size(); begin += kPiece) {
      writer.Write(part.subspan(begin, std::min(kPiece, part.size() - begin)));
    }
  }
}

// Encodes, writes and compares the pieces of one tensor.
class TensorJob {
 public:
  TensorJob(Context& context, const GgufTensor& tensor)
      : context_(context),
        tensor_(tensor),
        cols_(tensor.info.shape.back()),
        rows_(tensor.info.elements() / cols_),
        // Rows of one matrix of a stack: importance is given for each.
        matrix_rows_(tensor.info.shape.size() > 1 ? tensor.info.shape.rbegin()[1] : 1),
        kept_{.tensor = tensor.info.name} {}

  KeptChange Run(TensorWriter& writer) {
    const std::int64_t piece = std::max<std::int64_t>(1, kPieceValues / cols_);
    for (std::int64_t first = 0; first < rows_; first += piece) {
      const std::int64_t count = std::min(piece, rows_ - first);
      values_.resize(count * cols_);
      tensor_.rows(first, count, values_.data());
      Encode(first, count);
      writer.Write(bytes_);
      if (Compares()) CompareWithUnchanged(first, count);
    }
    return std::move(kept_);
  }

  // The 11 bits of float16 keep changes that training makes; the 8 of bfloat16 lose those of less
  // than 0.2 % of a weight.
  bool Compares() const {
    const TensorType type = tensor_.info.dtype;
    return tensor_.unchanged && (type.is_blocks() || type == DType::kBF16);
  }

 private:
  std::span<const float> Row(std::int64_t r) const {
    return std::span(values_).subspan(r * cols_, cols_);
  }
  std::span<std::byte> EncodedRow(std::int64_t r) {
    const std::size_t size = BytesOf(tensor_.info.dtype, cols_);
    return std::span(bytes_).subspan(r * size, size);
  }

  void Encode(std::int64_t first, std::int64_t count) {
    const TensorType type = tensor_.info.dtype;
    bytes_.resize(BytesOf(type, values_.size()));
    std::vector<std::int64_t> bad(count);
    context_.ParallelFor(count, [&](std::int64_t r, int) {
      const float* importance = tensor_.importance.empty() ? nullptr
                                                           : tensor_.importance.data() +
                                                                 (first + r) / matrix_rows_ * cols_;
      bad[r] = EncodeFloats(type, Row(r), EncodedRow(r), importance);
    });
    for (std::int64_t r = 0; r < count; ++r) {
      if (bad[r] < 0) continue;
      ThrowInvalidInput("tensor '{}': value {} at row {} does not fit into {}; use f32 or bf16",
                        tensor_.info.name, Row(r)[bad[r]], first + r, NameOf(type));
    }
  }

  void CompareWithUnchanged(std::int64_t first, std::int64_t count) {
    std::vector<float> unchanged(values_.size());
    tensor_.unchanged(first, count, unchanged.data());
    // A sum for each row, in a fixed order: the same bits on any number of threads.
    std::vector<std::pair<double, double>> sums(count);
    context_.ParallelFor(count, [&](std::int64_t r, int) {
      std::vector<float> stored(cols_);
      DecodeFloats(tensor_.info.dtype, EncodedRow(r), stored);
      const float* before = unchanged.data() + r * cols_;
      auto& [wanted, achieved] = sums[r];
      for (std::int64_t i = 0; i < cols_; ++i) {
        const double change = double{Row(r)[i]} - double{before[i]};
        wanted += change * change;
        achieved += (double{stored[i]} - double{before[i]}) * change;
      }
    });
    for (const auto& [wanted, achieved] : sums) {
      kept_.wanted += wanted;
      kept_.achieved += achieved;
    }
  }

  Context& context_;
  const GgufTensor& tensor_;
  std::int64_t cols_;
  std::int64_t rows_;
  std::int64_t matrix_rows_;
  KeptChange kept_;
  std::vector<float> values_;     // of a piece
  std::vector<std::byte> bytes_;  // of the same piece
};

}  // namespace

void MoveColumns(const std::vector<std::int64_t>& order, std::int64_t count, float* rows) {
  std::vector<float> row(order.size());
  for (std::int64_t r = 0; r < count; ++r, rows += order.size()) {
    for (std::size_t i = 0; i < order.size(); ++i) row[i] = rows[order[i]];
    std::copy(row.begin(), row.end(), rows);
  }
}

GgufRows StackedRows(std::int64_t rows, std::int64_t cols, std::vector<GgufRows> producers) {
  return [=, producers = std::move(producers)](std::int64_t first, std::int64_t count, float* out) {
    for (std::int64_t row = first; row < first + count;) {
      const std::int64_t begin = row % rows;
      const std::int64_t part = std::min(rows - begin, first + count - row);
      // (E, rows, cols) as rows:  | expert 0: 0 ... rows - 1 | expert 1: rows ... | ...
      // A piece may begin in one expert and end in the next.
      producers[row / rows](begin, part, out + (row - first) * cols);
      row += part;
    }
  };
}

GgufTensor& GgufPlan::Matrix(const std::string& name, TensorType type, std::int64_t rows,
                             std::int64_t cols, GgufRows produce) {
  // A row is a whole number of blocks.
  if (cols % type.block_values() != 0) type = DType::kF16;
  return tensors_.emplace_back(GgufTensor{{name, type, {rows, cols}}, std::move(produce)});
}

GgufTensor& GgufPlan::Stack(const std::string& name, TensorType type, std::int64_t rows,
                            std::int64_t cols, std::vector<GgufRows> producers) {
  const auto experts = static_cast<std::int64_t>(producers.size());
  GgufTensor& tensor =
      Matrix(name, type, experts * rows, cols, StackedRows(rows, cols, std::move(producers)));
  if (experts > 1) tensor.info.shape = {experts, rows, cols};
  return tensor;
}

void GgufPlan::Copy(TensorInfo info, std::vector<std::span<const std::byte>> stored) {
  GgufTensor& tensor = tensors_.emplace_back();
  tensor.info = std::move(info);
  tensor.stored = std::move(stored);
}

void GgufPlan::Vector(const std::string& name, std::vector<float> values) {
  if (values.empty()) return;
  const std::int64_t size = std::ssize(values);
  // llama.cpp expects norms and biases in float32 for weights of every type.
  tensors_.push_back({{name, DType::kF32, {size}},
                      [values = std::move(values)](std::int64_t, std::int64_t, float* out) {
                        std::ranges::copy(values, out);
                      }});
}

void GgufPlan::Write(Context& context, const std::filesystem::path& path, OpenMode mode,
                     const GgufMetadata& metadata, const ProgressFn& progress,
                     const Check& check) const {
  std::vector<TensorInfo> infos;
  for (const GgufTensor& tensor : tensors_) infos.push_back(tensor.info);
  const std::unique_ptr<TensorWriter> writer = CreateGguf(path, metadata, infos, mode);
  std::vector<KeptChange> kept;
  std::int64_t done = 0;
  for (const GgufTensor& tensor : tensors_) {
    if (!tensor.stored.empty()) {
      WriteStored(tensor, *writer);
    } else {
      TensorJob job(context, tensor);
      KeptChange change = job.Run(*writer);
      if (job.Compares()) kept.push_back(std::move(change));
    }
    if (progress) progress(++done, static_cast<std::int64_t>(tensors_.size()));
  }
  if (check) check(kept);
  writer->Finish();
}

}  // namespace qlora
