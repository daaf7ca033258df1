// Adapters alone: PEFT, mlx-lm and llama.cpp into each other, and several into one.
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "base/file.h"
#include "base/matrix.h"
#include "base/random.h"
#include "convert/convert_fixture.h"
#include "io/float_encoding.h"
#include "io/json.h"
#include "io/peft.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/test_util.h"
#include "model/combined_adapter.h"
#include "model/mlx_adapter.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using Tensors = std::map<std::string, std::vector<float>>;

Tensors ReadAll(const fs::path& file) {
  const std::unique_ptr<TensorReader> reader = OpenSafetensors(file);
  Tensors tensors;
  for (const TensorInfo& tensor : reader->tensors()) {
    std::vector<float>& values = tensors[tensor.name];
    values.resize(tensor.elements());
    DecodeFloats(tensor.dtype, reader->Bytes(tensor), values);
  }
  return tensors;
}

// relative: what values may differ by; 0: the same bits.
void ExpectSame(const Tensors& found, const Tensors& expected, double relative = 0) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    const std::vector<float>& other = found.at(name);
    ASSERT_EQ(other.size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(other[i], values[i], relative * std::abs(values[i])) << name << " at " << i;
    }
  }
}

class AdapterFormatsTest : public ConvertTest {
 protected:
  fs::path Convert(const std::string& model, const std::vector<std::string>& adapters,
                   const std::string& to, const std::string& format) {
    ExportOptions options;
    options.model_name_or_path = kGolden / model;
    options.adapter = adapters;
    options.output = root_ / to;
    options.format = format + "-adapter";
    options.outtype = "f32";
    options.verify = "true";
    const ExportReport report = Export(context_, options);
    EXPECT_TRUE(report.verified);
    // Another order of the same products, and B with a scale in it.
    EXPECT_LT(report.max_logprob_difference, 1e-5) << model << " " << format;
    return root_ / to;
  }

  // An adapter with random A and B, of the tables too where they are named in `config`.
  fs::path WriteRandom(const std::string& model, const AdapterConfig& config, const std::string& to,
                       std::uint64_t seed) {
    const DecoderConfig decoder = LoadDecoderConfig(kGolden / model);
    AdapterConfig linears = config;
    AdapterValues values;
    std::uint64_t number = 0;
    const auto random = [&](std::int64_t rows, std::int64_t cols) {
      return KaimingUniform(MakeKey(seed, RandomPlace::kLoraInit, number++), rows, cols);
    };
    const auto add = [&](const std::string& path, std::int64_t out, std::int64_t in) {
      if (!IsTargetModule(config, path)) return;
      LoraValues module{path, in, out, RankOf(config, path), ScaleOf(config, path)};
      module.a = random(module.rank, in);
      module.b = random(out, module.rank);
      if (config.use_dora) module.magnitude = std::vector<float>(out, 1.5f);
      values.modules.push_back(std::move(module));
    };
    for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
      ForEachPair(LinearPaths(decoder, l), ShapeLinears(decoder),
                  [&](const std::string& path, const LinearShape& s) { add(path, s.out, s.in); });
    }
    add("lm_head", decoder.vocab_size, decoder.hidden_size);
    add("model.embed_tokens", decoder.hidden_size, decoder.vocab_size);
    std::vector<AdapterWeights> weights;
    for (const LoraValues& m : values.modules) {
      AdapterWeights& views = weights.emplace_back();
      views.path = m.path;
      views.a = MakeView(m.a.data(), m.rank, m.in);
      views.b = MakeView(m.b.data(), m.out, m.rank);
      if (config.use_dora) views.magnitude = MakeView(m.magnitude.data(), 1, m.out);
    }
    WriteAdapter(root_ / to, config, weights, DType::kF32);
    return root_ / to;
  }

  static AdapterConfig Targeting(const std::vector<std::string>& names, std::int64_t r,
                                 double alpha) {
    AdapterConfig config;
    config.target_modules = names;
    config.r = r;
    config.lora_alpha = alpha;
    return config;
  }

  std::vector<double> TokensOf(const fs::path& model, const std::vector<std::string>& adapters,
                               std::int64_t rank = 0) {
    ModelOptions options;
    options.model_name_or_path = model;
    options.adapter = adapters;
    options.adapter_rank = rank;
    options.load_in_4bit = "false";
    options.compute_dtype = "float32";
    EvalOptions eval;
    eval.dataset = {kGolden / "train-20" / "data.jsonl"};
    eval.per_token = true;
    return Model::Load(context_, options).Evaluate(eval).logprobs;
  }
};

