// GGUF files of families without golden values in the tree: they are read as the models that they
// were made from. Values of real classes are in inference/family_golden_test.cc.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "adapter/expert_stack.h"
#include "adapter/lora.h"
#include "config/gguf_names.h"
#include "config/gguf_numbers.h"
#include "convert/family_models.h"
#include "convert/gguf_base.h"
#include "convert/gguf_rewrite.h"
#include "convert/stored_values.h"
#include "export/adapter_fixture.h"
#include "export/gguf/gguf_metadata.h"
#include "gguf/gguf.h"
#include "io/float_encoding.h"
#include "model/checkpoint.h"
#include "model/checkpoint_tensors.h"
#include "qlora/model.h"

namespace qlora {
namespace {

class GgufFamiliesTest : public AdapterFormatsTest {
 protected:
  fs::path WriteModel(const Json& json) {
    const fs::path dir = root_ / json.at("model_type").get<std::string>();
    WriteFamilyModel(dir, json);
    return dir;
  }
  fs::path WriteGguf(const fs::path& dir) {
    ExportOptions options = ExportTo(dir.filename().string() + ".gguf");
    options.model_name_or_path = dir;
    options.verify = "false";
    Export(context_, options);
    return options.output;
  }
};

TEST_F(GgufFamiliesTest, TheLossIsThatOfTheCheckpoint) {
  for (const Json& json : FamilyConfigs()) {
    SCOPED_TRACE(FormatJson(json.at("model_type")));
    const fs::path dir = WriteModel(json);
    const double loss = LossOf(dir, "", "false");
    EXPECT_GT(loss, 4);
    EXPECT_NEAR(LossOf(WriteGguf(dir), "", "false"), loss, 1e-5 * loss);
  }
}

// As checkpoints are made of files.
TEST_F(GgufFamiliesTest, InTheOrderOfTheCheckpointTensorsAreItsOwn) {
  const auto values_of = [](const TensorReader& reader, const TensorInfo& tensor) {
    std::vector<float> values(tensor.elements());
    DecodeFloats(tensor.dtype, reader.Bytes(tensor), values);
    return values;
  };
  for (const Json& json : FamilyConfigs()) {
    const auto model_type = json.at("model_type").get<std::string>();
    // Its file is one of a granite, whose gate and up are two linears.
    if (model_type == "granitemoehybrid") continue;
    SCOPED_TRACE(model_type);
    const fs::path dir = WriteModel(json);
    const fs::path file = WriteGguf(dir);
    const DecoderConfig config = LoadForCheckpoint(file);
    const auto found = OpenCheckpoint(file, config);
    const auto expected = OpenCheckpoint(dir, LoadDecoderConfig(dir));
    StoredValues stored(config, *found);
    std::map<std::string, const TensorInfo*> by_name;
    for (const TensorInfo& tensor : found->tensors()) {
      by_name[stored.NameOf(tensor.name)] = &tensor;
    }
    EXPECT_EQ(by_name.size(), expected->tensors().size());
    for (const TensorInfo& tensor : expected->tensors()) {
      SCOPED_TRACE(tensor.name);
      const std::string prefix = DecoderPrefix(*expected);
      const bool is_in_decoder = tensor.name.starts_with(prefix);
      const auto one =
          by_name.find(is_in_decoder ? "model." + tensor.name.substr(prefix.size()) : tensor.name);
      ASSERT_NE(one, by_name.end());
      EXPECT_EQ(one->second->shape, tensor.shape);
      std::vector<float> a = values_of(*found, *one->second);
      const std::vector<float> b = values_of(*expected, tensor);
      ASSERT_EQ(a.size(), b.size());
      // w - 1, A_log and router.scale are rounded on their way.
      const bool is_exact =
          !stored.Changes(one->second->name) && !tensor.name.ends_with("router.scale");
      stored.Apply(one->second->name, a);
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], is_exact ? 0 : 4e-7 * (1 + std::abs(b[i]))) << i;
      }
    }
    EXPECT_EQ(stored.Note(), "");
  }
}

