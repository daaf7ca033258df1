#include "gguf/gguf.h"

#include <fmt/format.h>

#include <cstring>
#include <span>

#include "base/file.h"
#include "gguf/gguf_head.h"
#include "gguf/gguf_writer.h"
#include "io/test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string RawName(const std::string& text) { return Raw(std::uint64_t{text.size()}) + text; }

// A file from its parts.
std::string FileOf(const std::vector<std::string>& keys, const std::vector<std::string>& tensors,
                   const std::string& data) {
  std::string out = "GGUF" + Raw(std::uint32_t{3}) + Raw(std::uint64_t{tensors.size()}) +
                    Raw(std::uint64_t{keys.size()});
  for (const std::string& key : keys) out += key;
  for (const std::string& tensor : tensors) out += tensor;
  out.resize((out.size() + 31) / 32 * 32, '\0');
  return out + data;
}

std::string TensorEntry(const std::string& name, const std::vector<std::uint64_t>& sizes,
                        std::uint32_t type, std::uint64_t offset) {
  std::string out = RawName(name) + Raw(static_cast<std::uint32_t>(sizes.size()));
  for (const std::uint64_t size : sizes) out += Raw(size);
  return out + Raw(type) + Raw(offset);
}

class GgufTest : public ::testing::Test {
 protected:
  void ExpectFileRefused(const std::string& content, const std::string& message) {
    const fs::path path = folder_ / "bad.gguf";
    WriteTextFile(path, content);
    ExpectRefused([&] { OpenGguf(path); }, message);
    ExpectRefused([&] { OpenGguf(path); }, "bad.gguf");
  }
  TemporaryFolder folder_;
};

template <typename Value>
GgufMetadata One(const std::string& key, const Value& value) {
  GgufMetadata metadata;
  metadata.Add(key, value);
  return metadata;
}

GgufMetadata AllTypes() {
  GgufMetadata m;
  m.Add("a.u8", std::uint8_t{200});
  m.Add("a.i8", std::int8_t{-100});
  m.Add("a.u16", std::uint16_t{60000});
  m.Add("a.i16", std::int16_t{-30000});
  m.Add("a.u32", std::uint32_t{4000000000});
  m.Add("a.i32", std::int32_t{-2000000000});
  m.Add("a.f32", 1.5f);
  m.Add("a.bool", true);
  m.Add("a.string", std::string("text with \0 inside", 18));
  m.Add("a.u64", std::uint64_t{1} << 63);
  m.Add("a.i64", std::int64_t{-5});
  m.Add("a.f64", 2.5);
  m.Add("b.strings", GgufArray(std::vector<std::string>{"one", "", "three"}));
  m.Add("b.f32", GgufArray(std::vector<float>{1, -2}));
  m.Add("b.i32", GgufArray(std::vector<std::int32_t>{-1, 7}));
  m.Add("b.bool", GgufArray(std::vector<bool>{true, false, true}));
  m.Add("b.u8", GgufArray(std::vector<std::uint8_t>{}));
  m.Add("b.f64", GgufArray(std::vector<double>{0.1}));
  return m;
}

const std::vector<TensorInfo> kTensors = {
    {"norm.weight", DType::kF32, {5}},      {"q8", BlockFormat::kQ8_0, {3, 64}},
    {"half", DType::kF16, {2, 3}},          {"q4", BlockFormat::kQ4_0, {2, 32}},
    {"iq4", BlockFormat::kIQ4_NL, {1, 32}}, {"brain", DType::kBF16, {7}},
    {"four", DType::kF32, {2, 1, 3, 2}}};