TEST_F(AdapterFormatsTest, PeftToOthersAndBackGivesTheSameBits) {
  for (const std::string model :
       {"llama-tiny", "qwen2-tiny", "phi3-tiny", "gemma2-tiny", "mixtral-tiny", "qwen3moe-tiny"}) {
    SCOPED_TRACE(model);
    const fs::path source = kGolden / model / "adapter";
    const Tensors expected = ReadAll(source / kPeftWeights);
    for (const std::string format : {"mlx", "gguf"}) {
      const fs::path there = Convert(
          model, {source}, model + "-" + format + (format == "gguf" ? ".gguf" : ""), format);
      const fs::path back = Convert(model, {there}, model + "-from-" + format, "peft");
      // llama.cpp has no key for the scale of Gemma 2's scores: a factor goes into B of q_proj.
      const bool folds = model == "gemma2-tiny" && format == "gguf";
      ExpectSame(ReadAll(back / kPeftWeights), expected, folds ? 0x1p-23 : 0);
    }
  }
}

// A scale that is folded into B costs one rounding each way.
TEST_F(AdapterFormatsTest, FoldedScalesCostARounding) {
  AdapterConfig config = Targeting({"q_proj", "up_proj", "down_proj"}, 4, 9);
  config.use_rslora = true;
  config.rank_pattern = {{"layers.1.self_attn.q_proj", 3}};
  config.alpha_pattern = {{"up_proj", 5}};
  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  const fs::path source = WriteRandom("llama-tiny", config, "peft", 3);
  const AdapterValues expected = ReadPeftValues(source, decoder);
  for (const std::string format : {"mlx", "gguf"}) {
    SCOPED_TRACE(format);
    const fs::path there =
        Convert("llama-tiny", {source}, format + (format == "gguf" ? ".gguf" : ""), format);
    const fs::path back = Convert("llama-tiny", {there}, "from-" + format, "peft");
    const AdapterValues found = ReadPeftValues(back, decoder);
    ASSERT_EQ(found.modules.size(), expected.modules.size());
    for (const LoraValues& module : expected.modules) {
      const auto at = std::ranges::find(found.modules, module.path, &LoraValues::path);
      ASSERT_NE(at, found.modules.end());
      EXPECT_TRUE(std::equal(module.a.begin(), module.a.end(), at->a.begin()));
      for (std::int64_t o = 0; o < module.out; ++o) {
        for (std::int64_t i = 0; i < module.rank; ++i) {
          const double b = module.scale * double{module.b[o * module.rank + i]};
          EXPECT_NEAR(at->scale * double{at->b[o * at->rank + i]}, b, 0x1p-23 * std::abs(b));
        }
      }
    }
  }
}

TEST_F(AdapterFormatsTest, MlxFilesAreWhatMlxLmReads) {
  const fs::path source =
      WriteRandom("llama-tiny", Targeting({"q_proj", "lm_head"}, 4, 10), "a", 1);
  const fs::path mlx = Convert("llama-tiny", {source}, "mlx", "mlx");
  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  const Json config = ReadJsonFile(mlx / "adapter_config.json");
  EXPECT_EQ(config["fine_tune_type"], "lora");
  EXPECT_EQ(config["num_layers"], decoder.num_hidden_layers);
  EXPECT_EQ(config["lora_parameters"], (Json{{"rank", 4},
                                             {"scale", 2.5},
                                             {"dropout", 0.0},
                                             {"keys", {"lm_head", "self_attn.q_proj"}}}));
  const auto reader = OpenSafetensors(mlx / kMlxWeights);
  const std::string q = "model.layers.0.self_attn.q_proj";
  const std::int64_t d = decoder.hidden_size;
  EXPECT_EQ(reader->Find(q + ".lora_a")->shape, (std::vector<std::int64_t>{d, 4}));
  EXPECT_EQ(reader->Find(q + ".lora_b")->shape,
            (std::vector<std::int64_t>{4, decoder.q_features()}));
  EXPECT_EQ(reader->Find("lm_head.lora_b")->shape,
            (std::vector<std::int64_t>{4, decoder.vocab_size}));
  const Tensors a = ReadAll(source / kPeftWeights);
  const Tensors b = ReadAll(mlx / kMlxWeights);
  // Element (1, 2) of A is (2, 1) there.
  EXPECT_EQ(b.at(q + ".lora_a")[2 * 4 + 1],
            a.at("base_model.model." + q + ".lora_A.weight")[d + 2]);
}

