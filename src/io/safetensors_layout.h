// The parts of the safetensors format that its reader and its writer share.
#ifndef QLORA_IO_SAFETENSORS_LAYOUT_H_
#define QLORA_IO_SAFETENSORS_LAYOUT_H_

#include <cstdint>

namespace qlora {

inline constexpr std::uint64_t kLengthBytes = 8;  // the length of the header, before the header
inline constexpr const char* kSingleName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

}  // namespace qlora

#endif  // QLORA_IO_SAFETENSORS_LAYOUT_H_