TEST_F(GgufTest, RoundTripKeepsMetadataAndTensors) {
  const fs::path path = folder_ / "a.gguf";
  const auto writer = CreateGguf(path, AllTypes(), kTensors);
  std::vector<std::string> contents;
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    contents.emplace_back(kTensors[i].bytes(), static_cast<char>('a' + i));
    const std::size_t half = contents[i].size() / 2;
    writer->Write(BytesOfVector(contents[i].substr(0, half)));
    writer->Write(BytesOfVector(contents[i].substr(half)));
  }
  EXPECT_FALSE(fs::exists(path));
  writer->Finish();
  EXPECT_EQ(fs::file_size(path) % 32, 0u);

  const auto reader = OpenGguf(path);
  EXPECT_TRUE(reader->values() == AllTypes());
  ASSERT_EQ(reader->tensors().size(), kTensors.size());
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const TensorInfo& tensor = reader->tensors()[i];
    EXPECT_EQ(tensor.name, kTensors[i].name);
    EXPECT_EQ(tensor.dtype, kTensors[i].dtype);
    EXPECT_EQ(tensor.shape, kTensors[i].shape);
    EXPECT_EQ(AsString(reader->Bytes(tensor)), contents[i]);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(reader->Bytes(tensor).data()) % 32, 0u);
    reader->Release(tensor);
    EXPECT_EQ(reader->FileOf(tensor), path.string());
  }
  EXPECT_EQ(reader->Find("q8"), &reader->tensors()[1]);
  EXPECT_EQ(reader->metadata().at("a.string").size(), 18u);

  // Written again from what was read: the same bytes.
  const auto again = CreateGguf(folder_ / "b.gguf", reader->values(), reader->tensors());
  for (const TensorInfo& tensor : reader->tensors()) again->Write(reader->Bytes(tensor));
  again->Finish();
  EXPECT_TRUE(ReadTextFile(path) == ReadTextFile(folder_ / "b.gguf"));
}

TEST_F(GgufTest, EveryBlockFormatIsReadAndWritten) {
  const fs::path path = folder_ / "a.gguf";
  std::vector<TensorInfo> tensors;
  std::vector<std::string> contents;
  for (const BlockFormatInfo& info : BlockFormats()) {
    tensors.push_back({info.name, info.format, {3, 2 * info.values}});
    contents.emplace_back(6 * info.bytes, static_cast<char>('a' + tensors.size()));
  }
  const auto writer = CreateGguf(path, {}, tensors);
  for (const std::string& content : contents) writer->Write(BytesOfVector(content));
  writer->Finish();
  const auto reader = OpenGguf(path);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = reader->tensors()[i];
    EXPECT_STREQ(NameOf(tensor.dtype), BlockFormats()[i].name);
    EXPECT_EQ(tensor.dtype, DType::kBlocks);
    EXPECT_EQ(tensor.dtype, tensors[i].dtype);
    EXPECT_EQ(tensor.bytes(), contents[i].size());
    EXPECT_EQ(AsString(reader->Bytes(tensor)), contents[i]);
  }
}

TEST_F(GgufTest, BytesAreThoseOfTheFormat) {
  const fs::path path = folder_ / "a.gguf";
  GgufMetadata metadata;
  metadata.Add("general.architecture", std::string("llama"));
  metadata.Add("n", std::uint32_t{3});
  const auto writer =
      CreateGguf(path, metadata, {{"w", DType::kF16, {2, 3}}, {"b", DType::kF32, {1}}});
  writer->Write(BytesOfVector(std::string("0123456789ab")));
  writer->Write(BytesOfVector(std::string("wxyz")));
  writer->Finish();
  const std::string expected =
      FileOf({RawName("general.architecture") + Raw(std::uint32_t{8}) + RawName("llama"),
              RawName("n") + Raw(std::uint32_t{4}) + Raw(std::uint32_t{3})},
             {TensorEntry("w", {3, 2}, 1, 0), TensorEntry("b", {1}, 0, 32)},
             "0123456789ab" + std::string(20, '\0') + "wxyz" + std::string(28, '\0'));
  EXPECT_TRUE(ReadTextFile(path) == expected);
}

TEST_F(GgufTest, TypedAccess) {
  const fs::path path = folder_ / "a.gguf";
  CreateGguf(path, AllTypes(), {})->Finish();
  const auto reader = OpenGguf(path);
  EXPECT_EQ(*reader->Get<std::uint32_t>("a.u32"), 4000000000u);
  EXPECT_EQ(reader->Require<float>("a.f32"), 1.5f);
  EXPECT_THAT(reader->Require<std::vector<std::string>>("b.strings"),
              ElementsAre("one", "", "three"));
  EXPECT_EQ(reader->Get<float>("absent"), nullptr);
  EXPECT_EQ(reader->Require<std::int8_t>("a.i8"), -100);
  EXPECT_EQ(reader->Require<std::uint32_t>("a.u32"), 4000000000);
  ExpectRefused([&] { reader->Require<float>("absent"); }, "key 'absent' is missing");
  ExpectRefused([&] { reader->Get<float>("a.u32"); }, "key 'a.u32': expected type f32, found u32");
  ExpectRefused([&] { reader->Get<std::vector<float>>("b.i32"); },
                "expected type array of f32, found array of i32");
  ExpectRefused([&] { reader->Get<float>("b.f32"); }, "expected type f32, found array of f32");
  ExpectRefused([&] { reader->Get<std::vector<float>>("a.f32"); },
                "expected type array of f32, found f32");
  for (const char* key : {"a.bool", "a.f32", "a.string", "a.u64", "b.i32"}) {
    ExpectRefused([&] { reader->Get<std::int64_t>(key); }, "expected type i64");
  }
}