TEST_F(AdapterFormatsTest, MlxHasTheLastLayersAndOneRank) {
  AdapterConfig config =
      Targeting({"model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"}, 4, 8);
  config.rank_pattern = {{"up_proj", 2}};
  const fs::path mlx =
      Convert("llama-tiny", {WriteRandom("llama-tiny", config, "a", 1)}, "mlx", "mlx");
  const Json json = ReadJsonFile(mlx / "adapter_config.json");
  EXPECT_EQ(json["num_layers"], 1);
  EXPECT_EQ(json["lora_parameters"]["rank"], 4);
  const auto reader = OpenSafetensors(mlx / kMlxWeights);
  EXPECT_EQ(reader->tensors().size(), 4u);
  EXPECT_EQ(reader->Find("model.layers.1.mlp.up_proj.lora_a")->shape.back(), 4);
}

TEST_F(AdapterFormatsTest, DoraOfMlxIsPefts) {
  AdapterConfig config = Targeting({"q_proj"}, 2, 4);
  config.use_dora = true;
  const fs::path source = WriteRandom("llama-tiny", config, "dora", 1);
  const fs::path mlx = Convert("llama-tiny", {source}, "mlx", "mlx");
  EXPECT_EQ(ReadJsonFile(mlx / "adapter_config.json")["fine_tune_type"], "dora");
  EXPECT_NE(OpenSafetensors(mlx / kMlxWeights)->Find("model.layers.0.self_attn.q_proj.m"), nullptr);
  const fs::path back = Convert("llama-tiny", {mlx}, "back", "peft");
  ExpectSame(ReadAll(back / kPeftWeights), ReadAll(source / kPeftWeights));
}

