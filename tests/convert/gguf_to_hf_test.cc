// Checkpoints of Hugging Face that are made of a GGUF file: the model, the configuration and the
// tokenizer of the file. Tokenizers by kind are in export/gguf_tokenizer_keys_test.cc.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "convert/config_json.h"
#include "convert/family_models.h"
#include "convert/gguf_rewrite.h"
#include "gguf/gguf.h"
#include "io/bnb.h"
#include "model/base_record.h"
#include "model/checkpoint.h"
#include "model/golden.h"
#include "pass/rope.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// All values of a tensor.
std::vector<float> ValuesOf(const TensorReader& reader, const TensorInfo& tensor) {
  std::vector<float> values(tensor.elements());
  DecodeFloats(tensor.dtype, reader.Bytes(tensor), values);
  return values;
}

class GgufToHfTest : public ConvertTest {
 protected:
  fs::path WriteGguf(const fs::path& model, const std::string& outtype = "f32") {
    ExportOptions options = ExportTo(model.filename().string() + "-" + outtype + ".gguf");
    options.model_name_or_path = model;
    options.outtype = outtype;
    options.verify = "false";
    Export(context_, options);
    return options.output;
  }
  ExportOptions ToHf(const fs::path& gguf, const std::string& name) const {
    ExportOptions options = ExportTo(name);
    options.model_name_or_path = gguf;
    options.format = "hf";
    return options;
  }
  ExportReport WriteHf(const fs::path& gguf, const std::string& name,
                       const std::string& outtype = "f32") {
    ExportOptions options = ToHf(gguf, name);
    options.outtype = outtype;
    return Export(context_, options);
  }
  // Random weights of every kind of a family; keys: of config.json.
  fs::path Model(const Json& keys) {
    const fs::path dir = root_ / keys.at("model_type").get<std::string>();
    WriteFamilyModel(dir, keys);
    return dir;
  }
};

// The decoders of a file and of the folder that was made of it.
void ExpectSameDecoder(DecoderConfig found, DecoderConfig file) {
  ASSERT_EQ(found.layers.size(), file.layers.size());
  for (std::size_t l = 0; l < file.layers.size(); ++l) {
    ASSERT_EQ(found.layers[l].rope < 0, file.layers[l].rope < 0) << l;
    if (file.layers[l].rope >= 0) {
      const RopeConfig& a = found.ropes[found.layers[l].rope_of_queries()];
      const RopeConfig& b = file.ropes[file.layers[l].rope_of_queries()];
      EXPECT_NEAR(a.attention_factor, b.attention_factor, 1e-6);
      EXPECT_EQ(a.query_scale_beta, b.query_scale_beta);
      EXPECT_EQ(a.interleaved, b.interleaved);
      for (const bool beyond : {false, true}) {
        const std::vector<double> x = RopeFrequencies(a, beyond);
        const std::vector<double> y = RopeFrequencies(b, beyond);
        ASSERT_EQ(x.size(), y.size());
        for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-6 * y[i]);
      }
    }
    file.layers[l] = file.layer(l);
    found.layers[l] = found.layer(l);
    found.layers[l].rope = file.layers[l].rope;
    found.layers[l].query_rope = file.layers[l].query_rope;
  }
  // Names, and what only the tensors of a GGUF file are.
  found.model_type = file.model_type;
  found.architecture = file.architecture;
  found.ropes = file.ropes;
  found.one_plus_norm = file.one_plus_norm;
  found.delta_rule.tiled = file.delta_rule.tiled;
  found.notes = file.notes;
  EXPECT_TRUE(found == file);
}

