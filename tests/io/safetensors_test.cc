#include "io/safetensors.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/random.h"
#include "io/safetensors_fixture.h"
#include "io/safetensors_writer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<TensorInfo> kSome = {
    {"b.weight", DType::kBF16, {3, 5}}, {"a.weight", DType::kF32, {2, 2}},
    {"empty", DType::kF16, {0, 7}},     {"scalar", DType::kI64, {}},
    {"c.mask", DType::kBool, {3}},      {"c.codes", DType::kU8, {5, 1}}};

TEST_F(SafetensorsTest, BytesAreThoseOfTheReferenceWriter) {
  const fs::path path = folder_ / "a.safetensors";
  const std::vector<TensorInfo> tensors = {{"w", DType::kF16, {2}}, {"v", DType::kF32, {1, 1}}};
  const auto writer = CreateSafetensors(path, tensors, {});
  writer->Write(BytesOfVector(std::string("wxyz")));
  writer->Write(BytesOfVector(std::string("ABCD")));
  writer->Finish();
  std::string header =
      R"({"__metadata__":{"format":"pt"},"v":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
      R"("w":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(ReadTextFile(path), FileWith(header, "ABCDwxyz"));
}

// As many as the shard of a large mixture of experts in 4 bits has.
TEST_F(SafetensorsTest, ReadsManyTensors) {
  constexpr int kMany = 110'000;
  std::string header = "{";
  for (int i = 0; i < kMany; ++i) {
    header += fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, i, i + 1);
  }
  const fs::path path = folder_ / "many.safetensors";
  WriteTextFile(path, FileWith(header + "}", std::string(kMany, 'x')));
  EXPECT_EQ(std::ssize(OpenSafetensors(path)->tensors()), kMany);
}

TEST_F(SafetensorsTest, RoundTripKeepsEverything) {
  const fs::path path = folder_ / "a.safetensors";
  const StringMap metadata = {{"made by", "a \"test\"\n\xc3\xa9"}};
  const auto writer = CreateSafetensors(path, kSome, metadata);
  EXPECT_FALSE(fs::exists(path));
  WriteAll(*writer, kSome);
  EXPECT_EQ(folder_.files(), 1u);

  const auto reader = OpenSafetensors(path);
  EXPECT_THAT(NamesOf(*reader),
              ElementsAre("scalar", "a.weight", "b.weight", "empty", "c.codes", "c.mask"));
  EXPECT_THAT(reader->metadata(),
              ElementsAre(std::pair("format", "pt"), std::pair("made by", "a \"test\"\n\xc3\xa9")));
  for (std::size_t i = 0; i < kSome.size(); ++i) {
    const TensorInfo* tensor = reader->Find(kSome[i].name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->dtype, kSome[i].dtype);
    EXPECT_EQ(tensor->shape, kSome[i].shape);
    const auto expected = Content(i, kSome[i]);
    const auto bytes = reader->Bytes(*tensor);
    EXPECT_EQ(AsString(bytes), AsString(BytesOfVector(expected)));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % BytesOf(tensor->dtype, 1), 0u);
    reader->Release(*tensor);
    EXPECT_EQ(AsString(reader->Bytes(*tensor)), AsString(BytesOfVector(expected)));
    EXPECT_EQ(reader->FileOf(*tensor), path.string());
  }
  EXPECT_EQ(reader->Find("missing"), nullptr);
}

TEST_F(SafetensorsTest, EmptyFileOfNoTensors) {
  const fs::path path = folder_ / "a.safetensors";
  CreateSafetensors(path, {}, {})->Finish();
  EXPECT_TRUE(OpenSafetensors(path)->tensors().empty());
}

