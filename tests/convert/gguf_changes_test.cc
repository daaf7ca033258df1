// GGUF files with one key or tensor that is changed, dropped or added: what llama.cpp refuses is
// refused, and so is what it applies and we do not. tests/interop/gguf_changes.mjs compares many
// more with llama.cpp itself, whose verdicts these are.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend_factory.h"
#include "convert/convert_fixture.h"
#include "convert/gguf_rewrite.h"
#include "model/checkpoint.h"
#include "model/golden.h"
#include "model/weights.h"

namespace qlora {
namespace {

using RewrittenTensors = std::vector<RewrittenTensor>;

RewrittenTensor& Find(RewrittenTensors& tensors, const std::string& name) {
  return *std::ranges::find_if(tensors,
                               [&](const auto& tensor) { return tensor.info.name == name; });
}

// A tensor of F32 that holds one number.
RewrittenTensor Filled(const std::string& name, std::vector<std::int64_t> shape, float value) {
  RewrittenTensor tensor{{name, DType::kF32, std::move(shape)}, {}};
  const std::vector<float> values(tensor.info.elements(), value);
  const auto bytes = std::as_bytes(std::span(values));
  tensor.bytes.assign(bytes.begin(), bytes.end());
  return tensor;
}

class GgufChangesTest : public ConvertTest {
 protected:
  fs::path Write(const std::string& model) {
    ExportOptions options = ExportTo(model + ".gguf");
    options.model_name_or_path = kGolden / model;
    options.verify = "false";
    Export(context_, options);
    return options.output;
  }

