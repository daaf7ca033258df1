#include "terminal/memory_table.h"

#include "qlora/nf4.h"

namespace qlora {
namespace {

struct LlamaShape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t intermediate_size;
  std::int64_t layers;
  std::int64_t kv_features;  // of k_proj and v_proj
};
constexpr std::int64_t kLlamaVocab = 32000;
// The models of the QLoRA paper (arXiv:2305.14314), and the 70B of Llama 2, whose k and v are
// smaller: 8 key/value heads of 128.
constexpr LlamaShape kLlamas[] = {
    {"7B", 4096, 11008, 32, 4096},  {"13B", 5120, 13824, 40, 5120}, {"33B", 6656, 17920, 60, 6656},
    {"65B", 8192, 22016, 80, 8192}, {"70B", 8192, 28672, 80, 1024},
};

ModelMemory MemoryOf(const LlamaShape& s, const QuantizeOptions& form) {
  const std::int64_t d = s.hidden_size;
  const std::int64_t tables = 2 * kLlamaVocab * d;  // embeddings and head
  // Two norms in each layer, one at the end.
  const std::int64_t norms = (2 * s.layers + 1) * d;
  ModelMemory row = {.name = s.name};
  // q_proj and o_proj (d, d), k_proj and v_proj (kv_features, d), three matrices of the MLP.
  row.linear_parameters =
      s.layers * (2 * d * d + 2 * d * s.kv_features + 3 * d * s.intermediate_size);
  row.parameters = row.linear_parameters + tables + norms;
  row.fp16_bytes = 2.0 * static_cast<double>(row.parameters);
  row.fp32_bytes = 4.0 * static_cast<double>(row.parameters);
  row.linear_bytes = BitsPerWeight(form) / 8 * static_cast<double>(row.linear_parameters);
  // Tables stay in 16 bits, norms are float32.
  row.total_bytes = row.linear_bytes + static_cast<double>(2 * tables + 4 * norms);
  return row;
}

}  // namespace

std::vector<MemoryRow> MemoryTable(std::int64_t block_size) {
  const QuantizeOptions single = {.block_size = block_size, .scale_type = ScaleType::kF32};
  const QuantizeOptions twice = {.block_size = block_size};
  std::vector<MemoryRow> table;
  for (const LlamaShape& shape : kLlamas) {
    table.push_back({MemoryOf(shape, single), MemoryOf(shape, twice)});
  }
  return table;
}

}  // namespace qlora