TEST_F(GgufToHfTest, GoldenModelsComeBack) {
  for (const std::string& name : kGoldenModels) {
    SCOPED_TRACE(name);
    const fs::path source = kGolden / name;
    const fs::path gguf = WriteGguf(source);
    const ExportReport report = WriteHf(gguf, name);
    EXPECT_TRUE(report.verified);
    EXPECT_LT(report.max_logprob_difference, 1e-6);
    EXPECT_TRUE(report.notes.empty());
    const DecoderConfig config = LoadDecoderConfig(root_ / name);
    ExpectSameDecoder(config, LoadDecoderConfig(gguf));
    // Mistral is a llama in GGUF.
    const std::string model_type = LoadDecoderConfig(source).model_type;
    EXPECT_EQ(config.model_type, model_type == "mistral" ? "llama" : model_type);

    // The tensors of the checkpoint that the file was made from.
    const auto written = OpenCheckpoint(root_ / name, config);
    const auto expected = OpenCheckpoint(source, LoadDecoderConfig(source));
    ASSERT_EQ(written->tensors().size(), expected->tensors().size());
    for (const TensorInfo& tensor : expected->tensors()) {
      SCOPED_TRACE(tensor.name);
      const TensorInfo* found = written->Find(tensor.name);
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->shape, tensor.shape);
      // Where the export to GGUF multiplies a part of the scale of scores in.
      if (name == "gemma2-tiny" && tensor.name.find("q_proj") != std::string::npos) continue;
      if (name == "gemma3-tiny" && tensor.name.find("q_norm") != std::string::npos) continue;
      const std::vector<float> a = ValuesOf(*written, *found);
      const std::vector<float> b = ValuesOf(*expected, tensor);
      // 1 + w of Gemma is rounded.
      const bool is_less_one =
          name.starts_with("gemma") && tensor.name.find("norm") != std::string::npos;
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], is_less_one ? 2e-7 : 0) << i;
      }
    }
  }
}

TEST_F(GgufToHfTest, OtherFamiliesComeBack) {
  for (const Json& keys : FamilyConfigs()) {
    const auto name = keys.at("model_type").get<std::string>();
    // A granite in GGUF, which without a rotary embedding has no class.
    if (name == "granitemoehybrid") continue;
    SCOPED_TRACE(name);
    const fs::path gguf = WriteGguf(Model(keys));
    ExpectSameDecoder(ParseDecoderConfig(ConfigJsonOf(*OpenGguf(gguf)), name),
                      LoadDecoderConfig(gguf));
    const ExportReport report = WriteHf(gguf, name + "-hf");
    EXPECT_LT(report.max_logprob_difference, 1e-6);
    const DecoderConfig config = LoadDecoderConfig(root_ / (name + "-hf"));
    ExpectSameDecoder(config, LoadDecoderConfig(gguf));
    // Of models that see, the file has the text, which is a model by itself.
    EXPECT_EQ(config.model_type, name == "qwen2_5_vl"         ? "qwen2"
                                 : name == "qwen3_vl_text"    ? "qwen3"
                                 : name.starts_with("gemma4") ? "gemma4_text"
                                                              : name);
    // All values come back. Where a file has the heads of a delta rule in another order, so are the
    // terms of sums over them, and each sum is rounded.
    const double bound = LoadDecoderConfig(gguf).delta_rule.tiled ? 1e-5 : 0;
    EXPECT_NEAR(LossOf(root_ / (name + "-hf"), "", "false"), LossOf(gguf, "", "false"), bound);
  }
}

// Real files: blocks of many types, and what llama.cpp computes of them.
TEST_F(GgufToHfTest, SharedFilesComeBack) {
  const fs::path folder = SharedFolder() / "golden/gguf/models";
  if (!fs::is_directory(folder)) GTEST_SKIP() << "no " << folder;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    EXPECT_LT(WriteHf(entry.path(), name).max_logprob_difference, 1e-6);
    EXPECT_TRUE(WriteHf(entry.path(), name + "-f16", "f16").verified);
    const Tokenizer stored = Tokenizer::Load(entry.path());
    const Tokenizer written = Tokenizer::Load(root_ / name);
    const Json golden = ReadJsonFile(fs::path(entry.path()).replace_extension(".json"));
    // Some were recorded without reading special tokens, which then are letters.
    const bool reads_special = golden.contains("tokenized with special tokens");
    for (const Json& pair : golden.at(reads_special ? "tokenized with special tokens"
                                                    : "tokenized without special tokens")) {
      const auto text = pair.at(0).get<std::string>();
      if (!reads_special && text.find("s>") != std::string::npos) continue;
      EXPECT_EQ(written.Encode(text, false), pair.at(1).get<std::vector<std::int32_t>>()) << text;
    }
    EXPECT_EQ(written.eos_ids(), stored.eos_ids());
    ++count;
  }
  EXPECT_GE(count, 6);
}