  // "" where the changed file is read, otherwise the message.
  std::string Verdict(const fs::path& file, const std::function<void(GgufMetadata&)>& keys,
                      const std::function<void(RewrittenTensors&)>& tensors = {}) {
    const fs::path changed = root_ / "changed.gguf";
    fs::copy_file(file, changed, fs::copy_options::overwrite_existing);
    RewriteGguf(changed, keys, tensors);
    try {
      LoadOptions load;
      load.load_in_4bit = false;
      const auto backend = MakeCpuBackend(context_, DType::kF32);
      LoadWeights(context_, *backend, changed, LoadDecoderConfig(changed), load);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
  }

  // With another value of a key of the architecture.
  std::string WithValue(const fs::path& file, const std::string& key, const GgufValue& value) {
    return Verdict(file, [&](GgufMetadata& keys) {
      const std::string name =
          std::get<std::string>(*keys.Find("general.architecture")) + "." + key;
      if (keys.Find(name) == nullptr) {
        keys.Add(name, value);
      } else {
        keys = WithKey(keys, name, &value);
      }
    });
  }
};

TEST_F(GgufChangesTest, KeysThatLlamaCppReadsForAllModels) {
  using Pair = std::pair<const char*, GgufValue>;
  for (const std::string& model : kGoldenModels) {
    const fs::path file = Write(model);
    ASSERT_EQ(Verdict(file, {}), "") << model;
    for (const auto& [key, value] :
         {Pair{"attention.causal", false}, Pair{"attention.causal", std::uint32_t{1}},
          Pair{"expert_group_count", std::uint32_t{2}}, Pair{"vocab_size", std::int32_t{10}},
          Pair{"embedding_length_out", std::uint64_t{16}}, Pair{"pooling_type", 1.0F},
          Pair{"rope.scaling.alpha", std::uint32_t{1}},
          Pair{"rope.scaling.finetuned", std::uint32_t{1}},
          Pair{"attention.key_length", std::int32_t{16}}}) {
      EXPECT_THAT(WithValue(file, key, value), testing::HasSubstr(key)) << model;
    }
    // They change nothing.
    for (const auto& [key, value] :
         {Pair{"attention.causal", true}, Pair{"pooling_type", std::uint32_t{1}},
          Pair{"expert_group_count", std::uint32_t{0}}, Pair{"somebody.else", 1.0F}}) {
      EXPECT_EQ(WithValue(file, key, value), "") << model << " " << key;
    }
  }
}

// Layers with a window have the heads of the others in these.
TEST_F(GgufChangesTest, SizesOfLayersWithAWindow) {
  for (const char* model : {"gemma2-tiny", "gemma3-tiny"}) {
    const fs::path file = Write(model);
    for (const char* key :
         {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}) {
      EXPECT_THAT(WithValue(file, key, std::uint32_t{2}), testing::HasSubstr(key));
    }
  }
}

TEST_F(GgufChangesTest, ADenseModelHasNoExperts) {
  const fs::path file = Write("qwen3-tiny");
  for (const char* key : {"expert_count", "expert_used_count"}) {
    EXPECT_THAT(WithValue(file, key, std::uint32_t{4}), testing::HasSubstr(key));
    EXPECT_EQ(WithValue(file, key, std::uint32_t{0}), "");
  }
}

// ggml adds and multiplies by float32 alone.
TEST_F(GgufChangesTest, NormsAndBiasesAreF32InTheirShape) {
  for (const std::string& model : kGoldenModels) {
    const fs::path file = Write(model);
    const std::string norm = "output_norm.weight";
    for (const DType type : {DType::kF16, DType::kBF16}) {
      EXPECT_THAT(Verdict(file, {},
                          [&](RewrittenTensors& tensors) {
                            RewrittenTensor& tensor = Find(tensors, norm);
                            tensor.info.dtype = type;
                            tensor.bytes.assign(BytesOf(type, tensor.info.elements()), {});
                          }),
                  testing::HasSubstr("expected F32"))
          << model;
    }
    const auto shaped = [&](const std::vector<std::int64_t>& shape) {
      return Verdict(file, {},
                     [&](RewrittenTensors& tensors) { Find(tensors, norm).info.shape = shape; });
    };
    const std::int64_t size = LoadDecoderConfig(file).hidden_size;
    EXPECT_EQ(shaped({1, size}), "") << model;
    EXPECT_THAT(shaped({size, 1}), testing::HasSubstr("its keys expect")) << model;
    EXPECT_THAT(shaped({2, size / 2}), testing::HasSubstr("its keys expect")) << model;
  }
}

TEST_F(GgufChangesTest, EachTensorIsNeeded) {
  for (const std::string& model : kGoldenModels) {
    const fs::path file = Write(model);
    std::vector<std::string> names;
    const auto reader = OpenGguf(file);
    for (const TensorInfo& tensor : reader->tensors()) names.push_back(tensor.name);
    // Of one layer: what llama.cpp has a default for, biases and factors of frequencies, may lack.
    for (const std::string& name : names) {
      if (name.starts_with("blk.") && !name.starts_with("blk.0.")) continue;
      const bool may_lack =
          name.ends_with(".bias") || name == "output.weight" || name == "rope_freqs.weight";
      if (may_lack) continue;
      EXPECT_NE(Verdict(file, {},
                        [&](RewrittenTensors& tensors) {
                          std::erase_if(tensors, [&](const RewrittenTensor& tensor) {
                            return tensor.info.name == name;
                          });
                        }),
                "")
          << model << " " << name;
    }
  }
}

// Without them the model would be another one; an input_scale is of activations that are rounded.
TEST_F(GgufChangesTest, TensorsThatAreNotRead) {
  const fs::path file = Write("qwen3-tiny");
  const auto with = [&](const std::string& name, std::vector<std::int64_t> shape) {
    return Verdict(file, {}, [&](RewrittenTensors& tensors) {
      tensors.push_back(Filled(name, std::move(shape), 1.5F));
    });
  };
  for (const char* name :
       {"blk.0.nonsense.weight", "output.bias", "blk.0.attn_norm.bias", "rope_freqs.weight",
        "nonsense.input_scale", "output.scale", "token_embd.input_scale", "output.input_scale",
        "blk.0.attn_norm.input_scale"}) {
    EXPECT_THAT(with(name, {1}), testing::HasSubstr(name));
  }
  EXPECT_THAT(with("blk.0.attn_q.input_scale", {2}), testing::HasSubstr("attn_q.input_scale"));
  EXPECT_EQ(with("blk.0.attn_q.input_scale", {1}), "");
  EXPECT_EQ(with("blk.0.attn_q.scale", {1}), "");
  EXPECT_THAT(with("blk.0.attn_q.scale", {2}), testing::HasSubstr("blk.0.attn_q.scale"));
}

// Graphs take some of the scales that llama.cpp loads, and are others without the rest.
TEST_F(GgufChangesTest, ScalesThatGraphsLeaveOut) {
  const auto with = [&](const fs::path& file, const std::string& name) {
    return Verdict(file, {}, [&](RewrittenTensors& tensors) {
      tensors.push_back(Filled("blk.0." + name + ".scale", {1}, 1.5F));
    });
  };
  const fs::path llama = Write("llama-tiny");
  EXPECT_EQ(with(llama, "ffn_up"), "");
  EXPECT_EQ(with(llama, "attn_v"), "");
  for (const char* model : {"gemma3-tiny", "smollm3-tiny", "phi3-tiny", "qwen2-tiny"}) {
    const fs::path file = Write(model);
    EXPECT_THAT(with(file, "ffn_down"), testing::HasSubstr("blk.0.ffn_down.scale")) << model;
    EXPECT_EQ(with(file, "attn_output"), "") << model;
  }
  const fs::path experts = Write("qwen3moe-tiny");
  EXPECT_EQ(with(experts, "ffn_down_exps"), "");
  EXPECT_THAT(with(experts, "ffn_gate_inp"), testing::HasSubstr("blk.0.ffn_gate_inp.scale"));
}

// An NVFP4 head has scales, which llama.cpp loads beside no other head.
TEST_F(GgufChangesTest, ScalesOfTheHead) {
  const fs::path file = Write("llama-tiny");
  const auto with = [&](const char* name, bool is_nvfp4) {
    return Verdict(file, {}, [&](RewrittenTensors& tensors) {
      RewrittenTensor& head = Find(tensors, "output.weight");
      if (is_nvfp4) {
        head.info.dtype = BlockFormat::kNVFP4;
        head.bytes.assign(head.info.bytes(), {});
      }
      tensors.push_back(Filled(name, {1}, 1.5F));
    });
  };
  for (const char* name : {"output.scale", "output.input_scale"}) {
    EXPECT_EQ(with(name, true), "") << name;
    EXPECT_THAT(with(name, false), testing::HasSubstr(name));
  }
}

TEST_F(GgufChangesTest, FilesOfOllamaAreToldAsThat) {
  const fs::path file = Write("gemma3-tiny");
  for (const char* name : {"v.patch_embd.weight", "mm.0.weight", "mtp.fc.weight"}) {
    EXPECT_THAT(
        Verdict(file, {},
                [&](RewrittenTensors& tensors) {
                  tensors.push_back(Filled(name, {8, 8}, 0));
                }),
        testing::AllOf(testing::HasSubstr("Ollama's own converter"), testing::HasSubstr(name)));
  }
}

}  // namespace
}  // namespace qlora
