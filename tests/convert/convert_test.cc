// Checkpoints through quantize and export, on tests/golden/llama-tiny.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/arena.h"
#include "base/file.h"
#include "base/matrix.h"
#include "convert/calibration.h"
#include "convert/convert_fixture.h"
#include "gguf/gguf.h"
#include "io/bnb.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/tensor_file.h"
#include "machine/simd_target.h"
#include "model/checkpoint.h"
#include "model/weights.h"
#include "qlora/context.h"
#include "qlora/error.h"
#include "qlora/export.h"
#include "qlora/export_gguf.h"
#include "qlora/model_options.h"
#include "qlora/quantize.h"

namespace qlora {
namespace {

// The squared error of the 4-bit weights, each column times its mean square, over all linears.
double WeightedError(const TensorReader& dense, const TensorReader& quantized,
                     const Calibration& calibration) {
  double sum = 0;
  for (const auto& [name, means] : calibration.mean_squares) {
    const TensorInfo* tensor = dense.Find(name);
    const std::size_t cols = means.size();
    const auto values = static_cast<std::int64_t>(tensor->elements());
    std::vector<float> w(values);
    ConvertToWide(dense.Bytes(*tensor).data(), tensor->dtype, 0, MakeView(w.data(), 1, values));
    const BnbMatrix stored = ReadBnb(quantized, name);
    std::vector<float> q(w.size());
    DequantizeRows(stored.matrix.view(), 0, MakeView(q.data(), tensor->shape[0], tensor->shape[1]));
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double difference = double{w[i]} - double{q[i]};
      sum += difference * difference * double{means[i % cols]};
    }
  }
  return sum;
}

TEST_F(ConvertTest, QuantizedTensorsEqualTheGoldenOnes) {
  Quantize(kGolden / "llama-tiny", "nf4");
  const auto found = OpenSafetensors(root_ / "nf4");
  const auto golden = OpenSafetensors(kGolden / "llama-tiny" / "nf4.safetensors");
  for (const TensorInfo& expected : golden->tensors()) {
    if (expected.name.find("quant_state") != std::string::npos)
      continue;  // JSON: read, not compared
    const TensorInfo* tensor = found->Find(expected.name);
    ASSERT_NE(tensor, nullptr) << expected.name;
    ASSERT_EQ(tensor->shape, expected.shape) << expected.name;
    EXPECT_EQ(0, std::memcmp(found->Bytes(*tensor).data(), golden->Bytes(expected).data(),
                             expected.bytes()))
        << expected.name;
  }
}

// The rows of a weight, decoded if it is 4-bit.
std::vector<float> ValuesOf(const WeightView& weight) {
  std::vector<float> values(weight.rows() * weight.cols());
  for (std::int64_t r = 0; r < weight.rows(); ++r) {
    ReadRow(weight, r, 0, weight.cols(), values.data() + r * weight.cols());
  }
  return values;
}

// A copy of the same bytes, or one that the backend has prepacked.
void ExpectCopy(const WeightView& mapped, const WeightView& copied, Backend& backend) {
  EXPECT_EQ(ValuesOf(mapped), ValuesOf(copied));
  const std::size_t bytes = backend.PrepackedBytes(mapped);
  ASSERT_EQ(bytes > 0, copied.prepacked != nullptr);
  if (bytes == 0) return;
  Arena expected(bytes);
  backend.Prepack(mapped, expected.data());
  EXPECT_EQ(0, std::memcmp(expected.data(), copied.prepacked, bytes));
}

// The key may be missing where the size is the default of the family.
TEST_F(ConvertTest, AWrittenConfigurationHasTheSizeOfTheVocabulary) {
  constexpr std::int64_t kDefault = 32000;
  fs::copy(kGolden / "llama-tiny", root_ / "model");
  Json config = ReadJsonFile(root_ / "model" / "config.json");
  config.erase("vocab_size");
  WriteTextFile(root_ / "model" / "config.json", config.dump());
  const auto source = OpenSafetensors(kGolden / "llama-tiny");
  std::vector<TensorInfo> infos = source->tensors();
  const auto is_table = [](const TensorInfo& info) {
    return info.name == "lm_head.weight" || info.name == "model.embed_tokens.weight";
  };
  for (TensorInfo& info : infos) {
    if (is_table(info)) info.shape[0] = kDefault;
  }
  const auto writer = CreateSafetensors(root_ / "model" / "model.safetensors", infos, {});
  for (const TensorInfo& info : infos) {
    if (!is_table(info)) {
      writer->Write(source->Bytes(*source->Find(info.name)));
    } else {
      writer->Write(std::vector<std::byte>(info.bytes()));
    }
  }
  writer->Finish();
  ExportOptions options = ExportTo("written");
  options.model_name_or_path = root_ / "model";
  options.format = "hf";
  options.verify = "false";
  Export(context_, options);
  EXPECT_EQ(ReadJsonFile(root_ / "written" / "config.json").at("vocab_size"), kDefault);
}

TEST_F(ConvertTest, CopiedWeightsEqualMappedOnes) {
  struct Case {
    fs::path dir;
    bool load_in_4bit;
  };
  Quantize(kGolden / "llama-tiny", "nf4");
  SetSimdTarget(SimdTargets().back());                      // has prepacked weights where any has
  const Case cases[] = {{kGolden / "llama-tiny", false},    // head and embedding apart
                        {kGolden / "qwen2-tiny", false},    // tied, biases
                        {kGolden / "mixtral-tiny", false},  // experts
                        {kGolden / "qwen2-tiny", true},
                        {root_ / "nf4", true}};
  for (const Case& c : cases) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(c.dir.string());
      const std::unique_ptr<Backend> backend = MakeCpuBackend(context_, compute);
      const DecoderConfig config = LoadDecoderConfig(c.dir);
      LoadOptions load;
      load.load_in_4bit = c.load_in_4bit;
      const DecoderWeights mapped = LoadWeights(context_, *backend, c.dir, config, load);
      load.use = WeightUse::kGeneration;
      const DecoderWeights copied = LoadWeights(context_, *backend, c.dir, config, load);
      const WeightSizes plan = PlanWeights(context_, *backend, c.dir, config, load);
      EXPECT_EQ(plan.owned, copied.sizes.owned);
      EXPECT_EQ(plan.mapped, copied.sizes.mapped);
      EXPECT_LT(copied.sizes.mapped, mapped.sizes.mapped);
      EXPECT_GE(copied.sizes.owned + copied.sizes.mapped, mapped.sizes.owned + mapped.sizes.mapped);
      EXPECT_EQ(config.tie_word_embeddings, copied.is_tied());
      EXPECT_EQ(ValuesOf(mapped.embed), ValuesOf(copied.embed));
      EXPECT_EQ(ValuesOf(mapped.head), ValuesOf(copied.head));
      for (std::size_t l = 0; l < mapped.layers.size(); ++l) {
        Combine(mapped.layers[l].linears, copied.layers[l].linears,
                [&](const FrozenLinear& a, const FrozenLinear& b) {
                  SCOPED_TRACE(a.path);
                  ExpectCopy(a.weight, b.weight, *backend);
                  return 0;
                });
      }
    }
  }
  SetSimdTarget(BestSimdTarget());
}