TEST_F(GgufToHfTest, SixteenBitsAreThoseOfTheCheckpoint) {
  const fs::path source = Model(SmallConfig("gemma", {{"head_dim", 8}}));
  const fs::path gguf = WriteGguf(source);
  for (const char* type : {"f16", "bf16"}) {
    const ExportReport report = WriteHf(gguf, type, type);
    EXPECT_TRUE(report.verified);
    EXPECT_GT(report.max_logprob_difference, 0);
    const Json json = ReadJsonFile(root_ / type / "config.json");
    EXPECT_EQ(json.at("torch_dtype"), "bfloat16");  // in which transformers computes a Gemma
    ExportOptions options = ToHf(source, std::string("direct-") + type);
    options.outtype = type;
    Export(context_, options);
    EXPECT_NEAR(LossOf(root_ / type, "", "false"),
                LossOf(root_ / (std::string("direct-") + type), "", "false"), 1e-4);
  }
}

TEST_F(GgufToHfTest, AnAdapterIsMergedIntoTheBlocks) {
  WriteWideModel(root_ / "wide");
  WriteWideAdapter(root_ / "adapter", 0.05);
  const fs::path gguf = WriteGguf(root_ / "wide", "q4_k_m");
  ExportOptions options = ToHf(gguf, "merged");
  options.adapter = {root_ / "adapter"};
  const ExportReport report = Export(context_, options);
  EXPECT_EQ(report.merge_base, "blocks");
  EXPECT_TRUE(report.verified);
  EXPECT_LT(report.max_logprob_difference, 1e-4);
  EXPECT_NEAR(LossOf(root_ / "merged", "", "false"), LossOf(gguf, root_ / "adapter", "auto"), 1e-5);
  EXPECT_NE(LossOf(root_ / "merged", "", "false"), LossOf(gguf, "", "auto"));
}

// In 4 bits again, most of what was trained would be gone.
TEST_F(GgufToHfTest, AMergedFileGivesAMergedCheckpoint) {
  ExportOptions options = ExportTo("merged.gguf");
  options.adapter = {kGolden / "llama-tiny" / "adapter"};
  Export(context_, options);
  WriteHf(root_ / "merged.gguf", "merged");
  EXPECT_TRUE(HoldsMergedWeights(root_ / "merged"));
  WriteHf(WriteGguf(kGolden / "llama-tiny"), "plain");
  EXPECT_FALSE(HoldsMergedWeights(root_ / "plain"));
}

TEST_F(GgufToHfTest, ATokenizerOfTheAdapterTakesThePlaceOfTheFiles) {
  const fs::path gguf = WriteGguf(kGolden / "llama-tiny");
  fs::copy(kGolden / "llama-tiny" / "adapter", root_ / "adapter");
  // Without tokenizer.json it is no tokenizer beside a GGUF file.
  WriteTextFile(root_ / "adapter/tokenizer_config.json",
                R"({"chat_template": "own", "add_bos_token": false})");
  ExportOptions options = ToHf(gguf, "merged");
  options.adapter = {root_ / "adapter"};
  Export(context_, options);
  const Tokenizer written = Tokenizer::Load(root_ / "merged");
  EXPECT_TRUE(written.adds_bos());
  EXPECT_EQ(written.spec().chat_templates.at(0).text, "own");
  fs::copy_file(kGolden / "llama-tiny" / "tokenizer.json", root_ / "adapter/tokenizer.json");
  options = ToHf(gguf, "own");
  options.adapter = {root_ / "adapter"};
  Export(context_, options);
  EXPECT_FALSE(Tokenizer::Load(root_ / "own").adds_bos());
}