// Gate and up of all experts in one tensor, and no width but that of experts.
TEST_F(GgufFamiliesTest, ExpertsHaveOtherForms) {
  const auto join = [](std::vector<RewrittenTensor>& tensors) {
    for (std::size_t i = 0; i + 1 < tensors.size(); ++i) {
      const std::size_t at = tensors[i].info.name.find("ffn_gate_exps");
      if (at == std::string::npos) continue;
      RewrittenTensor& gate = tensors[i];
      const RewrittenTensor up = tensors[i + 1];
      EXPECT_NE(up.info.name.find("ffn_up_exps"), std::string::npos);
      std::vector<std::byte> both;
      const std::size_t size = up.bytes.size() / up.info.shape[0];
      for (std::int64_t e = 0; e < up.info.shape[0]; ++e) {
        for (const RewrittenTensor* part : {&std::as_const(gate), &up}) {
          const auto begin = part->bytes.begin() + static_cast<std::ptrdiff_t>(e * size);
          both.insert(both.end(), begin, begin + static_cast<std::ptrdiff_t>(size));
        }
      }
      gate.info.name.replace(at, 13, "ffn_gate_up_exps");
      gate.info.shape[1] *= 2;
      gate.bytes = both;
      tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  };
  for (const Json& json : FamilyConfigs()) {
    // Gemma 4 has its experts in one form, beside an MLP.
    const auto type = json.at("model_type").get<std::string>();
    if (!json.contains("num_experts") || type.starts_with("gemma4")) continue;
    SCOPED_TRACE(FormatJson(json.at("model_type")));
    const fs::path file = WriteGguf(WriteModel(json));
    const double loss = LossOf(file, "", "false");
    const bool is_lfm2 = json.at("model_type") == "lfm2_moe";
    const auto keys = [&](GgufMetadata& all) {
      const std::string prefix = std::get<std::string>(*all.Find("general.architecture")) + ".";
      if (!is_lfm2) all = WithKey(all, prefix + "feed_forward_length", nullptr);
    };
    RewriteGguf(file, keys, join);
    EXPECT_EQ(LossOf(file, "", "false"), loss);
    if (!is_lfm2) continue;
    const GgufValue softmax = std::uint32_t{1};
    RewriteGguf(file, [&](GgufMetadata& all) {
      all = WithKey(all, "lfm2moe.expert_gating_func", &softmax);
    });
    EXPECT_THROW(LoadDecoderConfig(file), Error);
  }
}

// Parts of one linear that a mixture of types stores in two: Q4_K for rows of 32 is Q5_0, Q6_K
// Q8_0.
TEST_F(GgufFamiliesTest, PartsOfOneLinearMayHaveTwoTypes) {
  const std::string linear = "model.layers.2.linear_attn.in_proj_qkvz.weight";
  const auto values_of = [&](const fs::path& path) {
    const std::unique_ptr<TensorReader> reader = OpenCheckpoint(path, LoadDecoderConfig(path));
    const TensorInfo& tensor = *reader->Find(linear);
    EXPECT_EQ(tensor.dtype, DType::kF32);
    std::vector<float> values(tensor.elements());
    DecodeFloats(tensor.dtype, reader->Bytes(tensor), values);
    return values;
  };
  for (const Json& json : FamilyConfigs()) {
    if (json.at("model_type") != "qwen3_next") continue;
    const fs::path dir = WriteModel(json);
    ExportOptions options = ExportTo("mixed.gguf");
    options.model_name_or_path = dir;
    options.outtype = "q4_k_m";
    options.verify = "false";
    Export(context_, options);
    const std::unique_ptr<GgufReader> file = OpenGguf(options.output);
    EXPECT_NE(file->Find("blk.2.attn_qkv.weight")->dtype,
              file->Find("blk.2.attn_gate.weight")->dtype);
    const std::vector<float> expected = values_of(dir);
    const std::vector<float> found = values_of(options.output);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      // Half a step of Q5_0: a 32nd of the largest value of a block.
      ASSERT_NEAR(found[i], expected[i], 0.04) << i;
    }
    EXPECT_LT(LossOf(options.output, "", "false"), 20);
  }
}

