#include "io/bnb.h"

#include <cstring>
#include <limits>

#include "base/file.h"
#include "base/random.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/test_util.h"
#include "qlora/context.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kName = "model.layers.0.mlp.up_proj.weight";
constexpr const char* kState = "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4";

// The tensors of a file as values, to be changed and written.
struct RawTensor {
  TensorInfo info;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

class BnbTest : public ::testing::Test {
 protected:
  BnbTest() : context_(1) {}

  std::vector<float> Values(std::int64_t count) const {
    std::vector<float> values(count);
    const RandomKey key = MakeKey(3, RandomPlace::kTest);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(RandomWords(key, i)[0]) / 4e9f - 0.5f;
    }
    return values;
  }

  QuantizedMatrix Quantized(const BnbLayout& layout, const std::vector<float>& values) {
    QuantizeOptions options;
    options.type = layout.type;
    options.block_size = layout.block_size;
    options.scale_type = layout.double_quant ? ScaleType::kDoubleBnb : ScaleType::kF32;
    options.scaler_block_size = layout.nested_block_size;
    const std::int64_t rows = layout.shape[0];
    const auto cols = static_cast<std::int64_t>(values.size()) / rows;
    return Quantize(context_, MakeView(values.data(), rows, cols), options);
  }

  // Writes one weight and a float neighbour of odd size, so that nothing is aligned by luck.
  fs::path WriteFile(const BnbLayout& layout, const QuantizedView& view) {
    const fs::path path = folder_ / "model.safetensors";
    std::vector<TensorInfo> tensors = BnbTensors(kName, layout);
    tensors.push_back({"norm", DType::kBF16, {3}});
    const auto writer = CreateSafetensors(path, tensors, {});
    WriteBnb(*writer, layout, view);
    writer->Write(BytesOfVector(std::string("abcdef")));
    writer->Finish();
    return path;
  }

  RawTensors Load(const fs::path& path) const {
    RawTensors out;
    const auto reader = OpenSafetensors(path);
    for (const TensorInfo& tensor : reader->tensors()) {
      out[tensor.name] = {tensor, AsString(reader->Bytes(tensor))};
    }
    return out;
  }
  fs::path Store(const RawTensors& tensors) const {
    const fs::path path = folder_ / "changed.safetensors";
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : tensors) {
      infos.push_back(tensor.info);
      infos.back().name = name;
    }
    const auto writer = CreateSafetensors(path, infos, {});
    for (const auto& [name, tensor] : tensors) writer->Write(BytesOfVector(tensor.bytes));
    writer->Finish();
    return path;
  }
  void ExpectStoredRefused(const RawTensors& tensors, const std::string& message) const {
    const auto reader = OpenSafetensors(Store(tensors));
    ExpectRefused([&] { ReadBnb(*reader, kName); }, message);
  }
  static void SetState(RawTensors& tensors, const std::string& text) {
    tensors[kState].bytes = text;
    tensors[kState].info.shape = {static_cast<std::int64_t>(text.size())};
  }

  RawTensors Good(bool double_quant = true) {
    const BnbLayout layout = {.shape = {6, 50}, .double_quant = double_quant};
    return Load(WriteFile(layout, Quantized(layout, Values(300)).view()));
  }

  Context context_;
  TemporaryFolder folder_;
};

