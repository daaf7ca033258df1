// A checkpoint in FP8, made of a tiny model of tests/golden, beside one with the same values in
// float32.
#include <gmock/gmock.h>

#include <cmath>

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "io/bnb.h"
#include "io/float_encoding.h"
#include "io/fp8.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "qlora/inspect.h"

namespace qlora {
namespace {

using testing::HasSubstr;

// Files of one model: in FP8, and with the same values in float32.
enum class Scales { kTensor, kBlocks };

struct Made {
  TensorInfo info;
  std::vector<std::byte> bytes;
};

std::vector<std::byte> Encoded(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(BytesOf(dtype, values.size()));
  EXPECT_LT(EncodeFloats(dtype, values, bytes), 0);
  return bytes;
}

std::uint8_t NearestE4M3(float value) {
  int best = 0;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    if (std::abs(FromE4M3(code) - value) < std::abs(FromE4M3(best) - value)) best = code;
  }
  return static_cast<std::uint8_t>(best);
}

class Fp8ModelTest : public ConvertTest {
 protected:
  static constexpr std::int64_t kBlock = 16;

  // Writes the folders "fp8" and "plain".
  void Make(Scales scales) {
    const auto source = OpenSafetensors(kGolden / "llama-tiny");
    std::vector<Made> fp8;
    std::vector<Made> plain;
    for (const TensorInfo& info : source->tensors()) {
      std::vector<float> values(info.elements());
      DecodeFloats(info.dtype, source->Bytes(info), values);
      if (info.name.find("_proj") == std::string::npos) {
        const Made same{{info.name, DType::kBF16, info.shape}, Encoded(DType::kBF16, values)};
        fp8.push_back(same);
        plain.push_back(same);
        continue;
      }
      const std::int64_t cols = info.shape[1];
      const std::int64_t per_row = scales == Scales::kTensor ? 1 : cols / kBlock;
      std::vector<float> scale(scales == Scales::kTensor ? 1 : info.shape[0] / kBlock * per_row);
      // Of bfloat16, so that both types hold them.
      for (std::size_t i = 0; i < scale.size(); ++i) {
        scale[i] = ToFloat(ToBFloat16(0.001f * static_cast<float>(i % 7 + 1)));
      }
      Made codes{{info.name, Float8::kE4M3, info.shape}, {}};
      for (std::int64_t i = 0; i < info.elements(); ++i) {
        const std::int64_t block =
            scales == Scales::kTensor ? 0 : i / cols / kBlock * per_row + i % cols / kBlock;
        const std::uint8_t code = NearestE4M3(values[i] / scale[block]);
        codes.bytes.push_back(static_cast<std::byte>(code));
        values[i] = FromE4M3(code) * scale[block];
      }
      const std::vector<std::int64_t> shape = scales == Scales::kTensor
                                                  ? std::vector<std::int64_t>{}
                                                  : std::vector{info.shape[0] / kBlock, per_row};
      const DType type = scales == Scales::kTensor ? DType::kBF16 : DType::kF32;
      fp8.push_back(codes);
      fp8.push_back({{info.name + "_scale_inv", type, shape}, Encoded(type, scale)});
      const std::string module = info.name.substr(0, info.name.size() - 6);
      fp8.push_back({{module + "activation_scale", type, {}}, Encoded(type, {3})});
      plain.push_back({info, Encoded(DType::kF32, values)});
    }
    Json config = ReadJsonFile(kGolden / "llama-tiny" / "config.json");
    Write("plain", plain, config);
    config["quantization_config"] = {{"quant_method", "fp8"}, {"activation_scheme", "static"}};
    Write("fp8", fp8, config);
  }

  void Write(const char* name, const std::vector<Made>& tensors, const Json& config) {
    const fs::path folder = root_ / name;
    fs::create_directories(folder);
    WriteTextFile(folder / "config.json", config.dump());
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(kGolden / "llama-tiny" / file, folder / file,
                    fs::copy_options::overwrite_existing);
    }
    std::vector<TensorInfo> infos;
    for (const Made& tensor : tensors) infos.push_back(tensor.info);
    const auto writer = CreateSafetensors(folder / "model.safetensors", infos, {});
    for (const Made& tensor : tensors) writer->Write(tensor.bytes);
    writer->Finish();
  }
};