// Also where the rows and columns of the file's weights have another order or scale: adapters keep
// that of the checkpoint.
TEST_F(GgufFamiliesTest, AdaptersOfTheCheckpointFitTheFile) {
  std::vector<fs::path> models;
  for (const Json& json : FamilyConfigs()) {
    // Its file is that of a granite, whose modules have other names.
    if (json.at("model_type") != "granitemoehybrid") models.push_back(WriteModel(json));
  }
  // Others have a window that llama.cpp ignores, and files of a shorter context.
  for (const char* name : {"gemma2-tiny", "gemma3-tiny", "llama-tiny", "llama3-tiny",
                           "mixtral-tiny", "qwen2-tiny", "qwen3-tiny", "qwen3moe-tiny"}) {
    models.push_back(kGolden / name);
  }
  for (const fs::path& dir : models) {
    SCOPED_TRACE(dir.filename());
    const fs::path file = WriteGguf(dir);
    AdapterConfig all;
    all.r = 3;
    all.lora_alpha = 6;
    all.target_modules = std::string("all-linear");
    all.target_parameters = ExpertParameters(LoadDecoderConfig(dir));
    // llama.cpp ignores its adapter.
    all.exclude_modules = std::vector<std::string>{"per_layer_model_projection"};
    const fs::path adapter = WriteRandom(dir.string(), all, dir.filename().string() + "-lora", 7);
    const std::vector<double> expected = TokensOf(dir, {adapter});
    // Most files have the sums of the checkpoint. In others value heads have another order, and
    // norms of what is gated magnify errors. Two rows of a B in each other's place change
    // hundredths.
    const double tolerance = LoadDecoderConfig(file).delta_rule.tiled ? 2e-4 : 2e-5;
    const auto expect_same = [&](const std::vector<double>& found) {
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], tolerance) << "token " << i;
      }
    };
    expect_same(TokensOf(file, {adapter}));
    const fs::path llama =
        Convert(dir.string(), {adapter}, dir.filename().string() + "-lora.gguf", "gguf");
    expect_same(TokensOf(file, {llama}));

    const LoraAdapter loaded = LoraAdapter::Load(adapter, LoadDecoderConfig(file), HostMemory());
    loaded.Save(root_ / "saved", DType::kF32);
    // Experts of some families are written as parameters, in another form.
    expect_same(TokensOf(dir, {root_ / "saved"}));
    const auto saved = ReadAll(root_ / "saved" / "adapter_model.safetensors");
    const auto before = ReadAll(adapter / "adapter_model.safetensors");
    if (!WritesParameters(loaded.config(), LoadDecoderConfig(dir))) ExpectSame(saved, before);
  }
}

// The scale of Gemma 2's scores goes into q_proj of the file, and out again.
TEST_F(GgufFamiliesTest, AFileOfGemma2HasTheWeightsOfTheCheckpoint) {
  const fs::path dir = kGolden / "gemma2-tiny";
  const DecoderConfig expected = LoadDecoderConfig(dir);
  const fs::path file = WriteGguf(dir);
  const DecoderConfig found = LoadDecoderConfig(file);
  EXPECT_NE(GgufScoreFactor(expected), 1);
  EXPECT_FLOAT_EQ(found.attention_scale, expected.attention_scale);
  const auto q_of = [](const fs::path& path, const DecoderConfig& config) {
    const auto reader = OpenCheckpoint(path, config);
    const TensorInfo& tensor = *reader->Find("model.layers.0.self_attn.q_proj.weight");
    std::vector<float> values(tensor.elements());
    DecodeFloats(tensor.dtype, reader->Bytes(tensor), values);
    return values;
  };
  const std::vector<float> q = q_of(file, found);
  const std::vector<float> of_checkpoint = q_of(dir, expected);
  ASSERT_EQ(q.size(), of_checkpoint.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    // The factor, its inverse and both products are rounded.
    ASSERT_NEAR(q[i], of_checkpoint[i], 0x1p-21 * std::abs(of_checkpoint[i])) << i;
  }
  // A file of the file has the same again.
  ExportOptions again = ExportTo("again.gguf");
  again.model_name_or_path = file;
  again.verify = "false";
  Export(context_, again);
  EXPECT_NEAR(LossOf(again.output, "", "false"), LossOf(file, "", "false"), 1e-6);
  // Without the key it is a model of the scale that llama.cpp has for it, which computes the same.
  const double loss = LossOf(file, "", "false");
  RewriteGguf(file, [](GgufMetadata& all) { all = WithKey(all, kGgufQueryScalar, nullptr); });
  EXPECT_NEAR(LossOf(file, "", "false"), loss, 1e-5);
  EXPECT_EQ(GgufScoreFactor(LoadDecoderConfig(file)), 1);
}

// Without the scales of experts, which are in the B of its file, an adapter would be another one.
TEST_F(GgufFamiliesTest, ScalesOfExpertsLeadBackToTheAdapter) {
  const std::vector<Json> families = FamilyConfigs();
  const auto gemma4 = std::ranges::find_if(
      families, [](const Json& json) { return json.contains("enable_moe_block"); });
  const fs::path dir = WriteModel(*gemma4);
  const DecoderConfig decoder = LoadDecoderConfig(dir);
  AdapterConfig down = Targeting({}, 2, 4);
  down.module_prefix = decoder.module_prefix;
  down.target_parameters = {"experts.down_proj"};
  const fs::path adapter = WriteRandom(dir.string(), down, "lora", 7);
  const fs::path file = Convert(dir.string(), {adapter}, "lora.gguf", "gguf");
  const fs::path back = Convert(dir.string(), {file}, "back", "peft");
  ExpectSame(ReadAll(back / "adapter_model.safetensors"),
             ReadAll(adapter / "adapter_model.safetensors"), 1e-6);
  RewriteGguf(file, [](GgufMetadata& all) { all = WithKey(all, kGgufExpertScales, nullptr); });
  try {
    ReadGgufValues(file, decoder);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("without the scales of"), std::string::npos)
        << error.what();
  }
  // Of gate and up there are none.
  AdapterConfig gate_up = Targeting({}, 2, 4);
  gate_up.target_parameters = {"experts.gate_up_proj"};
  const fs::path other = WriteRandom(dir.string(), gate_up, "gate_up", 7);
  const fs::path other_file = Convert(dir.string(), {other}, "gate_up.gguf", "gguf");
  EXPECT_EQ(OpenGguf(other_file)->values().Find(kGgufExpertScales), nullptr);
}