TEST_F(GgufTest, OtherAlignmentsAreRead) {
  const std::string alignment =
      RawName("general.alignment") + Raw(std::uint32_t{4}) + Raw(std::uint32_t{64});
  std::string content =
      FileOf({alignment}, {TensorEntry("a", {1}, 0, 0), TensorEntry("b", {1}, 0, 64)}, "");
  content.resize((content.size() + 63) / 64 * 64, '\0');
  content += "AAAA" + std::string(60, '\0') + "BBBB";  // the last padding may be missing
  WriteTextFile(folder_ / "a.gguf", content);
  const auto reader = OpenGguf(folder_ / "a.gguf");
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("b"))), "BBBB");
}

TEST_F(GgufTest, RefusesBrokenHeads) {
  ExpectRefused([&] { OpenGguf(folder_ / "missing.gguf"); }, "No such file");
  ExpectFileRefused("", "ends at byte 0");
  ExpectFileRefused("GGML" + std::string(20, '\0'), "is not a GGUF file");
  ExpectFileRefused("GGUF" + Raw(std::uint32_t{1}) + std::string(20, '\0'),
                    "version 1 is not supported");
  ExpectFileRefused("GGUF" + Raw(std::uint32_t{3} << 24) + std::string(20, '\0'), "big-endian");
  ExpectFileRefused("GGUF" + Raw(std::uint32_t{3}) + Raw(~std::uint64_t{0}) + std::string(8, '\0'),
                    "claims 18446744073709551615 tensors");
  ExpectFileRefused(
      "GGUF" + Raw(std::uint32_t{3}) + std::string(8, '\0') + Raw(std::uint64_t{1} << 60),
      "claims 1152921504606846976 keys");
  const std::string key = RawName("k");
  ExpectFileRefused(FileOf({Raw(std::uint64_t{1} << 40) + "k"}, {}, ""), "are expected from byte");
  ExpectFileRefused(FileOf({key + Raw(std::uint32_t{13}) + std::string(64, '\0')}, {}, ""),
                    "unknown value type 13");
  ExpectFileRefused(FileOf({key + Raw(std::uint32_t{7}) + "\x02"}, {}, ""),
                    "a bool must be 0 or 1");
  const std::string array = key + Raw(std::uint32_t{9});
  ExpectFileRefused(FileOf({array + Raw(std::uint32_t{9}) + std::string(64, '\0')}, {}, ""),
                    "arrays of arrays");
  ExpectFileRefused(FileOf({array + Raw(std::uint32_t{6}) + Raw(std::uint64_t{1} << 62)}, {}, ""),
                    "array elements");
  ExpectFileRefused(
      FileOf({array + Raw(std::uint32_t{8}) + Raw(std::uint64_t{1}) + Raw(~std::uint64_t{0})}, {},
             ""),
      "are expected from byte");
  ExpectFileRefused(FileOf({RawName("") + Raw(std::uint32_t{0}) + "x"}, {}, ""),
                    "a key has no name");
  const std::string one = key + Raw(std::uint32_t{0}) + "x";
  ExpectFileRefused(FileOf({one, one}, {}, ""), "key 'k' appears twice");
  for (const std::uint32_t alignment : {0u, 33u}) {
    ExpectFileRefused(
        FileOf({RawName("general.alignment") + Raw(std::uint32_t{4}) + Raw(alignment)}, {}, ""),
        "must be a power of two");
  }
  ExpectFileRefused(
      FileOf({RawName("general.alignment") + Raw(std::uint32_t{10}) + Raw(std::uint64_t{32})}, {},
             ""),
      "expected type u32, found u64");
}

