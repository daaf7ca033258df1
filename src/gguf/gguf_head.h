// The head of one GGUF file: keys, and the entries of tensors. Used by gguf.cc.
#ifndef QLORA_GGUF_GGUF_HEAD_H_
#define QLORA_GGUF_GGUF_HEAD_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/gguf.h"

namespace qlora {

struct GgufTensorEntry {
  TensorInfo info;
  std::uint64_t offset = 0;  // in the file
};

struct GgufHead {
  GgufMetadata values;
  std::vector<GgufTensorEntry> tensors;  // inside the file, and apart
};

// bytes: the whole file. where: its name, for messages. The head takes memory in proportion to its
// bytes, whatever numbers it claims.
GgufHead ReadGgufHead(std::span<const std::byte> bytes, const std::string& where);

}  // namespace qlora

#endif  // QLORA_GGUF_GGUF_HEAD_H_