TEST_F(SafetensorsTest, RandomFilesRoundTripAndRewriteByteEqual) {
  const RandomKey key = MakeKey(1, RandomPlace::kTest);
  std::uint64_t draw = 0;
  const auto random = [&](std::uint32_t below) { return RandomWords(key, draw++)[0] % below; };
  const TensorType types[] = {DType::kF64, DType::kF32,   DType::kF16,   DType::kBF16,
                              DType::kI64, DType::kI32,   DType::kI16,   DType::kI8,
                              DType::kU8,  Float8::kE4M3, Float8::kE8M0, DType::kBool};
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<TensorInfo> tensors(random(12));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].name = "t" + std::to_string(random(1000)) + "." + std::to_string(i);
      tensors[i].dtype = types[random(12)];
      for (std::uint32_t d = random(4); d > 0; --d) tensors[i].shape.push_back(random(6));
    }
    const fs::path path = folder_ / "a.safetensors";
    WriteAll(*CreateSafetensors(path, tensors, {}), tensors);
    const auto reader = OpenSafetensors(path);
    ASSERT_EQ(reader->tensors().size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorInfo* found = reader->Find(tensors[i].name);
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(AsString(reader->Bytes(*found)), AsString(BytesOfVector(Content(i, tensors[i]))));
    }
    const fs::path copy = folder_ / "b.safetensors";
    const auto writer = CreateSafetensors(copy, reader->tensors(), reader->metadata());
    for (const TensorInfo& tensor : reader->tensors()) writer->Write(reader->Bytes(tensor));
    writer->Finish();
    EXPECT_TRUE(ReadTextFile(copy) == ReadTextFile(path));
    // Wide types first, then by name. The place of empty tensors means nothing.
    std::vector<TensorInfo> found = reader->tensors();
    std::erase_if(found, [](const TensorInfo& tensor) { return tensor.bytes() == 0; });
    for (std::size_t i = 1; i < found.size(); ++i) {
      EXPECT_GE(BytesOf(found[i - 1].dtype, 1), BytesOf(found[i].dtype, 1));
      if (found[i - 1].dtype == found[i].dtype) {
        EXPECT_LT(found[i - 1].name, found[i].name);
      }
    }
  }
}

TEST_F(SafetensorsTest, BytesMayComeInPieces) {
  const fs::path path = folder_ / "a.safetensors";
  const std::vector<TensorInfo> tensors = {{"x", DType::kU8, {5}}, {"y", DType::kU8, {2}}};
  const auto writer = CreateSafetensors(path, tensors, {});
  for (const char* piece : {"ab", "", "cde", "f", "g"}) {
    writer->Write(BytesOfVector(std::string(piece)));
  }
  writer->Finish();
  const auto reader = OpenSafetensors(path);
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("x"))), "abcde");
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("y"))), "fg");
}

TEST_F(SafetensorsTest, TensorsOfUnknownSizeShrink) {
  const fs::path path = folder_ / "a.safetensors";
  const std::vector<TensorInfo> tensors = {{"state0", DType::kU8, {100}, true},
                                           {"x", DType::kF32, {1}},
                                           {"state1", DType::kU8, {1000}, true},
                                           {"gone", DType::kU8, {10}, true},
                                           {"whole", DType::kU8, {2}, true}};
  const auto writer = CreateSafetensors(path, tensors, {});
  EXPECT_THROW(writer->Shrink(101), Error);
  writer->Shrink(3);
  writer->Write(BytesOfVector(std::string("abc")));
  EXPECT_THROW(writer->Shrink(1), Error);
  writer->Write(BytesOfVector(std::string("ABCD")));
  writer->Shrink(5);
  writer->Write(BytesOfVector(std::string("defgh")));
  writer->Shrink(0);
  writer->Write(BytesOfVector(std::string("ij")));
  writer->Finish();
  const auto reader = OpenSafetensors(path);
  EXPECT_THAT(NamesOf(*reader), ElementsAre("x", "state0", "state1", "gone", "whole"));
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("x"))), "ABCD");
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("state0"))), "abc");
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("state1"))), "defgh");
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("whole"))), "ij");
  EXPECT_THAT(reader->Find("state1")->shape, ElementsAre(5));
}

TEST_F(SafetensorsTest, WriterRefusesWrongSizes) {
  const fs::path path = folder_ / "a.safetensors";
  {
    const auto writer = CreateSafetensors(path, {{"x", DType::kU8, {4}}}, {});
    EXPECT_THAT(ErrorOf([&] { writer->Finish(); }).what(), HasSubstr("'x' is incomplete: 0 of 4"));
    writer->Write(BytesOfVector(std::string("abc")));
    EXPECT_THAT(ErrorOf([&] { writer->Write(BytesOfVector(std::string("de"))); }).what(),
                HasSubstr("'x' has 4 bytes, but 5 came"));
    writer->Write(BytesOfVector(std::string("d")));
    EXPECT_THAT(ErrorOf([&] { writer->Write(BytesOfVector(std::string("e"))); }).what(),
                HasSubstr("after the last tensor"));
  }
  EXPECT_EQ(folder_.files(), 0u);
}