// llama.cpp also merges characters that have no token, which tokenizer.json cannot.
TEST_F(GgufToHfTest, OtherIdsAreSaid) {
  const fs::path gguf = WriteGguf(kGolden / "llama-tiny");
  RewriteGguf(gguf, [](GgufMetadata& keys) {
    const GgufArray& stored = std::get<GgufArray>(*keys.Find("tokenizer.ggml.tokens"));
    auto tokens = std::get<std::vector<std::string>>(stored);
    std::ranges::replace(tokens, "e", "he");
    const GgufValue value = GgufArray(std::move(tokens));
    keys = WithKey(keys, "tokenizer.ggml.tokens", &value);
  });
  EXPECT_THAT(Quantize(gguf, "nf4").notes,
              testing::ElementsAre(HasSubstr("some texts have other ids")));
  ExportOptions options = ToHf(gguf, "hf");
  options.verify = "false";
  EXPECT_THAT(Export(context_, options).notes,
              testing::ElementsAre(HasSubstr("some texts have other ids")));
}

TEST_F(GgufToHfTest, QuantizesTheValuesOfBlocks) {
  WriteWideModel(root_ / "wide");
  const fs::path gguf = WriteGguf(root_ / "wide", "q4_k_m");
  const QuantizeReport report = Quantize(gguf, "nf4");
  EXPECT_THAT(report.notes, testing::ElementsAre(AllOf(HasSubstr("Q4_K, Q6_K"),
                                                       HasSubstr("rounded a second time"))));
  ASSERT_EQ(report.kinds.size(), 7u);
  for (const QuantizeError& kind : report.kinds) EXPECT_NEAR(kind.relative_rmse, 0.1, 0.05);
  // As of a checkpoint with the same values.
  WriteHf(gguf, "f32");
  const QuantizeReport direct = Quantize(root_ / "f32", "direct");
  EXPECT_EQ(report.kinds[0].rmse, direct.kinds[0].rmse);
  EXPECT_TRUE(direct.notes.empty());
  const DecoderConfig config = LoadDecoderConfig(root_ / "nf4");
  const auto found = OpenCheckpoint(root_ / "nf4", config);
  const auto expected = OpenCheckpoint(root_ / "direct", config);
  ASSERT_EQ(found->tensors().size(), expected->tensors().size());
  for (const TensorInfo& tensor : expected->tensors()) {
    SCOPED_TRACE(tensor.name);
    const TensorInfo* written = found->Find(tensor.name);
    ASSERT_NE(written, nullptr);
    // Dense tensors have 16 bits there, and the state names them.
    if (tensor.dtype == DType::kF32 && BnbWeightOf(tensor.name).empty()) {
      EXPECT_EQ(written->dtype, DType::kF16);
    } else if (tensor.name.find("quant_state") == std::string::npos) {
      const auto a = found->Bytes(*written);
      EXPECT_TRUE(std::ranges::equal(a, expected->Bytes(tensor)));
    }
  }
  EXPECT_EQ(ReadJsonFile(root_ / "nf4/config.json").at("torch_dtype"), "float16");
  EXPECT_TRUE(fs::exists(root_ / "nf4/tokenizer.json"));
  EXPECT_NEAR(LossOf(root_ / "nf4", "", "true"), LossOf(root_ / "direct", "", "true"), 1e-2);
}

void ExpectSameTensors(const fs::path& folder, const fs::path& other) {
  const DecoderConfig config = LoadDecoderConfig(other);
  const auto found = OpenCheckpoint(folder, config);
  const auto expected = OpenCheckpoint(other, config);
  // The keys of a GGUF file are no text of safetensors.
  EXPECT_EQ(found->metadata(), expected->metadata());
  ASSERT_EQ(found->tensors().size(), expected->tensors().size());
  for (const TensorInfo& tensor : expected->tensors()) {
    const TensorInfo* written = found->Find(tensor.name);
    ASSERT_NE(written, nullptr) << tensor.name;
    EXPECT_EQ(written->dtype, tensor.dtype) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(found->Bytes(*written), expected->Bytes(tensor))) << tensor.name;
  }
}