TEST_F(ConvertTest, WritingAgainWhatWasReadGivesTheSameBytes) {
  for (const char* type : {"nf4", "fp4"}) {
    for (const bool double_quant : {false, true}) {
      for (const std::int64_t block_size : {32, 4096}) {
        const std::string once =
            std::string(type) + (double_quant ? "-double-" : "-") + std::to_string(block_size);
        const std::string twice = once + "-again";
        SCOPED_TRACE(once);
        QuantizeCheckpointOptions options;
        options.model_name_or_path = kGolden / "llama-tiny";
        options.output_dir = root_ / once;
        options.quantization.bnb_4bit_quant_type = type;
        options.quantization.bnb_4bit_use_double_quant = double_quant;
        options.quantization.bnb_4bit_blocksize = block_size;
        QuantizeCheckpoint(context_, options);
        Quantize(root_ / once, twice);  // keeps the form of what it reads
        for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"}) {
          EXPECT_TRUE(ReadTextFile(root_ / once / file) == ReadTextFile(root_ / twice / file))
              << file;
        }
      }
    }
  }
}

TEST_F(ConvertTest, QuantizingOnLoadEqualsTheQuantizedCheckpoint) {
  Quantize(kGolden / "llama-tiny", "nf4");
  EXPECT_EQ(LossOf(kGolden / "llama-tiny", "", "true"), LossOf(root_ / "nf4", "", "auto"));
}

TEST_F(ConvertTest, ScaleSearchOnLoadEqualsTheSearchedCheckpoint) {
  QuantizeCheckpointOptions options;
  options.model_name_or_path = kGolden / "llama-tiny";
  options.output_dir = root_ / "nf4";
  options.quantization.scale_search = true;
  QuantizeCheckpoint(context_, options);
  ModelOptions direct;
  direct.model_name_or_path = kGolden / "llama-tiny";
  direct.quantization.scale_search = true;
  direct.compute_dtype = "float32";
  EvalOptions eval;
  eval.dataset = {kGolden / "train-20" / "data.jsonl"};
  const double loss = Model::Load(context_, direct).Evaluate(eval).loss;
  EXPECT_EQ(loss, LossOf(root_ / "nf4", "", "auto"));
  EXPECT_NE(loss, LossOf(kGolden / "llama-tiny", "", "true"));
}