TEST_F(SafetensorsTest, WriterRefusesWhatTheFormatCannotHold) {
  const fs::path path = folder_ / "a.safetensors";
  const auto refused = [&](std::vector<TensorInfo> tensors, const std::string& message) {
    ExpectRefused([&] { CreateSafetensors(path, tensors, {}); }, message);
    ExpectRefused([&] { CreateShardedSafetensors(folder_.path(), tensors, {}, 1 << 20); }, message);
  };
  refused({{"x", DType::kU8, {1}}, {"x", DType::kU8, {1}}}, "'x' is declared twice");
  refused({{"", DType::kU8, {1}}}, "cannot be named ''");
  refused({{"__metadata__", DType::kU8, {1}}}, "cannot be named '__metadata__'");
  refused({{"x", BlockFormat::kQ8_0, {32}}}, "no type Q8_0");
  refused({{"x", DType::kF32, {-1}}}, "shape [-1]");
  refused({{"x", DType::kF32, {std::int64_t{1} << 40, std::int64_t{1} << 40}}}, "is not possible");
  refused({{"\xff", DType::kF32, {1}}}, "not valid UTF-8");
  EXPECT_EQ(folder_.files(), 0u);
}

TEST_F(SafetensorsTest, AHeaderMayFollowWhiteSpace) {
  const fs::path path = folder_ / "aligned.safetensors";
  WriteTextFile(path, FileWith("\t\n {\"x\": {\"dtype\": \"U8\", \"shape\": [2], "
                               "\"data_offsets\": [0, 2]}}  ",
                               "ab"));
  const auto reader = OpenSafetensors(path);
  ASSERT_EQ(reader->tensors().size(), 1u);
  EXPECT_EQ(reader->tensors()[0].name, "x");
}

TEST_F(SafetensorsTest, RefusesBrokenHeaders) {
  const fs::path path = folder_ / "bad.safetensors";
  WriteTextFile(path, "abc");
  ExpectRefused([&] { OpenSafetensors(path); }, "has 3 bytes");
  WriteTextFile(path, std::string(8, '\xff'));
  ExpectRefused([&] { OpenSafetensors(path); }, "claims a header of 18446744073709551615 bytes");
  WriteTextFile(path, FileWith("{}", "").substr(0, 9));
  ExpectRefused([&] { OpenSafetensors(path); }, "header needs 10 bytes, but the file has 9");

  ExpectHeaderRefused("", "", "does not start with '{'");
  ExpectHeaderRefused("[]", "", "does not start with '{'");
  ExpectHeaderRefused("{\"a\":", "", "not valid JSON at line 1");
  ExpectHeaderRefused("{} {}", "", "not valid JSON");
  ExpectHeaderRefused("{\"\xff\": 1}", "", "not valid JSON");
  ExpectHeaderRefused(R"({"__metadata__": 1})", "", "__metadata__ must be an object");
  ExpectHeaderRefused(R"({"__metadata__": {"a": 1}})", "", "key 'a': expected a string, found 1");
}