TEST_F(BnbTest, RoundTripOfEveryForm) {
  for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
    for (const bool double_quant : {false, true}) {
      for (const std::int64_t block_size : {32, 64, 4096}) {
        for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
                 {7, 5}, {64, 129}, {1}, {2, 3, 50}, {300, 128}}) {
          const BnbLayout layout = {.type = type,
                                    .dtype = DType::kF16,
                                    .shape = shape,
                                    .block_size = block_size,
                                    .double_quant = double_quant,
                                    .nested_block_size = 64};
          std::int64_t count = 1;
          for (const std::int64_t size : shape) count *= size;
          const std::vector<float> values = Values(count);
          const QuantizedMatrix source = Quantized(layout, values);
          const fs::path path = WriteFile(layout, source.view());
          const auto reader = OpenSafetensors(path);
          ASSERT_TRUE(HasQuantState(*reader, kName));
          const BnbMatrix read = ReadBnb(*reader, kName);
          EXPECT_EQ(read.layout.type, type);
          EXPECT_EQ(read.layout.dtype, DType::kF16);
          EXPECT_EQ(read.layout.shape, shape);
          EXPECT_EQ(read.layout.block_size, block_size);
          EXPECT_EQ(read.layout.double_quant, double_quant);
          EXPECT_EQ(read.matrix.rows(), shape[0]);
          EXPECT_EQ(read.matrix.view().size(), count);

          std::vector<float> expected(values.size(), -7);
          std::vector<float> decoded(values.size(), 7);
          const std::int64_t rows = source.rows();
          Dequantize(context_, source.view(), MakeView(expected.data(), rows, source.cols()));
          Dequantize(context_, read.matrix.view(), MakeView(decoded.data(), rows, source.cols()));
          EXPECT_EQ(decoded, expected);

          // What was read writes the same bytes.
          const std::string before = ReadTextFile(path);
          WriteFile(read.layout, read.matrix.view());
          EXPECT_TRUE(ReadTextFile(path) == before);
          ReleaseBnb(*reader, kName);
        }
      }
    }
  }
}

TEST_F(BnbTest, StateTextIsPythons) {
  BnbLayout layout = {.shape = {6, 50}};
  const QuantizedMatrix matrix = Quantized(layout, Values(300));
  QuantizedView view = matrix.view();
  view.nested.offset = 0.1f;
  RawTensors tensors = Load(WriteFile(layout, view));
  EXPECT_EQ(tensors[kState].bytes,
            R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [6, 50], )"
            R"("nested_blocksize": 256, "nested_dtype": "float32", )"
            R"("nested_offset": 0.10000000149011612})");
  view.nested.offset = 1e-5f;
  tensors = Load(WriteFile(layout, view));
  EXPECT_THAT(tensors[kState].bytes, HasSubstr(R"("nested_offset": 9.999999747378752e-06})"));

  // A published file of bitsandbytes holds 81 bytes for this shape without double quantization.
  layout = {.dtype = DType::kF16, .shape = {6912, 1152}, .double_quant = false};
  const auto infos = BnbTensors(kName, layout);
  EXPECT_EQ(infos.back().elements(), 81);
  EXPECT_FALSE(infos.back().upper_bound);
}

TEST_F(BnbTest, NamesTypesAndShapesAreBitsandbytes) {
  const RawTensors tensors = Good();
  const std::string name = kName;
  ASSERT_EQ(tensors.size(), 7u);
  const auto& packed = tensors.at(name).info;
  EXPECT_EQ(packed.dtype, DType::kU8);
  EXPECT_THAT(packed.shape, ElementsAre(150, 1));
  EXPECT_EQ(tensors.at(name + ".absmax").info.dtype, DType::kU8);
  EXPECT_THAT(tensors.at(name + ".absmax").info.shape, ElementsAre(5));
  EXPECT_THAT(tensors.at(name + ".quant_map").info.shape, ElementsAre(16));
  EXPECT_THAT(tensors.at(name + ".nested_absmax").info.shape, ElementsAre(1));
  EXPECT_THAT(tensors.at(name + ".nested_quant_map").info.shape, ElementsAre(256));
  const RawTensors plain = Good(false);
  ASSERT_EQ(plain.size(), 5u);
  EXPECT_EQ(plain.at(name + ".absmax").info.dtype, DType::kF32);
  for (const auto& [piece, tensor] : tensors) {
    if (piece == name || piece == "norm") {
      EXPECT_EQ(BnbWeightOf(piece), "");
    } else {
      EXPECT_EQ(BnbWeightOf(piece), name);
    }
  }
  EXPECT_EQ(BnbWeightOf("x.bias.absmax"), "");
}