TEST_F(ConvertTest, CalibrationWeighsTheColumns) {
  const fs::path data = kGolden / "train-20" / "data.jsonl";
  const DecoderConfig config = LoadDecoderConfig(kGolden / "llama-tiny");
  std::int64_t tokens = 0;
  const auto count = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, tokens);
    EXPECT_EQ(total, 100);
    tokens = done;
  };
  const Calibration calibration = Calibrate(context_, *MakeCpuBackend(context_, DType::kF32),
                                            kGolden / "llama-tiny", config, data, 100, count);
  EXPECT_EQ(tokens, calibration.tokens);
  EXPECT_GE(calibration.tokens, 100);
  EXPECT_LT(calibration.tokens, 200);  // it stops at a whole sample
  const auto reader = OpenSafetensors(kGolden / "llama-tiny");
  EXPECT_EQ(calibration.mean_squares.size(),
            7 * static_cast<std::size_t>(config.num_hidden_layers));
  for (const auto& [name, means] : calibration.mean_squares) {
    const TensorInfo* weight = reader->Find(name);
    ASSERT_NE(weight, nullptr) << name;
    EXPECT_EQ(static_cast<std::int64_t>(means.size()), weight->shape[1]) << name;
  }
  // q, k and v read the same input; it is normalised, so its mean square is that of the norm's
  // weight.
  const auto means = [&](const char* kind) {
    return calibration.mean_squares.at(std::string("model.layers.0.self_attn.") + kind + ".weight");
  };
  EXPECT_EQ(means("q_proj"), means("v_proj"));
  EXPECT_NE(means("q_proj"), means("o_proj"));
  Context one(1);
  EXPECT_EQ(Calibrate(one, *MakeCpuBackend(one, DType::kF32), kGolden / "llama-tiny", config, data,
                      100, {})
                .mean_squares,
            calibration.mean_squares);

  // The error that counts, that of the columns by their mean squares, is least with calibration.
  const auto error = [&](const std::string& to, bool search, const std::string& text) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = kGolden / "llama-tiny";
    options.output_dir = root_ / to;
    options.quantization.bnb_4bit_use_double_quant = false;
    options.quantization.scale_search = search;
    options.calibration_data = text;
    options.calibration_tokens = 100;
    EXPECT_EQ(QuantizeCheckpoint(context_, options).calibration_tokens, text.empty() ? 0 : 100);
    return WeightedError(*reader, *OpenSafetensors(root_ / to), calibration);
  };
  const double plain = error("plain", false, "");
  const double searched = error("searched", true, "");
  const double calibrated = error("calibrated", false, data);
  EXPECT_LT(calibrated, searched);
  EXPECT_LT(searched, plain);

  QuantizeCheckpointOptions inverse;
  inverse.model_name_or_path = root_ / "plain";
  inverse.output_dir = root_ / "dense";
  inverse.calibration_data = data;
  inverse.dequantize = true;
  EXPECT_THROW(QuantizeCheckpoint(context_, inverse), Error);
}

TEST_F(ConvertTest, DequantizeGivesTheSameFunction) {
  Quantize(kGolden / "llama-tiny", "nf4");
  Quantize(root_ / "nf4", "dense", true);
  EXPECT_EQ(LossOf(root_ / "nf4", "", "auto"), LossOf(root_ / "dense", "", "false"));
}

TEST_F(ConvertTest, TheReportCountsBytes) {
  const QuantizeReport report = Quantize(kGolden / "llama-tiny", "nf4");
  EXPECT_EQ(report.kinds.size(), 7u);
  EXPECT_NEAR(report.bits_per_weight, 4.13, 0.03);
  for (const QuantizeError& kind : report.kinds) {
    EXPECT_GT(kind.relative_rmse, 0.05) << kind.kind;
    EXPECT_LT(kind.relative_rmse, 0.15) << kind.kind;
  }
  const auto bytes = static_cast<double>(report.quantized_bytes + report.other_bytes);
  EXPECT_DOUBLE_EQ(report.ratio_to_fp16, static_cast<double>(report.fp16_bytes) / bytes);
  EXPECT_DOUBLE_EQ(report.ratio_to_fp32, 2 * report.ratio_to_fp16);

  // Weights that are 4-bit already count the same, although other tensors describe them.
  const QuantizeReport copy = Quantize(root_ / "nf4", "copy");
  EXPECT_TRUE(copy.kinds.empty());
  EXPECT_EQ(copy.quantized_values, report.quantized_values);
  EXPECT_EQ(copy.quantized_bytes, report.quantized_bytes);
  EXPECT_EQ(copy.other_bytes, report.other_bytes);
}