TEST_F(AdapterFormatsTest, TheSumComputesWhatTheWeightsMergedByHandCompute) {
  AdapterConfig first = Targeting({"q_proj", "o_proj", "down_proj", "lm_head"}, 4, 12);
  first.use_rslora = true;
  AdapterConfig second = Targeting({"q_proj", "gate_proj", "lm_head", "embed_tokens"}, 3, 9);
  second.rank_pattern = {{"gate_proj", 5}};
  const std::string a = WriteRandom("llama-tiny", first, "a", 1);
  const std::string b =
      Convert("llama-tiny", {WriteRandom("llama-tiny", second, "b", 2)}, "b-mlx", "mlx");
  // The base with both changes added in double, rounded once.
  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  Tensors base = ReadAll(kGolden / "llama-tiny" / "model.safetensors");
  std::map<std::string, std::vector<double>> merged;
  for (const auto& [folder, config, weight] :
       {std::tuple(root_ / "a", first, 0.7), {root_ / "b", second, -0.4}}) {
    for (const LoraValues& m : ReadPeftValues(folder, decoder).modules) {
      const std::vector<float>& w = base.at(m.path + ".weight");
      std::vector<double>& out =
          merged.try_emplace(m.path + ".weight", w.begin(), w.end()).first->second;
      const bool embeds = m.path == "model.embed_tokens";
      const double scale = weight * ScaleOf(config, m.path);
      for (std::int64_t o = 0; o < m.out; ++o) {
        for (std::int64_t i = 0; i < m.in; ++i) {
          double sum = 0;
          for (std::int64_t r = 0; r < m.rank; ++r) {
            sum += double{m.b[o * m.rank + r]} * double{m.a[r * m.in + i]};
          }
          // The embedding is (V, D), and its change B A is (D, V).
          out[embeds ? i * m.out + o : o * m.in + i] += scale * sum;
        }
      }
    }
  }
  const fs::path by_hand = root_ / "by-hand";
  fs::copy(kGolden / "llama-tiny", by_hand);
  std::vector<TensorInfo> infos = OpenSafetensors(by_hand / "model.safetensors")->tensors();
  for (TensorInfo& info : infos) info.dtype = DType::kF32;
  const auto writer = CreateSafetensors(by_hand / "model.safetensors", infos, {});
  for (const TensorInfo& info : infos) {
    std::vector<float> values = base.at(info.name);
    if (merged.contains(info.name)) {
      values.assign(merged[info.name].begin(), merged[info.name].end());
    }
    writer->Write(std::as_bytes(std::span(values)));
  }
  writer->Finish();
  const std::vector<double> expected = TokensOf(by_hand, {});
  const std::vector<std::string> adapters = {a + ":0.7", b + ":-0.4"};
  const auto expect_near = [&](const std::vector<double>& found) {
    ASSERT_EQ(found.size(), expected.size());
    ASSERT_GT(found.size(), 50u);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-5);
  };
  expect_near(TokensOf(kGolden / "llama-tiny", adapters));
  // The rank of all parts loses nothing.
  expect_near(TokensOf(kGolden / "llama-tiny", adapters, 12));
  // One adapter for PEFT, and a merged checkpoint.
  expect_near(TokensOf(kGolden / "llama-tiny", {Convert("llama-tiny", adapters, "sum", "peft")}));
  ExportOptions options = ExportTo("merged");
  options.adapter = adapters;
  options.format = "hf";
  options.merge_base = "original";
  Export(context_, options);
  expect_near(TokensOf(root_ / "merged", {}));
  // The weights matter.
  const std::vector<double> other = TokensOf(kGolden / "llama-tiny", {a, b});
  double difference = 0;
  for (std::size_t i = 0; i < other.size(); ++i) {
    difference = std::max(difference, std::abs(other[i] - expected[i]));
  }
  EXPECT_GT(difference, 1e-2);
}

TEST_F(AdapterFormatsTest, AReducedSumSaysWhatItLost) {
  ExportOptions options = ExportTo("sum");
  options.adapter = {
      WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "a", 1).string() + ":0.5",
      WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "b", 2).string()};
  options.adapter_rank = 3;
  options.format = "peft-adapter";
  const ExportReport report = Export(context_, options);
  EXPECT_EQ(report.format, "peft-adapter");
  ASSERT_FALSE(report.notes.empty());
  EXPECT_THAT(report.notes[0], HasSubstr("reduced to rank 3: the relative error of the change is"));
  EXPECT_EQ(OpenAdapter(root_ / "sum").config.r, 3);
  EXPECT_TRUE(fs::exists(root_ / "sum" / "export_report.json"));
}

TEST_F(AdapterFormatsTest, RecordsOfTheFirstAdapterGoAlong) {
  const fs::path a = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "a", 1);
  WriteTextFile(a / "chat_template.jinja", "{{ messages }}");
  const fs::path out = Convert("llama-tiny", {a.string() + ":0.5"}, "out", "peft");
  EXPECT_EQ(ReadTextFile(out / "chat_template.jinja"), "{{ messages }}");
}

TEST_F(AdapterFormatsTest, RefusesOutputsThatAreSomethingElse) {
  const std::string a = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "a", 1);
  const auto refusal = [&](const std::string& output, const std::string& format, bool overwrite) {
    ExportOptions options = ExportTo(output);
    options.adapter = {a};
    options.format = format;
    options.overwrite = overwrite;
    return std::string(ErrorOf([&] { Export(context_, options); }).what());
  };
  EXPECT_THAT(refusal("a", "peft-adapter", false), HasSubstr("exists; give --overwrite"));
  EXPECT_THAT(refusal("a", "peft-adapter", true), HasSubstr("is the adapter itself"));
  Convert("llama-tiny", {a}, "mlx", "mlx");
  EXPECT_THAT(refusal("mlx", "peft-adapter", true),
              HasSubstr("holds no adapter_model.safetensors, and --overwrite replaces only"));
  EXPECT_THAT(refusal("x.gguf", "mlx-adapter", false), HasSubstr("writes a folder"));
  ExportOptions options = ExportTo("q");
  options.adapter = {a};
  options.format = "mlx-adapter";
  options.outtype = "q8_0";
  EXPECT_THAT(Refusal(options), HasSubstr("cannot be written as Q8_0: choose f32, f16 or bf16"));
  options.outtype = "f32";
  options.adapter = {};
  EXPECT_THAT(Refusal(options), HasSubstr("--format mlx-adapter needs --adapter"));
}

