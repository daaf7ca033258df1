// The files of adapters: what mlx-lm finds in ours, what is read of others, and what is refused.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "adapter/mlx_adapter.h"
#include "base/file.h"
#include "export/adapter_fixture.h"
#include "gguf/gguf_writer.h"
#include "io/json.h"
#include "io/peft/peft_config.h"
#include "io/safetensors_writer.h"
#include "io/test_util.h"
#include "model/checkpoint.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using AdapterFilesTest = AdapterFormatsTest;

TEST_F(AdapterFilesTest, MlxFilesAreWhatMlxLmReads) {
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
            (std::vector<std::int64_t>{4, decoder.layer(0).q_features()}));
  EXPECT_EQ(reader->Find("lm_head.lora_b")->shape,
            (std::vector<std::int64_t>{4, decoder.vocab_size}));
  const Tensors a = ReadAll(source / kPeftWeights);
  const Tensors b = ReadAll(mlx / kMlxWeights);
  // Element (1, 2) of A is (2, 1) there.
  EXPECT_EQ(b.at(q + ".lora_a")[2 * 4 + 1],
            a.at("base_model.model." + q + ".lora_A.weight")[d + 2]);
}

TEST_F(AdapterFilesTest, MlxHasTheLastLayersAndOneRank) {
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

TEST_F(AdapterFilesTest, RefusesOutputsThatAreSomethingElse) {
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
  WriteTextFile(root_ / "file", "");
  EXPECT_THAT(refusal("file", "mlx-adapter", true), HasSubstr("file is a file"));
  const fs::path trained = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "trained", 2);
  WriteTextFile(trained / "run_info.json", "{}");
  EXPECT_THAT(refusal("trained", "peft-adapter", true), HasSubstr("is the folder of a training"));
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

TEST_F(AdapterFilesTest, RefusesMlxAdaptersThatMeanSomethingElse) {
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
  const auto refuse_dropout = [&](const Json& dropout, const std::string& part) {
    refuse({{"lora_parameters", {{"rank", 4}, {"scale", 2.0}, {"dropout", dropout}}}},
           "adapter_config.json: key 'dropout': " + part);
  };
  refuse_dropout("0.1", "expected a number");
  refuse_dropout(1, "expected 0 <= p < 1, found 1");
  refuse_dropout(-0.5, "expected 0 <= p < 1, found -0.5");
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

// The files of a folder tell whose it is, not the keys of its configuration.
TEST_F(AdapterFilesTest, AnEmptyConfigurationBesideMlxWeightsIsOneOfMlx) {
  const fs::path source = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "a", 1);
  const fs::path mlx = Convert("llama-tiny", {source}, "mlx", "mlx");
  WriteTextFile(mlx / "adapter_config.json", R"({"model": "org/base"})");
  EXPECT_EQ(BaseOfAdapter(mlx), "org/base");
  WriteTextFile(mlx / "adapter_config.json", "{}");
  EXPECT_EQ(BaseOfAdapter(mlx), "");
  ExpectRefused([&] { ReadMlxValues(mlx, LoadDecoderConfig(kGolden / "llama-tiny")); },
                "key 'lora_parameters' is missing");
}

TEST_F(AdapterFilesTest, RefusesGgufFilesOfOtherModels) {
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

TEST_F(AdapterFilesTest, ReadsGgufAdaptersOfTheTables) {
  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  const std::int64_t vocab = decoder.vocab_size;
  const std::int64_t hidden = decoder.hidden_size;
  const auto values = [](std::int64_t count) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>(i % 13) - 6);
    return out;
  };
  const auto write = [&](const std::string& name, std::optional<float> alpha,
                         const std::string& extra, DType type_of_b = DType::kF32) {
    GgufMetadata keys;
    keys.Add("general.architecture", std::string("llama"));
    keys.Add("general.type", std::string("adapter"));
    keys.Add("adapter.type", std::string("lora"));
    if (alpha) keys.Add("adapter.lora.alpha", *alpha);
    if (!extra.empty()) keys.Add(extra, GgufArray(std::vector<std::uint32_t>{1, 2}));
    const auto writer = CreateGguf(root_ / name, keys,
                                   {{"output.weight.lora_a", DType::kF32, {2, hidden}},
                                    {"output.weight.lora_b", type_of_b, {vocab, 2}},
                                    {"token_embd.weight.lora_a", DType::kF32, {vocab, 2}},
                                    {"token_embd.weight.lora_b", DType::kF32, {hidden, 2}}});
    for (const std::int64_t count : {2 * hidden, vocab * 2, vocab * 2, hidden * 2}) {
      const std::vector<float> data = values(count);
      writer->Write(std::as_bytes(std::span(data)));
    }
    writer->Finish();
    return root_ / name;
  };
  const AdapterValues found = ReadGgufValues(write("a.gguf", 6, ""), decoder);
  ASSERT_EQ(found.modules.size(), 2u);
  const LoraValues& head = found.modules[0];
  EXPECT_EQ(head.path, "lm_head");
  EXPECT_EQ(head.scale, 3);
  EXPECT_EQ(head.a, values(2 * hidden));
  EXPECT_EQ(head.b, values(2 * vocab));
  const LoraValues& embedding = found.modules[1];
  EXPECT_EQ(embedding.path, "model.embed_tokens");
  // A is (R, V) here and rows by token there.
  EXPECT_EQ(embedding.a[vocab + 5], values(2 * vocab)[5 * 2 + 1]);
  EXPECT_EQ(embedding.b, values(2 * hidden));
  EXPECT_EQ(ReadGgufValues(write("zero.gguf", 0.0F, ""), decoder).modules[0].scale, 1);
  EXPECT_EQ(ReadGgufValues(write("none.gguf", {}, ""), decoder).modules[0].scale, 1);
  ExpectRefused(
      [&] { ReadGgufValues(write("alora.gguf", 6, "adapter.alora.invocation_tokens"), decoder); },
      "key 'adapter.alora.invocation_tokens' is set");
  ExpectRefused([&] { ReadGgufValues(write("i32.gguf", 6, "", DType::kI32), decoder); },
                "i32.gguf: tensor 'output.weight.lora_b': expected F32, F16, BF16 or a type of "
                "blocks, found I32");
  ExpectRefused([&] { ReadGgufValues(write("nan.gguf", std::nanf(""), ""), decoder); },
                "nan.gguf: key 'adapter.lora.alpha': expected a finite number, found nan");
  ExpectRefused([&] { ReadGgufValues(write("inf.gguf", -HUGE_VALF, ""), decoder); },
                "expected a finite number, found -inf");
}

