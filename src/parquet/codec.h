// Compression of pages.
#ifndef QLORA_PARQUET_CODEC_H_
#define QLORA_PARQUET_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace qlora::parquet {

// Bytes of one page after decompression, at most.
inline constexpr std::int64_t kMaxPageBytes = std::int64_t{1} << 30;

// Errors: InvalidInput naming a codec that is not supported.
void CheckCodec(std::int32_t codec);

// Returns the `size` bytes that `bytes` decompress to. Memory grows with the output, not with the
// claimed size. Errors: InvalidInput for damaged bytes, and when they are more or fewer than
// `size`.
std::string Decompress(std::int32_t codec, std::string_view bytes, std::int64_t size);

// CRC-32 as zlib and gzip have it.
std::uint32_t Crc32(std::string_view bytes);

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_CODEC_H_
