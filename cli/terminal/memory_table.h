// Memory of well-known models in 4 bits, for the JSON of `qlora quantize`.
#ifndef QLORA_CLI_TERMINAL_MEMORY_TABLE_H_
#define QLORA_CLI_TERMINAL_MEMORY_TABLE_H_

#include <cstdint>
#include <vector>

namespace qlora {

// A model whose linears of the blocks are quantized; embeddings and head are in 16 bits, norms in
// 32.
struct ModelMemory {
  const char* name;
  std::int64_t parameters = 0;
  std::int64_t linear_parameters = 0;  // the quantized parameters
  double fp16_bytes = 0;               // all parameters in 16 bits
  double fp32_bytes = 0;
  double linear_bytes = 0;  // of the quantized parameters
  double total_bytes = 0;   // of all parameters

  double ratio() const { return fp16_bytes / total_bytes; }
};

// The same model with float32 scales and with double quantization.
struct MemoryRow {
  ModelMemory single_quant;
  ModelMemory double_quant;
};

// Returns LLaMA 7B, 13B, 33B and 65B, and Llama 2 70B, in blocks of block_size.
std::vector<MemoryRow> MemoryTable(std::int64_t block_size);

}  // namespace qlora

#endif  // QLORA_CLI_TERMINAL_MEMORY_TABLE_H_
