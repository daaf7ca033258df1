// Which tensors of a GGUF file hold a tensor of the list (tensor_list.h), and in which order they
// have its rows and columns.
#ifndef QLORA_MODEL_GGUF_ROWS_H_
#define QLORA_MODEL_GGUF_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/tensor_list.h"

namespace qlora {

// The tensors of the first spelling.
std::vector<std::string> GgufTensorsOf(const ListedTensor& row);
// The order in which one of them has the rows of `row`, which is a tensor of this layer.
LinearRows GgufRowsOf(const DecoderConfig& config, std::int64_t layer, const ListedTensor& row,
                      const std::string& tensor);

// visit(row, tensor) for each tensor of a GGUF file that holds linears of a layer.
template <typename Visit>
void ForEachGgufLinear(const DecoderConfig& config, std::int64_t layer, Visit&& visit) {
  for (const LayerTensor& row : LayerTensors(config, layer)) {
    if (row.kind != TensorKind::kLinear) continue;
    for (const std::string& tensor : GgufTensorsOf(row)) visit(row, tensor);
  }
}

}  // namespace qlora

#endif  // QLORA_MODEL_GGUF_ROWS_H_