TEST_F(Fp8ModelTest, ComputesAsTheSameValuesInFloat32) {
  for (const Scales scales : {Scales::kTensor, Scales::kBlocks}) {
    Make(scales);
    for (const char* four_bit : {"false", "true"}) {
      EXPECT_EQ(LossOf(root_ / "fp8", "", four_bit), LossOf(root_ / "plain", "", four_bit));
    }
  }
}

TEST_F(Fp8ModelTest, IsQuantizedToFourBits) {
  Make(Scales::kBlocks);
  Quantize(root_ / "fp8", "nf4");
  EXPECT_EQ(LossOf(root_ / "nf4", "", "auto"), LossOf(root_ / "fp8", "", "true"));
  const Json config = ReadJsonFile(root_ / "nf4" / "config.json");
  EXPECT_EQ(config["quantization_config"]["quant_method"], "bitsandbytes");
  const auto found = OpenSafetensors(root_ / "nf4");
  for (const TensorInfo& tensor : found->tensors()) {
    EXPECT_EQ(tensor.name.find("_scale"), std::string::npos) << tensor.name;
  }
  // The type that transformers computes in, and that --dequantize writes.
  EXPECT_EQ(ReadBnb(*found, "model.layers.0.mlp.up_proj.weight").layout.dtype, DType::kBF16);
  Quantize(root_ / "nf4", "again", true);
  EXPECT_EQ(OpenSafetensors(root_ / "again")->Find("model.layers.0.mlp.up_proj.weight")->dtype,
            DType::kBF16);
}

TEST_F(Fp8ModelTest, IsMergedInBfloat16) {
  Make(Scales::kTensor);
  ExportOptions options = ExportTo("merged");
  options.model_name_or_path = root_ / "fp8";
  options.adapter = {kGolden / "llama-tiny" / "adapter"};
  options.format = "hf";
  options.outtype = "auto";
  Export(context_, options);
  EXPECT_FALSE(ReadJsonFile(root_ / "merged" / "config.json").contains("quantization_config"));
  const auto found = OpenSafetensors(root_ / "merged");
  for (const TensorInfo& tensor : found->tensors()) {
    EXPECT_EQ(tensor.dtype, DType::kBF16) << tensor.name;
    EXPECT_EQ(tensor.name.find("_scale"), std::string::npos) << tensor.name;
  }
  // In float32 nothing is rounded.
  options.output = root_ / "merged-f32";
  options.outtype = "f32";
  Export(context_, options);
  const double expected = LossOf(root_ / "plain", options.adapter[0], "false");
  EXPECT_NEAR(LossOf(options.output, "", "false"), expected, 1e-5 * expected);
  options.output = root_ / "merged.gguf";
  options.format = "gguf";
  EXPECT_TRUE(Export(context_, options).verified);
}

TEST_F(Fp8ModelTest, IsInspectedAsStored) {
  Make(Scales::kTensor);
  const Inspection inspection = Inspect((root_ / "fp8").string());
  EXPECT_THAT(inspection.text, HasSubstr("linears in 8 bits (FP8)"));
  const Json json = ParseJson(inspection.json, "inspection");
  EXPECT_EQ(json["quantized_fp8"], true);
  EXPECT_EQ(json["tensors"]["F8_E4M3"]["tensors"], 14);
}

TEST_F(Fp8ModelTest, AMissingScaleIsNamed) {
  Make(Scales::kTensor);
  const auto source = OpenSafetensors(root_ / "fp8");
  const std::string lost = "model.layers.1.mlp.up_proj.weight_scale_inv";
  std::vector<Made> tensors;
  for (const TensorInfo& info : source->tensors()) {
    const auto bytes = source->Bytes(info);
    if (info.name != lost) tensors.push_back({info, {bytes.begin(), bytes.end()}});
  }
  Write("broken", tensors, ReadJsonFile(root_ / "fp8" / "config.json"));
  try {
    LossOf(root_ / "broken", "", "true");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(error.what(), HasSubstr("its scale '" + lost + "' is missing"));
    EXPECT_THAT(error.what(), HasSubstr("the model needs it"));
  }
}

}  // namespace
}  // namespace qlora
