// A Llama whose rows have 256 values, as the larger blocks of ggml need, and adapters for it.
#ifndef QLORA_TESTS_CONVERT_WIDE_MODEL_H_
#define QLORA_TESTS_CONVERT_WIDE_MODEL_H_

#include <cmath>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "convert/convert_fixture.h"
#include "io/float_encoding.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "io/tensor_file.h"

namespace qlora {

inline constexpr std::int64_t kWide = 256;

// Nearly normal values of this standard deviation.
inline std::vector<float> NormalValues(std::int64_t count, double deviation, std::uint64_t seed) {
  const RandomKey key = MakeKey(seed, RandomPlace::kTest);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double sum = 0;
    for (std::size_t k = 0; k < 12; ++k) sum += RandomUniform(key, 12 * i + k);
    values[i] = static_cast<float>(deviation * (sum - 6));
  }
  return values;
}

// Writes tensors of random values; the deviation of each follows from its name.
template <typename Deviation>
void WriteRandomTensors(const fs::path& file, const std::vector<TensorInfo>& infos,
                        const StringMap& metadata, const Deviation& deviation) {
  const auto writer = CreateSafetensors(file, infos, metadata);
  std::uint64_t seed = 1;
  for (const TensorInfo& info : infos) {
    const bool is_norm = info.shape.size() == 1;
    const std::vector<float> values = is_norm
                                          ? std::vector<float>(info.elements(), 1.0f)
                                          : NormalValues(info.elements(), deviation(info), seed);
    std::vector<std::byte> bytes(info.bytes());
    EXPECT_EQ(EncodeFloats(info.dtype, values, bytes), -1);
    writer->Write(bytes);
    ++seed;
  }
  writer->Finish();
}

// The linears of a layer and their inputs and outputs, all of 256 values but for keys and values.
inline std::vector<std::pair<std::string, std::int64_t>> WideLinears() {
  return {{"self_attn.q_proj", kWide},     {"self_attn.k_proj", kWide / 2},
          {"self_attn.v_proj", kWide / 2}, {"self_attn.o_proj", kWide},
          {"mlp.gate_proj", kWide},        {"mlp.up_proj", kWide},
          {"mlp.down_proj", kWide}};
}

// dir: is made; 2 layers with 4 heads and 2 heads of keys.
inline void WriteWideModel(const fs::path& dir, DType dtype = DType::kF16) {
  fs::create_directories(dir);
  Json config = ReadJsonFile(kGolden / "llama-tiny" / "config.json");
  config["hidden_size"] = kWide;
  config["intermediate_size"] = kWide;
  config["head_dim"] = kWide / 4;
  WriteTextFile(dir / "config.json", config.dump());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(kGolden / "llama-tiny" / name, dir / name);
  }
  std::vector<TensorInfo> infos = {{"model.embed_tokens.weight", dtype, {288, kWide}},
                                   {"model.norm.weight", dtype, {kWide}},
                                   {"lm_head.weight", dtype, {288, kWide}}};
  for (int l = 0; l < 2; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    for (const auto& [name, outputs] : WideLinears()) {
      infos.push_back({layer + name + ".weight", dtype, {outputs, kWide}});
    }
    infos.push_back({layer + "input_layernorm.weight", dtype, {kWide}});
    infos.push_back({layer + "post_attention_layernorm.weight", dtype, {kWide}});
  }
  WriteRandomTensors(dir / "model.safetensors", infos, {},
                     [](const TensorInfo&) { return 1.0 / std::sqrt(double{kWide}); });
}

// An adapter of rank 4 whose change has this deviation; weights of the model have 1/16.
inline void WriteWideAdapter(const fs::path& dir, double deviation) {
  constexpr std::int64_t kRank = 4;
  fs::create_directories(dir);
  fs::copy_file(kGolden / "llama-tiny" / "adapter" / "adapter_config.json",
                dir / "adapter_config.json");
  std::vector<TensorInfo> infos;
  for (int l = 0; l < 2; ++l) {
    for (const auto& [name, outputs] : WideLinears()) {
      const std::string path =
          "base_model.model.model.layers." + std::to_string(l) + "." + name + ".";
      infos.push_back({path + "lora_A.weight", DType::kF32, {kRank, kWide}});
      infos.push_back({path + "lora_B.weight", DType::kF32, {outputs, kRank}});
    }
  }
  // The scale is alpha / r = 2; a product sums over 4 ranks.
  WriteRandomTensors(dir / "adapter_model.safetensors", infos, {{"format", "pt"}},
                     [&](const TensorInfo& info) {
                       return info.name.find("lora_A") != std::string::npos ? 1 : deviation / 4;
                     });
}

}  // namespace qlora

#endif  // QLORA_TESTS_CONVERT_WIDE_MODEL_H_