TEST_F(GgufFamiliesTest, AnAdapterThatLlamaCppIgnoresIsRefused) {
  const std::vector<Json> families = FamilyConfigs();
  const auto gemma4 = std::ranges::find_if(
      families, [](const Json& json) { return json.at("model_type") == "gemma4_text"; });
  const fs::path dir = WriteModel(*gemma4);
  AdapterConfig one;
  one.r = 2;
  one.target_modules = std::vector<std::string>{"per_layer_model_projection"};
  const fs::path adapter = WriteRandom(dir.string(), one, "lora", 7);
  // It is one of the model, and merges.
  EXPECT_NE(LossOf(dir, adapter, "false"), LossOf(dir, "", "false"));
  ExportOptions options = ExportTo("merged.gguf");
  options.model_name_or_path = dir;
  options.adapter = {adapter};
  options.merge_base = "original";
  options.verify = "false";
  Export(context_, options);
  EXPECT_NEAR(LossOf(options.output, "", "false"), LossOf(dir, adapter, "false"), 1e-5);
  try {
    Convert(dir.string(), {adapter}, "lora.gguf", "gguf");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("llama.cpp ignores it"), std::string::npos);
  }
}

// In 4 bits as a checkpoint, and merged into those 4 bits: what the model computes that is
// quantized as it is loaded.
TEST_F(GgufFamiliesTest, CheckpointsOfGemma4KeepTheForm) {
  for (const Json& json : FamilyConfigs()) {
    const auto type = json.at("model_type").get<std::string>();
    if (!type.starts_with("gemma4")) continue;
    SCOPED_TRACE(type);
    const fs::path dir = WriteModel(json);
    const bool has_experts = json.contains("enable_moe_block");
    Quantize(dir, type + "-nf4");
    const double loss = LossOf(root_ / (type + "-nf4"), "", "auto");
    EXPECT_NEAR(loss, LossOf(dir, "", "true"), has_experts ? 0.2 : 1e-5);
    const Json skipped = ReadJsonFile(root_ / (type + "-nf4") / "config.json")
                             .at("quantization_config")
                             .at("llm_int8_skip_modules");
    const Json router = "model.language_model.layers.5.router.proj";
    EXPECT_EQ(std::ranges::count(skipped, router), has_experts ? 1 : 0);
    AdapterConfig all;
    all.r = 3;
    all.lora_alpha = 6;
    all.target_modules = std::string("all-linear");
    all.target_parameters = ExpertParameters(LoadDecoderConfig(dir));
    const fs::path adapter = WriteRandom(dir.string(), all, type + "-lora", 7);
    ExportOptions options = ExportTo(type + "-merged");
    options.model_name_or_path = dir;
    options.adapter = {adapter};
    options.format = "hf";
    options.merge_base = "nf4";
    options.outtype = "f32";
    options.verify = "false";
    Export(context_, options);
    EXPECT_NEAR(LossOf(options.output, "", "false"), LossOf(dir, adapter, "true"), 1e-5);
  }
}

TEST_F(GgufFamiliesTest, BlocksOfDraftsAreLeftOut) {
  const std::vector<Json> families = FamilyConfigs();
  const auto qwen = std::ranges::find_if(
      families, [](const Json& json) { return json.at("model_type") == "qwen3_5_text"; });
  const fs::path file = WriteGguf(WriteModel(*qwen));
  const double loss = LossOf(file, "", "false");
  const std::int64_t layers = LoadDecoderConfig(file).num_hidden_layers;
  RewriteGguf(
      file,
      [&](GgufMetadata& all) {
        const GgufValue blocks = static_cast<std::uint32_t>(layers + 1);
        all = WithKey(all, "qwen35.block_count", &blocks);
        all.Add("qwen35.nextn_predict_layers", std::uint32_t{1});
      },
      [&](std::vector<RewrittenTensor>& tensors) {
        for (const char* part : {"nextn.eh_proj", "attn_q"}) {
          tensors.push_back({{fmt::format("blk.{}.{}.weight", layers, part), DType::kF32, {8, 8}},
                             std::vector<std::byte>(256)});
        }
      });
  EXPECT_EQ(LoadDecoderConfig(file).num_hidden_layers, layers);
  EXPECT_EQ(LossOf(file, "", "false"), loss);
}