TEST_F(GgufTest, RefusesBrokenTensors) {
  const std::string data(64, 'd');
  const auto refused = [&](const std::vector<std::string>& tensors, const std::string& message) {
    ExpectFileRefused(FileOf({}, tensors, data), message);
  };
  refused({TensorEntry(std::string(64, 'n'), {1}, 0, 0)}, "its name has 64 bytes, at most 63");
  refused({TensorEntry("", {1}, 0, 0)}, "a tensor has no name");
  refused({TensorEntry("w", {1, 1, 1, 1, 1}, 0, 0)}, "has 5 dimensions, at most 4");
  refused({TensorEntry("w", {1}, 4, 0)}, "type Q4_2 is not supported");
  refused({TensorEntry("w", {1}, 9, 0)}, "type Q8_1 is not supported");
  refused({TensorEntry("w", {1}, 33, 0)}, "type Q4_0_8_8 is not supported: llama.cpp no longer");
  refused({TensorEntry("w", {1}, 99, 0)}, "type number 99 is unknown");
  refused({TensorEntry("w", {~std::uint64_t{0}}, 0, 0)}, "negative or too large");
  refused({TensorEntry("w", {1ull << 32, 1ull << 32}, 0, 0)}, "negative or too large");
  refused({TensorEntry("w", {33}, 8, 0)}, "Q8_0 needs rows of a multiple of 32 values, found 33");
  refused({TensorEntry("w", {128}, 12, 0)}, "Q4_K needs rows of a multiple of 256 values");
  refused({TensorEntry("w", {}, 8, 0)}, "found 1");
  refused({TensorEntry("w", {17}, 0, 0)}, "tensor 'w' ends at byte");
  refused({TensorEntry("w", {1ull << 50}, 0, 0)}, "(incomplete download?)");
  refused({TensorEntry("w", {1}, 0, 32)}, "begins at 32, expected 0");
  refused({TensorEntry("w", {1}, 0, 0), TensorEntry("v", {1}, 0, 4)}, "begins at 4, expected 32");
  refused({TensorEntry("w", {1}, 0, 0), TensorEntry("w", {1}, 0, 32)}, "tensor 'w' appears twice");
}

TEST_F(GgufTest, PartsAreReadAsOneFromAnyOfThem) {
  const auto name = [&](int part) { return folder_ / fmt::format("m-0000{}-of-00003.gguf", part); };
  const auto write = [&](int part, std::uint16_t number, std::uint16_t count, std::int32_t tensors,
                         const std::vector<TensorInfo>& infos) {
    GgufMetadata metadata;
    if (part == 1) metadata.Add("general.architecture", std::string("llama"));
    metadata.Add("split.no", number);
    metadata.Add("split.count", count);
    metadata.Add("split.tensors.count", tensors);
    const auto writer = CreateGguf(name(part), metadata, infos);
    for (const TensorInfo& info : infos)
      writer->Write(BytesOfVector(std::string(info.bytes(), 'a' + part)));
    writer->Finish();
  };
  // The first part often has keys alone.
  write(1, 0, 3, 3, {});
  write(2, 1, 3, 3, {{"b", DType::kF32, {2}}, {"c", BlockFormat::kQ4_K, {256}}});
  ExpectRefused([&] { OpenGguf(name(2)); }, "part 2 of 3 of a model, and part 3 is missing: ");
  write(3, 2, 3, 3, {{"d", DType::kF32, {1}}});
  for (const int part : {1, 2, 3}) {
    const auto reader = OpenGguf(name(part));
    EXPECT_EQ(reader->Require<std::string>("general.architecture"), "llama");
    EXPECT_EQ(*std::get_if<std::string>(ReadGgufMetadata(name(part)).Find("general.architecture")),
              "llama");
    ASSERT_EQ(reader->tensors().size(), 3u);
    EXPECT_EQ(AsString(reader->Bytes(*reader->Find("c"))), std::string(144, 'c'));
    EXPECT_EQ(AsString(reader->Bytes(*reader->Find("d"))), "dddd");
    EXPECT_EQ(reader->FileOf(*reader->Find("d")), name(3).string());
  }
  // A part under another name, of another model, or with a tensor of another part.
  fs::copy_file(name(2), folder_ / "b.gguf");
  ExpectRefused([&] { OpenGguf(folder_ / "b.gguf"); },
                "its keys say part 2 of 3, its name says part 1 of 1");
  write(3, 1, 3, 3, {{"d", DType::kF32, {1}}});
  ExpectRefused([&] { OpenGguf(name(1)); }, "its keys say part 2 of 3, its name says part 3 of 3");
  write(3, 2, 4, 3, {{"d", DType::kF32, {1}}});
  ExpectRefused([&] { OpenGguf(name(1)); }, "its keys say part 3 of 4, its name says part 3 of 3");
  write(3, 2, 3, 3, {});
  ExpectRefused([&] { OpenGguf(name(1)); },
                "split.tensors.count is 3, but the 3 files hold 2 tensors");
  write(3, 2, 3, 3, {{"b", DType::kF32, {1}}});
  ExpectRefused([&] { OpenGguf(name(1)); }, "tensor 'b' appears twice, it is also in");
}