TEST_F(ConvertTest, MergedCheckpointComputesWhatWasTrained) {
  const std::string adapter = kGolden / "llama-tiny" / "adapter";
  for (const char* base : {"nf4", "original"}) {
    ExportOptions options = ExportTo(base);
    options.format = "hf";
    options.adapter = {adapter};
    options.merge_base = base;
    const ExportReport report = Export(context_, options);
    EXPECT_EQ(report.merge_base, base);
    EXPECT_LT(report.max_logprob_difference, 1e-4);
    const char* four_bit = std::string(base) == "nf4" ? "true" : "false";
    const double expected = LossOf(kGolden / "llama-tiny", adapter, four_bit);
    EXPECT_NEAR(LossOf(options.output, "", "false"), expected, 1e-5 * expected);
  }
}

TEST_F(ConvertTest, GgufOfEveryFamilyReadsBackAsTheSameModel) {
  for (const char* model :
       {"llama-tiny", "llama3-tiny", "mistral-tiny", "qwen2-tiny", "qwen2-yarn-tiny", "qwen3-tiny",
        "gemma2-tiny", "gemma3-tiny", "phi3-tiny", "smollm3-tiny"}) {
    SCOPED_TRACE(model);
    ExportOptions options = ExportTo(std::string(model) + ".gguf");
    options.model_name_or_path = kGolden / model;
    options.adapter = {kGolden / model / "adapter"};
    const ExportReport merged = Export(context_, options);
    EXPECT_TRUE(merged.verified);
    EXPECT_LT(merged.max_logprob_difference, 1e-4);
    options.format = "gguf-adapter";
    options.output += "-adapter";
    EXPECT_LT(Export(context_, options).max_logprob_difference, 1e-4);
    // The base, as llama.cpp's converter names it; a folder has no repository.
    const std::unique_ptr<GgufReader> file = OpenGguf(options.output);
    EXPECT_EQ(file->Require<std::uint32_t>("general.base_model.count"), 1u);
    EXPECT_EQ(file->Require<std::string>("general.base_model.0.name"), model);
    EXPECT_EQ(file->Get<std::string>("general.base_model.0.repo_url"), nullptr);
  }
}

TEST_F(ConvertTest, MatricesAreWrittenToGgufByName) {
  const std::vector<float> w = [] {
    std::vector<float> values(5 * 64);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    return values;
  }();
  const compat::Matrix plain = qlora::Quantize(context_, MakeView(w.data(), 5, 64));
  const compat::Matrix rows = compat::Quantize(context_, MakeView(w.data(), 8, 40),
                                               {.row_blocks = true, .zero_point = true});
  const NamedMatrix tensors[] = {{"plain", plain}, {"rows", rows}};
  ExportGguf(tensors, root_ / "weights.gguf", "f32");
  const std::unique_ptr<GgufReader> reader = OpenGguf(root_ / "weights.gguf");
  for (const NamedMatrix& tensor : tensors) {
    const std::int64_t size = tensor.matrix.view().size();
    std::vector<float> expected(size);
    compat::Dequantize(context_, tensor.matrix.view(),
                       MakeView(expected.data(), tensor.matrix.rows(), tensor.matrix.cols()));
    const TensorInfo* info = reader->Find(tensor.name);
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->shape, (std::vector{tensor.matrix.rows(), tensor.matrix.cols()}));
    std::vector<float> found(size);
    std::memcpy(found.data(), reader->Bytes(*info).data(), size * sizeof(float));
    EXPECT_EQ(found, expected);
  }
  EXPECT_THROW(ExportGguf(tensors, root_ / "weights.gguf", "q4_k"), Error);
  const NamedMatrix twice[] = {tensors[0], tensors[0]};
  EXPECT_THROW(ExportGguf(twice, root_ / "weights.gguf"), Error);
}

TEST_F(ConvertTest, OptionsWithoutEffectOnA4BitModelAreRefused) {
  Quantize(kGolden / "llama-tiny", "nf4");
  const auto refused = [&](const std::string& name,
                           const std::function<void(QuantizeCheckpointOptions&)>& change) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = root_ / "nf4";
    options.output_dir = root_ / "again";
    change(options);
    try {
      QuantizeCheckpoint(context_, options);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      EXPECT_NE(std::string(error.what()).find(name + " would have no effect"), std::string::npos)
          << error.what();
    }
  };
  refused("bnb_4bit_blocksize", [](auto& o) { o.quantization.bnb_4bit_blocksize = 128; });
  refused("bnb_4bit_quant_type", [](auto& o) { o.quantization.bnb_4bit_quant_type = "fp4"; });
  refused("calibration_data", [](auto& o) { o.calibration_data = {"data.jsonl"}; });
  EXPECT_FALSE(fs::exists(root_ / "again"));
}

}  // namespace
}  // namespace qlora
