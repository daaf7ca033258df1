#include "records/compressed_file.h"

#include <zlib.h>
#include <zstd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "io/test_util.h"
#include "records/file_format.h"
#include "records/record_file.h"

namespace qlora {
namespace {

std::string Gzip(const std::string& text) {
  std::string out(text.size() + 1000, '\0');
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// Lines that are larger than the pieces in which files are read and decompressed.
std::string ManyLines() {
  std::string lines;
  for (int i = 0; i < 60'000; ++i) lines += "{\"text\": \"" + std::to_string(i * 7919) + "\"}\n";
  return lines;
}

std::string ContentOf(const std::string& bytes, const ContentLimits& limits = {}) {
  const FileBytes file = Decompressed(FileBytes::FromMemory("d.jsonl.gz", bytes), {}, limits);
  EXPECT_EQ(file.name(), "d.jsonl.gz");
  return file.Read(0, file.size());
}

TEST(CompressedFileTest, GivesTheContentOfOneOrSeveralPieces) {
  const std::string lines = ManyLines();
  EXPECT_EQ(ContentOf(Gzip(lines)), lines);
  EXPECT_EQ(ContentOf(Zstd(lines)), lines);
  EXPECT_EQ(ContentOf(Gzip("{}\n") + Gzip("{ }") + std::string(300, '\0')), "{}\n{ }");
  EXPECT_EQ(ContentOf(Zstd("{}\n") + Zstd("{ }")), "{}\n{ }");
  EXPECT_EQ(ContentOf("{}"), "{}") << "not compressed";
}

// Parallel compressors write frames that are skipped before those of the content.
TEST(CompressedFileTest, FramesMayBeSkipped) {
  const std::string line = "{\"text\": \"a\"}\n";
  for (const char first : {'\x50', '\x5f'}) {
    const std::string skipped = std::string(1, first) + std::string("\x2a\x4d\x18\x02\0\0\0ab", 9);
    EXPECT_EQ(ContentOf(skipped + Zstd(line) + skipped + Zstd(line)), line + line);
  }
  const std::string cut = std::string("\x50\x2a\x4d\x18\xff\xff\xff\xff", 8) + Zstd(line);
  EXPECT_THROW(ContentOf(cut), Error);
}

TEST(CompressedFileTest, RefusesDamageCutsAndBombs) {
  for (const std::string& whole : {Gzip(ManyLines()), Zstd(ManyLines())}) {
    for (const std::size_t size : {whole.size() / 2, whole.size() - 1}) {
      ExpectRefused([&] { ContentOf(whole.substr(0, size)); }, "ends too early");
    }
    std::string damaged = whole;
    for (std::size_t i = 0; i < 64; ++i) damaged[damaged.size() / 2 + i] ^= 0x55;
    ExpectRefused([&] { ContentOf(damaged); }, "damaged");
    ExpectRefused([&] { ContentOf(whole, {.bytes = 1000, .growth = 1}); }, "hold more than");
  }
  ExpectRefused([&] { ContentOf(Gzip("{}") + "rest"); }, "damaged");
}

// What a file of zstd refers back to is kept, so the memory for reading bounds it.
TEST(CompressedFileTest, WindowsOfZstdHaveALimit) {
  const std::string lines = ManyLines() + ManyLines();
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     &ZSTD_freeCCtx);
  for (const int log : {18, 19, 20, 27, 28}) {
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, log);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 0);
    std::string bytes(ZSTD_compressBound(lines.size()), '\0');
    // Without the size of the content the frame needs the whole window.
    ZSTD_outBuffer out{bytes.data(), bytes.size(), 0};
    ZSTD_inBuffer in{lines.data(), lines.size(), 0};
    ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_continue);
    ASSERT_EQ(ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_end), 0U);
    bytes.resize(out.pos);
    const auto content = [&] { return ContentOf(bytes, {.reading = {std::int64_t{4} << 20}}); };
    if (log <= 20) {
      EXPECT_EQ(content(), lines) << log;
    } else {
      ExpectRefused(content, "refers farther back (zstd --long) than the 2^20 bytes");
    }
  }
}

TEST(CompressedFileTest, FormatsAreThoseOfTheContent) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& name, const std::string& bytes,
                        const std::filesystem::path& index) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return RecordFile(Decompressed(FileBytes(folder / name), index), index);
  };
  const RecordFile csv = open("d.csv.GZ", Gzip("a\tb\n1\t2\n"), {});
  EXPECT_EQ(csv.Read(0).dump(), R"({"a":"1","b":"2"})");
  EXPECT_TRUE(csv.Where(0).ends_with("d.csv.GZ:2"));
  EXPECT_EQ(open("d.json.zst", Zstd(R"([{"a": 1}, {}])"), {}).size(), 2);
  EXPECT_EQ(open("d.jsonl.gz", "{}\n{}", {}).size(), 2) << "decompressed on its way";
  EXPECT_EQ(DataExtension("a/B.TXT.zst"), ".txt");
  EXPECT_FALSE(HasDataExtension("data.tar.gz"));

  // The content and its index are found again.
  const std::filesystem::path index = folder / "index";
  const std::string key = open("e.jsonl.gz", Gzip("{}\n{}"), index).key();
  const auto files = std::distance(std::filesystem::directory_iterator(index), {});
  EXPECT_EQ(files, 2);
  const RecordFile again(Decompressed(FileBytes(folder / "e.jsonl.gz"), index), index);
  EXPECT_EQ(again.key(), key);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(index), {}), files);
}

}  // namespace
}  // namespace qlora