TEST_F(BnbTest, ReadsAnyOrderAndSpacingOfTheState) {
  RawTensors tensors = Good(false);
  SetState(tensors,
           " {\n\"shape\":[6,50],\"dtype\":\"float32\",\"blocksize\":64,\"quant_type\":\"nf4\"}  ");
  const auto reader = OpenSafetensors(Store(tensors));
  EXPECT_EQ(ReadBnb(*reader, kName).layout.dtype, DType::kF32);
}

TEST_F(BnbTest, ReadsOtherStorageTypes) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    RawTensors tensors = Good();
    tensors[kName].info.dtype = dtype;
    tensors[kName].info.shape = {75, 1};
    const auto reader = OpenSafetensors(Store(tensors));
    const BnbMatrix matrix = ReadBnb(*reader, kName);
    EXPECT_EQ(std::memcmp(matrix.matrix.view().packed, tensors[kName].bytes.data(), 150), 0);
  }
}

TEST_F(BnbTest, CopiesArraysThatAreNotAligned) {
  // A file of another writer: the arrays one byte off.
  const BnbLayout layout = {.shape = {6, 50}};
  const QuantizedMatrix source = Quantized(layout, Values(300));
  RawTensors tensors = Load(WriteFile(layout, source.view()));
  std::string header = R"({"pad":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  std::string data = "p";
  for (const auto& [name, tensor] : tensors) {
    header += ",\"" + name + "\":{\"dtype\":\"" + NameOf(tensor.info.dtype) +
              "\",\"shape\":" + Json(tensor.info.shape).dump() + ",\"data_offsets\":[" +
              std::to_string(data.size());
    data += tensor.bytes;
    header += "," + std::to_string(data.size()) + "]}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string content(8, '\0');
  const std::uint64_t size = header.size();
  std::memcpy(content.data(), &size, 8);
  WriteTextFile(folder_ / "odd.safetensors", content + header + data);
  const auto reader = OpenSafetensors(folder_ / "odd.safetensors");
  BnbMatrix matrix = ReadBnb(*reader, kName);
  const BnbMatrix moved = std::move(matrix);
  const QuantizedView view = moved.matrix.view();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.nested.map) % 4, 0u);
  EXPECT_EQ(std::memcmp(view.nested.map, source.view().nested.map, 1024), 0);
  EXPECT_EQ(std::memcmp(view.code, source.view().code, 64), 0);
  EXPECT_EQ(view.nested.absmax[0], source.view().nested.absmax[0]);
}

TEST_F(BnbTest, RefusesMissingPieces) {
  const RawTensors good = Good();
  for (const auto& [name, tensor] : good) {
    if (name == "norm") continue;
    RawTensors tensors = good;
    tensors.erase(name);
    if (name == std::string(kName) + ".nested_absmax") {  // then it is no double quantization
      ExpectStoredRefused(tensors, "unknown key 'nested_blocksize'");
    } else if (name == kState) {
      ExpectStoredRefused(tensors, "found none");
      EXPECT_FALSE(HasQuantState(*OpenSafetensors(Store(tensors)), kName));
    } else {
      ExpectStoredRefused(tensors, name + "' is missing");
    }
  }
  RawTensors tensors = good;
  tensors[std::string(kName) + ".quant_state.bitsandbytes__fp4"] = tensors[kState];
  ExpectStoredRefused(tensors, "found both");
}

TEST_F(BnbTest, RefusesSizesThatDoNotAgree) {
  const RawTensors good = Good();
  for (const auto& [name, tensor] : good) {
    if (name == "norm" || name == kState) continue;
    RawTensors tensors = good;
    const std::size_t bytes = BytesOf(tensor.info.dtype, 1);
    tensors[name].info.shape = {tensor.info.elements() + 1};
    tensors[name].bytes += std::string(bytes, '\0');
    ExpectStoredRefused(tensors, "tensor '" + name + "': expected");
    tensors[name].info.shape = {tensor.info.elements() - 1};
    tensors[name].bytes.resize(tensor.bytes.size() - bytes);
    ExpectStoredRefused(tensors, "tensor '" + name + "': expected");
  }
  RawTensors tensors = good;
  tensors[kName].info.dtype = DType::kI8;
  ExpectStoredRefused(tensors, "found 150 of I8");
  tensors = good;
  tensors[std::string(kName) + ".absmax"].info.dtype = DType::kI8;
  ExpectStoredRefused(tensors, "expected 5 values of U8, found 5 of I8");
}