// Files of others hold keys and values of layers that attend to those of another.
TEST_F(GgufFamiliesTest, KeysThatNoLayerReadsAreLeftOut) {
  const std::vector<Json> families = FamilyConfigs();
  const auto gemma4 = std::ranges::find_if(
      families, [](const Json& json) { return json.at("model_type") == "gemma4_text"; });
  const fs::path file = WriteGguf(WriteModel(*gemma4));
  const double loss = LossOf(file, "", "false");
  RewriteGguf(file, {}, [](std::vector<RewrittenTensor>& tensors) {
    for (const char* name : {"blk.4.attn_k.weight", "blk.4.attn_v.weight"}) {
      tensors.push_back({{name, DType::kF32, {16, 32}}, std::vector<std::byte>(4 * 16 * 32)});
    }
    tensors.push_back({{"blk.4.attn_k_norm.weight", DType::kF32, {8}}, std::vector<std::byte>(32)});
  });
  EXPECT_EQ(LossOf(file, "", "false"), loss);
  RewriteGguf(file, {}, [](std::vector<RewrittenTensor>& tensors) {
    tensors.push_back({{"blk.4.attn_k.bias", DType::kF32, {16}}, std::vector<std::byte>(64)});
  });
  EXPECT_THROW(LossOf(file, "", "false"), Error);
}

// Its linears can be quantized as they are loaded.
TEST_F(GgufFamiliesTest, ATableOfLayersInBlocksMakesNoQuantizedModel) {
  const std::vector<Json> families = FamilyConfigs();
  Json gemma4 = *std::ranges::find_if(
      families, [](const Json& json) { return json.at("model_type") == "gemma4_text"; });
  gemma4["hidden_size_per_layer_input"] = 16;
  const fs::path file = WriteGguf(WriteModel(gemma4));
  RewriteGguf(file, {}, [](std::vector<RewrittenTensor>& tensors) {
    for (RewrittenTensor& tensor : tensors) {
      if (tensor.info.name != "per_layer_token_embd.weight") continue;
      tensor.info.dtype = BlockFormat::kQ8_0;
      tensor.bytes.assign(tensor.info.bytes(), std::byte{0});
    }
  });
  const DecoderConfig config = LoadDecoderConfig(file);
  EXPECT_FALSE(CheckpointTensors(*OpenCheckpoint(file, config), config).is_quantized());
}

TEST_F(GgufFamiliesTest, ACapOfLogitsIsPositive) {
  const std::vector<Json> families = FamilyConfigs();
  const auto gemma4 = std::ranges::find_if(
      families, [](const Json& json) { return json.at("model_type") == "gemma4_text"; });
  const fs::path file = WriteGguf(WriteModel(*gemma4));
  for (const float cap : {-5.0F, HUGE_VALF, std::nanf("")}) {
    RewriteGguf(file, [&](GgufMetadata& all) {
      const GgufValue value = cap;
      all = WithKey(all, "gemma4.final_logit_softcapping", &value);
    });
    EXPECT_THROW(LoadDecoderConfig(file), Error) << cap;
  }
}

// What is read from a file can be written to the next one.
TEST_F(GgufFamiliesTest, KeysAreWrittenAsTheyWereRead) {
  for (const Json& json : FamilyConfigs()) {
    SCOPED_TRACE(FormatJson(json.at("model_type")));
    const fs::path path = WriteGguf(WriteModel(json));
    const DecoderConfig config = LoadDecoderConfig(path);
    const std::unique_ptr<GgufReader> file = OpenGguf(path);
    GgufMetadata again;
    AddModelMetadata(config, "model", 0, again);
    for (const auto& [key, value] : again.entries()) {
      if (key == "general.name") continue;
      ASSERT_NE(file->values().Find(key), nullptr) << key;
      EXPECT_TRUE(*file->values().Find(key) == value) << key;
    }
    // And nothing is lost.
    const std::string prefix = GgufArchitectureOf(config) + ".";
    for (const auto& [key, value] : file->values().entries()) {
      if (!key.starts_with(prefix)) continue;
      EXPECT_NE(again.Find(key), nullptr) << key;
    }
  }
}

}  // namespace
}  // namespace qlora