TEST_F(AdapterFormatsTest, RefusesMlxAdaptersThatMeanSomethingElse) {
  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  const fs::path source = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "a", 1);
  const fs::path mlx = Convert("llama-tiny", {source}, "mlx", "mlx");
  const auto refuse = [&](const Json& change, const std::string& part) {
    Json config = ReadJsonFile(mlx / "adapter_config.json");
    config.update(change);
    const fs::path other = root_ / "other";
    fs::remove_all(other);
    fs::copy(mlx, other);
    WriteTextFile(other / "adapter_config.json", config.dump());
    ExpectRefused([&] { ReadMlxValues(other, decoder); }, part);
  };
  refuse({{"fine_tune_type", "full"}}, "key 'fine_tune_type'");
  refuse({{"fine_tune_type", "dora"}}, "has no magnitude 'm'");
  refuse({{"lora_parameters", nullptr}}, "key 'lora_parameters' is missing");
  refuse({{"lora_parameters", {{"rank", 4}}}}, "scale");
  // Of another model, by shape and by name.
  ExpectRefused([&] { ReadMlxValues(mlx, LoadDecoderConfig(kGolden / "phi3-tiny")); },
                "mlx/adapters.safetensors: the adapter has tensors for 'model.layers.0");
  DecoderConfig wider = decoder;
  wider.hidden_size *= 2;
  ExpectRefused([&] { ReadMlxValues(mlx, wider); }, "it is an adapter of another model");
  // Two ranks in one pair.
  const fs::path damaged = root_ / "damaged";
  fs::copy(mlx, damaged);
  const std::string q = "model.layers.0.self_attn.q_proj.";
  const auto writer = CreateSafetensors(
      damaged / kMlxWeights,
      {{q + "lora_a", DType::kF32, {64, 3}}, {q + "lora_b", DType::kF32, {4, 64}}}, {});
  writer->Write(std::vector<std::byte>(64 * 3 * sizeof(float)));
  writer->Write(std::vector<std::byte>(64 * 4 * sizeof(float)));
  writer->Finish();
  ExpectRefused([&] { ReadMlxValues(damaged, decoder); },
                "has shape [64, 3], this model expects (64, 4)");
  // mlx changes a head that is tied as well.
  DecoderConfig tied = decoder;
  tied.tie_word_embeddings = true;
  const fs::path table = WriteRandom("llama-tiny", Targeting({"embed_tokens"}, 4, 8), "t", 1);
  const fs::path of_table = Convert("llama-tiny", {table}, "mlx-table", "mlx");
  ExpectRefused([&] { ReadMlxValues(of_table, tied); }, "changes both in mlx-lm");
  ExpectRefused(
      [&] { WriteMlxAdapter(root_ / "w", ReadPeftValues(table, tied), tied, DType::kF32); },
      "in mlx-lm the embeddings and the head of this model are one");
}

TEST_F(AdapterFormatsTest, RefusesGgufFilesOfOtherModels) {
  const fs::path file =
      Convert("llama-tiny", {kGolden / "llama-tiny" / "adapter"}, "a.gguf", "gguf");
  ExpectRefused([&] { ReadGgufValues(file, LoadDecoderConfig(kGolden / "qwen2-tiny")); },
                "a.gguf: is an adapter for models of the architecture 'llama', this model is "
                "'qwen2'");
  DecoderConfig deeper = LoadDecoderConfig(kGolden / "llama-tiny");
  deeper.num_hidden_layers = 1;
  ExpectRefused([&] { ReadGgufValues(file, deeper); }, "is of no linear of this model");
  deeper.num_hidden_layers = 2;
  deeper.intermediate_size += 1;
  ExpectRefused([&] { ReadGgufValues(file, deeper); }, "this model expects");
}

}  // namespace
}  // namespace qlora