TEST_F(BnbTest, RefusesBrokenStates) {
  const std::string start = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", )";
  const std::string nested =
      R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5)";
  const RawTensors good = Good();
  const auto refused = [&](const std::string& text, const std::string& message) {
    RawTensors tensors = good;
    SetState(tensors, text);
    ExpectStoredRefused(tensors, message);
    ExpectStoredRefused(tensors, kState);
  };
  refused("", "not valid JSON");
  refused("[1]", "expected a JSON object");
  refused(start + "\"shape\": [6, 50]" + nested + ", \"extra\": 1}", "unknown key 'extra'");
  refused(start + "\"shape\": [6, 50]" + nested + ", \"blocksize\": 64}", "appears twice");
  refused(start + "\"shape\": [6, 50]}", "key 'nested_blocksize' is missing");
  refused(start + "\"shape\": null" + nested + "}", "key 'shape' is missing");
  refused(start + "\"shape\": []" + nested + "}", "shape [] is not possible");
  refused(start + "\"shape\": [6, 0]" + nested + "}", "shape [6, 0] is not possible");
  refused(start + "\"shape\": [-6, -50]" + nested + "}", "is not possible");
  refused(start + "\"shape\": [4611686018427387904, 16]" + nested + "}", "is not possible");
  refused(R"({"quant_type": "fp4", "blocksize": 64, "dtype": "bfloat16", "shape": [6, 50])" +
              nested + "}",
          "expected \"nf4\" as in the tensor's name");
  refused(
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "int8", "shape": [6, 50])" + nested + "}",
      "key 'dtype': expected float32");
  for (const char* size : {"0", "-64", "48", "16", "8192"}) {
    refused(R"({"quant_type": "nf4", "dtype": "bfloat16", "shape": [6, 50], "blocksize": )" +
                std::string(size) + nested + "}",
            "are not powers of two from 32 to 4096");
  }
  const std::string shape = "\"shape\": [6, 50], ";
  refused(
      start + shape + R"("nested_blocksize": 3, "nested_dtype": "float32", "nested_offset": 0})",
      "are not powers of two");
  refused(
      start + shape + R"("nested_blocksize": 256, "nested_dtype": "float16", "nested_offset": 0})",
      "key 'nested_dtype'");
  refused(start + shape +
              R"("nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 1e300})",
          "is not a float32");
}