TEST_F(GgufTest, EveryTruncationIsRefused) {
  const fs::path path = folder_ / "a.gguf";
  const auto writer = CreateGguf(path, AllTypes(), {{"w", DType::kF32, {8}}});
  writer->Write(BytesOfVector(std::string(32, 'w')));
  writer->Finish();
  for (std::size_t size = fs::file_size(path); size-- > 0;) {
    fs::resize_file(path, size);
    ExpectRefused([&] { OpenGguf(path); }, "a.gguf");
  }
}

// The bytes behind the end of a mapped file can be read, and no sanitizer sees it. Behind these
// copies it does, also one byte behind a string.
TEST_F(GgufTest, NoHeadIsReadBeyondItsEnd) {
  const fs::path path = folder_ / "a.gguf";
  CreateGguf(path, AllTypes(), {})->Finish();
  const std::string whole = ReadTextFile(path);
  const auto read = [&](std::size_t size) {
    const std::vector<char> copy(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    return ReadGgufHead(std::as_bytes(std::span(copy)), "a.gguf");
  };
  const std::size_t head = whole.find_last_not_of('\0') + 1;  // without the padding
  EXPECT_EQ(read(whole.size()).values.entries().size(), AllTypes().entries().size());
  for (std::size_t size = head; size-- > 0;) ExpectRefused([&] { read(size); }, "a.gguf");
}

// Each is found without a walk over the others: with one, this would take minutes.
TEST_F(GgufTest, ManyKeysAreFound) {
  GgufMetadata metadata;
  constexpr std::uint32_t kKeys = 300'000;
  for (std::uint32_t i = 0; i < kKeys; ++i) metadata.Add(fmt::format("k{}", i), i);
  for (std::uint32_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(*GetGguf<std::uint32_t>(metadata, fmt::format("k{}", i), "a.gguf"), i);
  }
  EXPECT_EQ(metadata.Find("k"), nullptr);
  EXPECT_FALSE(metadata.Add("k7", std::uint32_t{8}));
  EXPECT_EQ(*GetGguf<std::uint32_t>(metadata, "k7", "a.gguf"), 7U);
}

TEST_F(GgufTest, WriterRefusesWhatReadersRefuse) {
  const auto refused = [&](const GgufMetadata& metadata, std::vector<TensorInfo> tensors,
                           const std::string& message) {
    ExpectRefused([&] { CreateGguf(folder_ / "a.gguf", metadata, tensors); }, message);
    EXPECT_EQ(folder_.files(), 0u);
  };
  GgufMetadata twice = One("k", 1.0f);
  twice.Add("k", 2.0f);
  refused(twice, {}, "key 'k' cannot be set twice");
  refused(One("general.alignment", std::uint32_t{64}), {}, "key 'general.alignment' cannot be set");
  refused(One("k", GgufArray(std::monostate())), {}, "array of arrays");
  refused({}, {{"w", DType::kU8, {1}}}, "GGUF has no type U8");
  refused({}, {{"w", DType::kF32, {1}}, {"w", DType::kF32, {1}}}, "'w' is declared twice");
  refused({}, {{std::string(64, 'n'), DType::kF32, {1}}}, "1 to 63 bytes");
  refused({}, {{"w", DType::kF32, {}}}, "shape []");
  refused({}, {{"w", DType::kF32, {1, 1, 1, 1, 1}}}, "shape [1, 1, 1, 1, 1]");
  refused({}, {{"w", DType::kF32, {1}, true}}, "is not possible in GGUF");
  refused({}, {{"w", BlockFormat::kIQ4_NL, {64, 16}}}, "IQ4_NL needs rows of a multiple of 32");
}

TEST_F(GgufTest, NothingIsLeftWithoutFinish) {
  {
    const auto writer = CreateGguf(folder_ / "a.gguf", {}, {{"w", DType::kF32, {2}}});
    writer->Write(BytesOfVector(std::string("1234")));
    EXPECT_THAT(ErrorOf([&] { writer->Finish(); }).what(), HasSubstr("'w' is incomplete: 4 of 8"));
  }
  EXPECT_EQ(folder_.files(), 0u);
}

}  // namespace
}  // namespace qlora
