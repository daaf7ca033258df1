#include "records/compressed_file.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "base/check.h"
#include "records/derived_text.h"

namespace qlora {
namespace {

constexpr std::uint64_t kInBytes = std::uint64_t{1} << 18;  // read at a time
constexpr std::size_t kOutBytes = std::size_t{1} << 18;     // decompressed at a time

constexpr std::string_view kGzipMagic = "\x1F\x8B";
constexpr std::string_view kZstdMagic = "\x28\xB5\x2F\xFD";

// True for a frame of zstd, and for one that is skipped, with which parallel compressors begin a
// file: 0x184D2A50 to 0x184D2A5F.
bool IsZstd(std::string_view head) {
  return head == kZstdMagic || (head.ends_with("\x2A\x4D\x18") && (head[0] & 0xF0) == 0x50);
}

// The way from a compressed file to the sink, with the checks that both forms share.
class Decompression {
 public:
  Decompression(const FileBytes& file, const ContentLimits& limits, const TextSink& sink)
      : file_(file),
        most_(std::max(limits.bytes, limits.growth * file.size())),
        reading_(limits.reading),
        sink_(sink) {}

  void Gzip();
  void Zstd();

 private:
  // Reads the next piece of the file; empty at its end.
  std::string_view Next() {
    piece_ = file_.Read(at_, kInBytes);
    at_ += piece_.size();
    return piece_;
  }
  void Write(std::size_t count) {
    written_ += count;
    if (written_ > most_) {
      ThrowInvalidInput(
          "{}: {} compressed bytes hold more than {}, which texts seldom do; if that is right, "
          "decompress the file first",
          file_.name(), file_.size(), most_);
    }
    sink_(std::string_view(out_).substr(0, count));
  }
  [[noreturn]] void ThrowDamaged(std::string_view reason) const {
    ThrowInvalidInput("{}: the compressed file is damaged: {}", file_.name(), reason);
  }
  [[noreturn]] void ThrowCut() const {
    ThrowInvalidInput("{}: the compressed file ends too early; is it complete?", file_.name());
  }

  const FileBytes& file_;
  const std::uint64_t most_;
  const ReadingLimits reading_;
  const TextSink& sink_;
  std::uint64_t at_ = 0;
  std::uint64_t written_ = 0;
  std::string piece_;
  std::string out_ = std::string(kOutBytes, '\0');
};

// One member or several, and zeros behind the last as tapes have them.
void Decompression::Gzip() {
  constexpr int kGzipHeader = 16 + MAX_WBITS;  // zlib's way to ask for gzip's header and checksum
  z_stream stream = {};
  if (inflateInit2(&stream, kGzipHeader) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> guard(&stream, &inflateEnd);
  bool ended = false;  // between two members
  for (std::string_view in = Next(); !in.empty(); in = Next()) {
    while (!in.empty()) {
      if (ended) {
        const std::size_t zeros = std::min(in.find_first_not_of('\0'), in.size());
        in.remove_prefix(zeros);
        if (in.empty()) break;
        inflateReset(&stream);
      }
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
      stream.avail_in = static_cast<uInt>(in.size());
      do {
        stream.next_out = reinterpret_cast<Bytef*>(out_.data());
        stream.avail_out = static_cast<uInt>(out_.size());
        const int status = inflate(&stream, Z_NO_FLUSH);
        ended = status == Z_STREAM_END;
        // Z_BUF_ERROR: the input is used up, and so is what it made.
        if (!ended && status != Z_OK && status != Z_BUF_ERROR) {
          ThrowDamaged(stream.msg == nullptr ? "not gzip" : stream.msg);
        }
        Write(out_.size() - stream.avail_out);
      } while (!ended && stream.avail_out == 0);
      in.remove_prefix(in.size() - stream.avail_in);
    }
  }
  if (!ended) ThrowCut();
}

// One frame or several.
void Decompression::Zstd() {
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(),
                                                                          &ZSTD_freeDStream);
  if (stream == nullptr) throw std::bad_alloc();
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, reading_.zstd_window_log());
  std::size_t left = 0;  // 0 at the end of a frame
  for (std::string_view piece = Next(); !piece.empty(); piece = Next()) {
    ZSTD_inBuffer in{piece.data(), piece.size(), 0};
    bool full = false;  // more output may wait
    while (in.pos < in.size || full) {
      ZSTD_outBuffer out{out_.data(), out_.size(), 0};
      left = ZSTD_decompressStream(stream.get(), &out, &in);
      if (ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge) {
        ThrowInvalidInput(
            "{}: the file refers farther back (zstd --long) than the 2^{} bytes that may be kept "
            "here; decompress it first{}",
            file_.name(), reading_.zstd_window_log(),
            reading_.memory < kMaxReadingMemory ? ", or raise max_memory" : "");
      }
      if (ZSTD_isError(left)) ThrowDamaged(ZSTD_getErrorName(left));
      Write(out.pos);
      full = left != 0 && out.pos == out.size;
    }
  }
  if (left != 0) ThrowCut();
}

}  // namespace

FileBytes Decompressed(const FileBytes& file, const std::filesystem::path& folder,
                       const ContentLimits& limits) {
  const std::string head = file.Read(0, kZstdMagic.size());
  const bool gzip = head.starts_with(kGzipMagic);
  if (!gzip && !IsZstd(head)) return file;
  return MakeText(file, "decompressed", folder, [&](const TextSink& sink) {
    Decompression decompression(file, limits, sink);
    gzip ? decompression.Gzip() : decompression.Zstd();
  });
}

}  // namespace qlora
