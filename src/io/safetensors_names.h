// The names and sizes that the reader and the writer of safetensors share.
#ifndef QLORA_IO_SAFETENSORS_NAMES_H_
#define QLORA_IO_SAFETENSORS_NAMES_H_

#include <cstdint>

namespace qlora {

inline constexpr std::uint64_t kLengthBytes = 8;  // the length of the header, before the header
inline constexpr const char* kSingleName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

}  // namespace qlora

#endif  // QLORA_IO_SAFETENSORS_NAMES_H_