// The values of 16 bits are quantized once, as those of the checkpoint are.
TEST_F(GgufToHfTest, QuantizesSixteenBitsAsTheCheckpoint) {
  WriteWideModel(root_ / "wide");
  const QuantizeReport report = Quantize(WriteGguf(root_ / "wide", "f16"), "nf4");
  EXPECT_TRUE(report.notes.empty());
  Quantize(root_ / "wide", "direct");
  ExpectSameTensors(root_ / "nf4", root_ / "direct");
  // The norms of Gemma are w - 1 again, and experts are apart.
  for (const char* name : {"gemma3-tiny", "qwen3moe-tiny", "mixtral-tiny"}) {
    Quantize(WriteGguf(kGolden / name), name);
    const std::string direct = std::string(name) + "-direct";
    Quantize(kGolden / name, direct);
    EXPECT_NEAR(LossOf(root_ / name, "", "true"), LossOf(root_ / direct, "", "true"), 1e-3);
  }
}

// The activations are those of the file's model.
TEST_F(GgufToHfTest, CalibratesAsTheCheckpoint) {
  WriteWideModel(root_ / "wide");
  const auto calibrated = [&](const fs::path& from, const std::string& to) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = from;
    options.output_dir = root_ / to;
    options.calibration_data = kGolden / "train-20" / "data.jsonl";
    EXPECT_GT(QuantizeCheckpoint(context_, options).calibration_tokens, 100);
    return root_ / to;
  };
  const fs::path found = calibrated(WriteGguf(root_ / "wide", "f16"), "nf4");
  ExpectSameTensors(found, calibrated(root_ / "wide", "direct"));
}

// Without --outtype.
TEST_F(GgufToHfTest, SixteenBitsAreThoseThatTheFamilyNeeds) {
  const auto types_of = [&](const fs::path& gguf) {
    const std::string name = gguf.stem().string();
    Quantize(gguf, name + "-nf4");
    WriteHf(gguf, name + "-hf", "auto");
    std::vector<std::string> types;
    for (const char* end : {"-nf4", "-hf"}) {
      types.push_back(ReadJsonFile(root_ / (name + end) / "config.json").at("torch_dtype"));
    }
    return types;
  };
  const fs::path gemma = Model(SmallConfig("gemma", {{"head_dim", 8}}));
  EXPECT_THAT(types_of(WriteGguf(gemma, "q8_0")), testing::Each("bfloat16"));
  // The tensors stay as they are, in 16 bits of float16; transformers computes in the other.
  const fs::path half = WriteGguf(gemma, "f16");
  EXPECT_THAT(types_of(half), testing::Each("bfloat16"));
  EXPECT_EQ(OpenCheckpoint(root_ / (half.stem().string() + "-hf"),
                           LoadDecoderConfig(root_ / (half.stem().string() + "-hf")))
                ->Find("model.embed_tokens.weight")
                ->dtype,
            DType::kF16);
  const fs::path llama = kGolden / "llama-tiny";
  EXPECT_THAT(types_of(WriteGguf(llama, "q8_0")), testing::Each("float16"));
  EXPECT_THAT(types_of(WriteGguf(llama, "bf16")), testing::Each("bfloat16"));
}

TEST_F(GgufToHfTest, DequantizeNamesTheExport) {
  const fs::path gguf = WriteGguf(kGolden / "llama-tiny");
  try {
    Quantize(gguf, "out", true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("export --format hf"));
  }
  EXPECT_FALSE(fs::exists(root_ / "out"));
}