// A signal ends the work by what a report of progress throws.
TEST_F(AdapterFilesTest, ReadingAnAdapterOfAnyFormatCanBeEnded) {
  struct Stop {};
  const fs::path peft = WriteRandom("llama-tiny", Targeting({"q_proj"}, 4, 8), "a", 1);
  for (const fs::path& adapter : {peft, Convert("llama-tiny", {peft}, "mlx", "mlx"),
                                  Convert("llama-tiny", {peft}, "a.gguf", "gguf")}) {
    for (const char* format : {"peft-adapter", "gguf-adapter"}) {
      ExportOptions options = ExportTo("out");
      options.adapter = {adapter};
      options.format = format;
      options.outtype = "f32";
      // No weights are loaded, whose progress is reported as well.
      options.verify = "false";
      const ProgressFn stop = [](std::int64_t, std::int64_t) { throw Stop(); };
      EXPECT_THROW(Export(context_, options, stop), Stop) << adapter << " " << format;
      EXPECT_FALSE(fs::exists(options.output));
    }
  }
}

TEST_F(AdapterFilesTest, ReadsBlocksOfGgufAdapters) {
  ExportOptions options = ExportTo("a.gguf");
  options.adapter = {WriteRandom("llama-tiny", Targeting({"down_proj"}, 32, 8), "a", 1).string()};
  options.format = "gguf-adapter";
  options.outtype = "q8_0";
  EXPECT_TRUE(Export(context_, options).verified);
}

}  // namespace
}  // namespace qlora