TEST_F(BnbTest, RefusesScalesThatAreNoNumbers) {
  const RawTensors good = Good();
  const float bad = std::numeric_limits<float>::quiet_NaN();
  for (const char* piece : {".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    RawTensors tensors = good;
    std::string& bytes = tensors[std::string(kName) + piece].bytes;
    std::memcpy(bytes.data() + bytes.size() - 4, &bad, 4);
    ExpectStoredRefused(tensors, std::string(piece) + "': value");
  }
  RawTensors plain = Good(false);
  std::memcpy(plain[std::string(kName) + ".absmax"].bytes.data() + 8, &bad, 4);
  ExpectStoredRefused(plain, ".absmax': value 2 is nan");
}

TEST_F(BnbTest, WriterRefusesOtherForms) {
  const BnbLayout layout = {.shape = {6, 50}};
  const std::vector<float> values = Values(300);
  const QuantizedMatrix good = Quantized(layout, values);
  const auto refused = [&](const BnbLayout& other, const QuantizedView& view) {
    ExpectRefused([&] { WriteFile(other, view); }, "not quantized in the form");
  };
  refused({.shape = {6, 51}}, good.view());
  refused({.shape = {6, 50}, .block_size = 128}, good.view());
  refused({.shape = {6, 50}, .double_quant = false}, good.view());
  refused({.shape = {6, 50}, .nested_block_size = 128}, good.view());
  ExpectRefused([&] { BnbTensors(kName, {.shape = {6, 50}, .block_size = 100}); }, "powers of two");
  ExpectRefused([&] { BnbTensors(kName, {.shape = {}}); }, "shape [] is not possible");
  ExpectRefused([&] { BnbTensors(kName, {.dtype = DType::kI8, .shape = {2, 2}}); }, "type I8");
}

TEST(BnbConfig, IsTransformers) {
  BnbConfig config;
  config.skip_modules = {"lm_head"};
  EXPECT_EQ(FormatBnbConfig(config).dump(2), R"({
  "_load_in_4bit": true,
  "_load_in_8bit": false,
  "bnb_4bit_compute_dtype": "bfloat16",
  "bnb_4bit_quant_storage": "uint8",
  "bnb_4bit_quant_type": "nf4",
  "bnb_4bit_use_double_quant": true,
  "llm_int8_enable_fp32_cpu_offload": false,
  "llm_int8_has_fp16_weight": false,
  "llm_int8_skip_modules": [
    "lm_head"
  ],
  "llm_int8_threshold": 6.0,
  "load_in_4bit": true,
  "load_in_8bit": false,
  "quant_method": "bitsandbytes"
})");
  config.type = QuantType::kFp4;
  config.double_quant = false;
  const Json json = FormatBnbConfig(config);
  EXPECT_EQ(json["bnb_4bit_quant_type"], "fp4");
  EXPECT_EQ(json["bnb_4bit_use_double_quant"], false);
  CheckBnbConfig(json, "config.json");
}

TEST(BnbConfig, RefusesOtherMethods) {
  const auto refused = [](const Json& json, const std::string& message) {
    ExpectRefused([&] { CheckBnbConfig(json, "config.json"); }, message);
  };
  refused(Json{{"quant_method", "gptq"}}, "config.json: quant_method 'gptq' is not supported");
  refused(Json{{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}, "load_in_4bit");
  refused(Json{{"load_in_4bit", true}}, "quant_method ''");
  CheckBnbConfig(Json{{"quant_method", "bitsandbytes"}, {"_load_in_4bit", true}}, "config.json");
}

TEST(BnbGolden, PyTorchsTensorsDecodeToPyTorchsValues) {
  const fs::path folder = SourceDir() / "tests" / "golden" / "nf4";
  Context context(1);
  for (const char* file : {"float32.safetensors", "bfloat16.safetensors"}) {
    const auto reader = OpenSafetensors(folder / file);
    const BnbMatrix matrix = ReadBnb(*reader, "weight");
    const TensorInfo* expected = reader->Find("dequantized");
    ASSERT_NE(expected, nullptr);
    EXPECT_EQ(matrix.layout.dtype, expected->dtype);
    EXPECT_EQ(matrix.layout.shape, expected->shape);
    std::vector<std::byte> decoded(expected->bytes());
    const std::int64_t cols = matrix.matrix.cols();
    Dequantize(context, matrix.matrix.view(),
               {decoded.data(), expected->dtype, matrix.matrix.rows(), cols, cols});
    EXPECT_TRUE(AsString(decoded) == AsString(reader->Bytes(*expected)));

    // Written again: the same pieces, byte for byte.
    TemporaryFolder out;
    const auto writer =
        CreateSafetensors(out / "a.safetensors", BnbTensors("weight", matrix.layout), {});
    WriteBnb(*writer, matrix.layout, matrix.matrix.view());
    writer->Finish();
    const auto again = OpenSafetensors(out / "a.safetensors");
    for (const TensorInfo& tensor : again->tensors()) {
      const TensorInfo* original = reader->Find(tensor.name);
      ASSERT_NE(original, nullptr) << tensor.name;
      EXPECT_EQ(original->shape, tensor.shape);
      EXPECT_TRUE(AsString(again->Bytes(tensor)) == AsString(reader->Bytes(*original)))
          << tensor.name;
    }
  }
}

}  // namespace
}  // namespace qlora
