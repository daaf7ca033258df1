#include "convert/gguf_adapter.h"

#include <algorithm>

#include "base/check.h"
#include "convert/gguf_metadata.h"
#include "gguf/gguf.h"
#include "io/float_encoding.h"
#include "model/gguf_names.h"

namespace qlora {
namespace {

const TensorInfo& Get(const GgufReader& reader, const std::string& name, std::int64_t rows,
                      std::int64_t cols) {
  const TensorInfo* tensor = reader.Find(name);
  if (tensor == nullptr) ThrowInvalidInput("GGUF tensor '{}' is missing", name);
  // Stacks of experts have three dimensions, so the product of all but the last is compared.
  if (tensor->elements() != rows * cols || tensor->shape.back() != cols) {
    ThrowInvalidInput("{}: tensor '{}' does not have the shape [{}, {}]", reader.FileOf(*tensor),
                      name, rows, cols);
  }
  return *tensor;
}

// Decodes to out (rows, cols) float32 in `memory`, from row `first` of the tensor on; row order[i]
// of out is row first + i (empty: the same order).
void Decode(const GgufReader& reader, const TensorInfo& tensor, std::int64_t first,
            const std::vector<std::int64_t>& order, float factor, Memory& memory,
            const MatrixView& out) {
  const std::span<const std::byte> bytes = reader.Bytes(tensor);
  const std::size_t row_bytes = BytesOf(tensor.dtype, out.cols);
  // Rows that change places are decoded together.
  const std::int64_t piece =
      order.empty() ? std::max<std::int64_t>(1, kPieceValues / out.cols) : out.rows;
  for (std::int64_t begin = 0; begin < out.rows; begin += piece) {
    const std::int64_t rows = std::min(piece, out.rows - begin);
    std::vector<float> values(rows * out.cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      // The inverse of the export, which wrote row order[r] of the source as row r.
      const std::int64_t target = order.empty() ? r : order[r];
      const std::span<float> row = std::span(values).subspan(target * out.cols, out.cols);
      DecodeFloats(tensor.dtype, bytes.subspan((first + begin + r) * row_bytes, row_bytes), row);
      for (std::int64_t i = 0; factor != 1 && i < out.cols; ++i) row[i] *= factor;
    }
    Upload(memory, std::span<const float>(values), Rows(out, begin, rows));
  }
}

}  // namespace

void LoadGgufAdapter(const std::filesystem::path& path, const DecoderConfig& config,
                     LoraAdapter& adapter) {
  const std::unique_ptr<GgufReader> reader = OpenGguf(path);
  const float alpha = reader->Require<float>("adapter.lora.alpha");
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    PerLinear<LoraLinear>& loras = adapter.layers()[l];
    const PerLinear<std::string> names = GgufLinearNames(l, config);
    const PerLinear<LinearRows> rows = GgufLinearRows(l, config);
    // Linear number `expert` of `experts` in one tensor.
    const auto read = [&](const std::string& name, const LinearRows& r, LoraLinear& lora,
                          std::size_t expert, std::size_t experts) {
      // The adapter has nothing for this linear, and so the file has no tensor.
      if (lora.rank == 0) return;
      const auto e = static_cast<std::int64_t>(expert);
      const auto count = static_cast<std::int64_t>(experts);
      const TensorInfo& a = Get(*reader, name + ".weight.lora_a", count * lora.rank, lora.in);
      const TensorInfo& b = Get(*reader, name + ".weight.lora_b", count * lora.out, lora.rank);
      Decode(*reader, a, e * lora.rank, {}, 1, adapter.memory(), lora.a);
      Decode(*reader, b, e * lora.out, r.order, 1 / r.factor, adapter.memory(), lora.b);
      // As llama.cpp computes it: the comparison tests llama.cpp's result.
      lora.scale = alpha / static_cast<float>(lora.rank);
    };
    const auto group = [&](const std::vector<std::string>& tensors,
                           const std::vector<LinearRows>& linear_rows,
                           std::vector<LoraLinear>& linears) {
      for (std::size_t i = 0; i < linears.size(); ++i) {
        const std::size_t place = i % tensors.size();
        read(tensors[place], linear_rows[place], linears[i], i / tensors.size(),
             linears.size() / tensors.size());
      }
    };
    group(names.qkv, rows.qkv, loras.qkv);
    read(names.o, rows.o, loras.o, 0, 1);
    group(names.gate_up, rows.gate_up, loras.gate_up);
    group(names.down, rows.down, loras.down);
  }
}

}  // namespace qlora
