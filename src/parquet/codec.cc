#include "parquet/codec.h"

#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/check.h"

namespace qlora::parquet {
namespace {

// The numbers of the format. Lz4 (5) is a framing of Hadoop, which differs from writer to writer.
constexpr std::array<const char*, 8> kCodecNames = {"none",   "Snappy", "gzip", "LZO",
                                                    "Brotli", "LZ4",    "zstd", "LZ4_RAW"};
constexpr std::int32_t kNone = 0;
constexpr std::int32_t kSnappy = 1;
constexpr std::int32_t kGzip = 2;
constexpr std::int32_t kZstd = 6;

// Snappy data are the size after decompression, as a varint, and elements. The two lowest bits of
// the first byte of an element, its tag, tell the kind:
//
//   00  literal: a length, then as many bytes
//   01  copy of 4 to 11 bytes from up to 2^11 bytes before, in 2 bytes
//   10  copy of 1 to 64 bytes from up to 2^16 bytes before, in 3 bytes
//   11  copy of 1 to 64 bytes from up to 2^32 bytes before, in 5 bytes
//
// The best that an element can do is to make 64 bytes of 3. A larger claim is refused before memory
// is taken for it.
constexpr std::int64_t kMaxSnappyGrowth = 22;

[[noreturn]] void ThrowDamaged(std::int32_t codec) {
  ThrowInvalidInput("a page's {} data are damaged", kCodecNames[codec]);
}

std::string DecompressSnappy(std::string_view bytes, std::int64_t size) {
  std::size_t length = 0;
  if (!snappy::GetUncompressedLength(bytes.data(), bytes.size(), &length) ||
      std::int64_t(length) != size || size / kMaxSnappyGrowth > std::ssize(bytes)) {
    ThrowDamaged(kSnappy);
  }
  std::string out(length, '\0');
  if (!snappy::RawUncompress(bytes.data(), bytes.size(), out.data())) ThrowDamaged(kSnappy);
  return out;
}

// Calls step(begin of free room, its bytes), which returns the bytes that it wrote, until it writes
// none. The output has room for one byte more than `size`, so that too much of it is noticed.
template <typename Step>
std::string Grow(std::int32_t codec, std::int64_t input, std::int64_t size, const Step& step) {
  constexpr std::int64_t kFirstRoom = 4096;
  std::string out;
  std::int64_t used = 0;
  while (true) {
    if (used == std::ssize(out)) {
      if (used > size) ThrowDamaged(codec);
      out.resize(std::min(size + 1, std::max({2 * used, 4 * input, kFirstRoom})));
    }
    const std::int64_t written = step(out.data() + used, std::ssize(out) - used);
    if (written == 0) break;
    used += written;
  }
  if (used != size) ThrowDamaged(codec);
  out.resize(size);
  return out;
}

// Decompresses one or several frames. As a stream: the size in a frame's header may be missing, or
// be a lie for which memory would be allocated.
std::string DecompressZstd(std::string_view bytes, std::int64_t size) {
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(),
                                                                          &ZSTD_freeDStream);
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::size_t left = 0;  // 0 at the end of a frame
  std::string text = Grow(kZstd, std::ssize(bytes), size, [&](char* out, std::int64_t room) {
    ZSTD_outBuffer buffer{out, std::size_t(room), 0};
    while (buffer.pos == 0 && (in.pos < in.size || left != 0)) {
      const std::size_t before = in.pos;
      left = ZSTD_decompressStream(stream.get(), &buffer, &in);
      if (ZSTD_isError(left) || (buffer.pos == 0 && in.pos == before)) ThrowDamaged(kZstd);
    }
    return std::int64_t(buffer.pos);
  });
  if (left != 0) ThrowDamaged(kZstd);
  return text;
}

// One member or several.
std::string DecompressGzip(std::string_view bytes, std::int64_t size) {
  constexpr int kGzipHeader = 16 + MAX_WBITS;  // zlib's way to ask for gzip's header and checksum
  z_stream stream = {};
  if (inflateInit2(&stream, kGzipHeader) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> guard(&stream, &inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  bool ended = false;
  std::string text = Grow(kGzip, std::ssize(bytes), size, [&](char* out, std::int64_t room) {
    stream.next_out = reinterpret_cast<Bytef*>(out);
    stream.avail_out = static_cast<uInt>(room);
    while (stream.avail_out == room && !(ended && stream.avail_in == 0)) {
      if (ended) inflateReset(&stream);
      const int status = inflate(&stream, Z_NO_FLUSH);
      ended = status == Z_STREAM_END;
      if (!ended && status != Z_OK) ThrowDamaged(kGzip);
    }
    return room - std::int64_t(stream.avail_out);
  });
  if (!ended) ThrowDamaged(kGzip);
  return text;
}

}  // namespace

void CheckCodec(std::int32_t codec) {
  if (codec == kNone || codec == kSnappy || codec == kGzip || codec == kZstd) return;
  const bool known = codec > 0 && codec < std::ssize(kCodecNames);
  ThrowInvalidInput(
      "compressed with {}, which is not supported (supported: Snappy, zstd, gzip, none); write the "
      "file again with another codec, for example with DuckDB: duckdb -c \"COPY (FROM "
      "'data.parquet') TO 'new.parquet' (CODEC zstd)\"",
      known ? kCodecNames[codec] : "an unknown codec");
}

std::string Decompress(std::int32_t codec, std::string_view bytes, std::int64_t size) {
  if (size < 0 || size > kMaxPageBytes) ThrowInvalidInput("a page claims {} bytes", size);
  if (bytes.empty() && size == 0) return {};  // some writers compress nothing to nothing
  switch (codec) {
    case kSnappy:
      return DecompressSnappy(bytes, size);
    case kGzip:
      return DecompressGzip(bytes, size);
    case kZstd:
      return DecompressZstd(bytes, size);
    default:
      if (std::ssize(bytes) != size) {
        ThrowInvalidInput("a page of {} bytes claims {}", bytes.size(), size);
      }
      return std::string(bytes);
  }
}

std::uint32_t Crc32(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace qlora::parquet
