// What quantization saves, in numbers.
#include "qlora/nf4.h"
#include "quant/layout.h"

namespace qlora {
namespace {

struct Shape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t intermediate_size;
  std::int64_t layers;
  std::int64_t kv_features;  // of k_proj and v_proj
};
constexpr std::int64_t kVocab = 32000;
constexpr Shape kShapes[] = {
    {"7B", 4096, 11008, 32, 4096},  {"13B", 5120, 13824, 40, 5120}, {"33B", 6656, 17920, 60, 6656},
    {"65B", 8192, 22016, 80, 8192}, {"70B", 8192, 28672, 80, 1024},
};

}  // namespace

double BitsPerWeight(const QuantizeOptions& options) {
  double per_block = 8.0 * static_cast<double>(ScaleBytes(options.scale_type));
  if (IsDouble(options.scale_type)) {
    per_block += 32.0 / static_cast<double>(options.scaler_block_size);
  }
  if (options.zero_point) per_block += 32;
  return 4 + per_block / static_cast<double>(options.block_size);
}

std::vector<ModelMemory> MemoryTable(const QuantizeOptions& options) {
  std::vector<ModelMemory> table;
  for (const Shape& s : kShapes) {
    const std::int64_t d = s.hidden_size;
    const std::int64_t tables = 2 * kVocab * d;  // embeddings and head
    const std::int64_t norms = (2 * s.layers + 1) * d;
    ModelMemory row = {.name = s.name};
    row.linear_parameters =
        s.layers * (2 * d * d + 2 * d * s.kv_features + 3 * d * s.intermediate_size);
    row.parameters = row.linear_parameters + tables + norms;
    row.fp16_bytes = 2.0 * static_cast<double>(row.parameters);
    row.fp32_bytes = 4.0 * static_cast<double>(row.parameters);
    row.linear_bytes = BitsPerWeight(options) / 8 * static_cast<double>(row.linear_parameters);
    row.total_bytes = row.linear_bytes + static_cast<double>(2 * tables + 4 * norms);
    table.push_back(row);
  }
  return table;
}

}  // namespace qlora
