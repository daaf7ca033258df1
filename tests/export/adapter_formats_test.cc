// Adapters alone: PEFT, mlx-lm and llama.cpp into each other, and several into one.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "adapter/mlx_adapter.h"
#include "base/file.h"
#include "export/adapter_fixture.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/checkpoint.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

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

// The new adapter is not read with what belonged to the old one.
TEST_F(AdapterFormatsTest, OverwritingReplacesTheCompanions) {
  const fs::path a = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "a", 1);
  const fs::path b = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "b", 2);
  const fs::path c = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "c", 3);
  WriteTextFile(a / "chat_template.jinja", "a");
  WriteTextFile(b / "chat_template.jinja", "b");
  ExportOptions options = ExportTo("out");
  options.format = "peft-adapter";
  options.overwrite = true;
  for (const fs::path& source : {a, b, c}) {
    options.adapter = {source.string()};
    Export(context_, options);
    const fs::path found = root_ / "out" / "chat_template.jinja";
    EXPECT_EQ(fs::exists(found), source != c);
    if (source != c) {
      EXPECT_EQ(ReadTextFile(found), source.filename().string());
    }
    ExpectSame(ReadAll(root_ / "out" / kPeftWeights), ReadAll(source / kPeftWeights));
  }
}

TEST_F(AdapterFormatsTest, ScalesBeyondFloat32AreRefused) {
  const std::string a = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "a", 1).string();
  ExportOptions options = ExportTo("out");
  options.format = "mlx-adapter";
  options.adapter = {a + ":1e39"};
  EXPECT_THAT(Refusal(options), HasSubstr("is not finite in float32"));
  options.adapter = {a + ":half"};
  EXPECT_THAT(Refusal(options), HasSubstr("expected a finite weight behind the colon, found half"));
}

}  // namespace
}  // namespace qlora