TEST_F(SafetensorsTest, RefusesBrokenTensors) {
  const auto one = [](const std::string& body) { return "{\"x\": {" + body + "}}"; };
  const std::string data(16, 'd');
  ExpectHeaderRefused(R"({"x": 1})", "", "tensor 'x': expected a JSON object");
  ExpectHeaderRefused(one(R"("shape": [1], "data_offsets": [0, 4])"), "", "key 'dtype' is missing");
  ExpectHeaderRefused(one(R"("dtype": "F32", "data_offsets": [0, 4])"), "",
                      "key 'shape' is missing");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": [1])"), "", "data_offsets must be");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": [1], "data_offsets": [0])"), "",
                      "data_offsets must be");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": [1], "data_offsets": [-4, 0])"), "",
                      "unsigned");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": [1], "data_offsets": [0.0, 4])"), "",
                      "unsigned");
  ExpectHeaderRefused(one(R"("dtype": "F8_E5M2", "shape": [1], "data_offsets": [0, 1])"), "d",
                      "dtype F8_E5M2 is not supported");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": "x", "data_offsets": [0, 4])"), "",
                      "expected a list");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": [1.5], "data_offsets": [0, 4])"), "",
                      "expected an integer");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": [-1], "data_offsets": [0, 4])"), "",
                      "negative or too large");
  ExpectHeaderRefused(
      one(R"("dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0])"), "",
      "negative or too large");
  ExpectHeaderRefused(
      one(R"("dtype": "F32", "shape": [2147483648, 2147483648, 4], "data_offsets": [0, 0])"), "",
      "negative or too large");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": [3], "data_offsets": [0, 16])"), data,
                      "F32 [3] takes 12 bytes, but data_offsets are [0, 16]");
  ExpectHeaderRefused(one(R"("dtype": "F32", "shape": [1], "data_offsets": [4, 0])"), data,
                      "data_offsets are [4, 0]");
  ExpectHeaderRefused(one(R"("dtype": "U8", "shape": [15], "data_offsets": [1, 16])"), data,
                      "begins at 1, but the tensor before it ends at 0 (hole)");
  ExpectHeaderRefused(one(R"("dtype": "U8", "shape": [15], "data_offsets": [0, 15])"), data,
                      "trailing bytes belong to no tensor");
  const std::string u8 = R"({"dtype": "U8", "shape": [8], "data_offsets": )";
  ExpectHeaderRefused("{\"x\": " + u8 + "[0, 8]}, \"y\": " + u8 + "[4, 12]}}", data, "(overlap)");
  ExpectHeaderRefused("{\"x\": " + u8 + "[0, 8]}, \"y\": " + u8 + "[0, 8]}}", data, "(overlap)");
  ExpectHeaderRefused("{\"x\": " + u8 + "[0, 8]}, \"x\": " + u8 + "[8, 16]}}", data,
                      "key 'x' appears twice");
  ExpectHeaderRefused(
      one(R"("dtype": "U8", "shape": [1], "data_offsets": [18446744073709551615, 18446744073709551616])"),
      data, "unsigned");
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const fs::path path = folder_ / "a.safetensors";
  WriteAll(*CreateSafetensors(path, kSome, {}), kSome);
  const std::size_t whole = fs::file_size(path);
  for (std::size_t size = whole; size-- > 0;) {
    fs::resize_file(path, size);
    const Error error = ErrorOf([&] { OpenSafetensors(path); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(error.what(), HasSubstr("incomplete download?"));
    if (size + 1 == whole) {
      EXPECT_THAT(error.what(), HasSubstr("expected " + std::to_string(whole) + " bytes, found " +
                                          std::to_string(size)));
      EXPECT_THAT(error.what(), HasSubstr("'c.mask'"));
    }
  }
}

TEST_F(SafetensorsTest, SaysWhatOtherFilesAre) {
  const std::pair<std::string, std::string> cases[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"},
      {"GGUF\x03........................", "it is a GGUF file"},
      {"PK\x03\x04..............", "save_pretrained"},
      {"<!DOCTYPE html><html></html>", "looks like a web page"}};
  for (const auto& [content, message] : cases) {
    WriteTextFile(folder_ / "a.safetensors", content);
    ExpectRefused([&] { OpenSafetensors(folder_ / "a.safetensors"); }, message);
  }
}

TEST_F(SafetensorsTest, SaysWhatDirectoriesLack) {
  ExpectRefused([&] { OpenSafetensors(folder_ / "nowhere"); }, "No such file or directory");
  ExpectRefused([&] { OpenSafetensors(folder_.path()); },
                "holds neither model.safetensors nor model.safetensors.index.json");
  WriteTextFile(folder_ / "model-00002-of-00002.safetensors", "");
  WriteTextFile(folder_ / "model-00001-of-00002.safetensors", "");
  ExpectRefused(
      [&] { OpenSafetensors(folder_.path()); },
      "holds model-00001-of-00002.safetensors, but neither model.safetensors nor "
      "model.safetensors.index.json, which lists the files of a model in parts: download");
  WriteTextFile(folder_ / "adapter_model.safetensors", "");
  ExpectRefused([&] { OpenSafetensors(folder_.path()); }, "holds a LoRA adapter");
  fs::remove(folder_ / "adapter_model.safetensors");
  WriteTextFile(folder_ / "pytorch_model-00001-of-00002.bin", "");
  ExpectRefused([&] { OpenSafetensors(folder_.path()); }, "safe_serialization=True");
  ExpectRefused([&] { OpenSafetensors(folder_ / "pytorch_model-00001-of-00002.bin"); },
                "safe_serialization=True");
}

TEST(SafetensorsShared, ReadsACheckpointOfTheReferenceWriter) {
  const fs::path folder = SharedFolder() / "models" / "stories260K-hf";
  if (!fs::exists(folder)) GTEST_SKIP() << "no " << folder;
  const auto reader = OpenSafetensors(folder);
  EXPECT_NE(reader->Find("model.embed_tokens.weight"), nullptr);
  // Writing what was read gives the same bytes as the reference library wrote.
  TemporaryFolder out;
  const auto writer =
      CreateSafetensors(out / "model.safetensors", reader->tensors(), reader->metadata());
  for (const TensorInfo& tensor : reader->tensors()) writer->Write(reader->Bytes(tensor));
  writer->Finish();
  EXPECT_TRUE(ReadTextFile(out / "model.safetensors") ==
              ReadTextFile(folder / "model.safetensors"));
}

}  // namespace
}  // namespace qlora