// Scaling of Llama 3.1, of which the file has the divisors.
TEST_F(GgufToHfTest, ScalingOfLlama3IsFoundInItsDivisors) {
  Json keys = SmallConfig("llama", {{"head_dim", 64}, {"rope_theta", 500000.0}});
  keys["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  WriteHf(WriteGguf(Model(keys)), "hf");
  EXPECT_EQ(ReadJsonFile(root_ / "hf/config.json").at("rope_scaling"), keys["rope_scaling"]);
}

// Of a Phi-3, transformers 4 takes three keys.
TEST_F(GgufToHfTest, Phi3HasItsThreeKeys) {
  const fs::path gguf = WriteGguf(kGolden / "phi3-tiny");
  // The window ends the context in GGUF, of which the factor of attention is computed.
  RewriteGguf(gguf, [](GgufMetadata& keys) {
    const GgufValue value = std::uint32_t{128};
    keys = WithKey(keys, "phi3.context_length", &value);
  });
  WriteHf(gguf, "hf");
  const Json json = ReadJsonFile(root_ / "hf/config.json");
  EXPECT_EQ(json.at("rope_scaling").size(), 3u);
  EXPECT_EQ(json.at("rope_scaling").at("type"), "longrope");
  EXPECT_TRUE(json.contains("original_max_position_embeddings"));
  // Its class has one that small vocabularies have not.
  EXPECT_EQ(json.at("pad_token_id"), 2);
}

// The one kind of scaling that transformers 4 knows for it.
TEST_F(GgufToHfTest, LinearScalingOfAPhi3IsWrittenAsLists) {
  const Json keys =
      SmallConfig("phi3", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}});
  WriteHf(WriteGguf(Model(keys)), "hf");
  const Json scaling = ReadJsonFile(root_ / "hf/config.json").at("rope_scaling");
  EXPECT_EQ(scaling.size(), 3u);
  EXPECT_THAT(scaling.at("long_factor").get<std::vector<double>>(), testing::Each(4.0));
}

TEST_F(GgufToHfTest, WhatNoConfigurationStatesIsRefused) {
  const auto refusal = [&](const fs::path& gguf) {
    for (const char* verb : {"quantize", "export"}) {
      const std::string out = std::string("refused-") + verb;
      try {
        if (verb == std::string("quantize")) Quantize(gguf, out);
        if (verb == std::string("export")) WriteHf(gguf, out);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
        EXPECT_FALSE(fs::exists(root_ / out));
        if (verb == std::string("export")) return std::string(error.what());
      }
    }
    return std::string();
  };
  const fs::path llama = WriteGguf(kGolden / "llama-tiny");
  const auto with_bias = [](const std::string& name, std::int64_t size) {
    return [=](std::vector<RewrittenTensor>& tensors) {
      for (const char* block : {"blk.0.", "blk.1."}) {
        tensors.push_back({{block + name, DType::kF32, {size}}, std::vector<std::byte>(4 * size)});
      }
    };
  };
  RewriteGguf(llama, {}, with_bias("attn_output.bias", 64));
  EXPECT_THAT(refusal(llama), AllOf(HasSubstr("llama-tiny-f32.gguf"), HasSubstr("bias of"),
                                    HasSubstr("made from")));
  const fs::path gemma = WriteGguf(kGolden / "gemma3-tiny");
  RewriteGguf(gemma, [](GgufMetadata& keys) { keys.Add("gemma3.rope.scaling.attn_factor", 1.5F); });
  EXPECT_THAT(refusal(gemma), HasSubstr("the rotary embedding of layer"));
  const fs::path granite = WriteGguf(Model(FamilyConfigs()[1]));
  EXPECT_THAT(refusal(granite), HasSubstr("the rotary embedding of layer 0 is missing"));
  // A tokenizer that is not read.
  const fs::path other = WriteGguf(kGolden / "qwen2-tiny");
  RewriteGguf(other, [](GgufMetadata& keys) {
    const GgufValue value = std::string("t5");
    keys = WithKey(keys, "tokenizer.ggml.model", &value);
  });
  EXPECT_THAT(refusal(other), HasSubstr("'t5' (unigrams) is not supported"));
}

}  // namespace
}  // namespace qlora
