#include "model/gguf_checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "backend/backend.h"
#include "config/gguf_config.h"
#include "ggml/encode.h"
#include "model/checkpoint.h"
#include "model/checkpoint_tensors.h"
#include "model/gguf_file.h"
#include "model/stored_places.h"
#include "model/weights.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;

// Values that count up from `first`.
std::vector<float> Counting(std::int64_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// A model of all its tensors: one block, width 8, 2 heads of 4, 1 key/value head, MLP of 6.
class Whole : public GgufModel {
 public:
  explicit Whole(const std::string& architecture) : GgufModel(architecture) {
    Key("block_count", std::uint32_t{1});
    Key("embedding_length", std::uint32_t{8});
    Key("feed_forward_length", std::uint32_t{6});
    Key("attention.head_count", std::uint32_t{2});
    Key("attention.head_count_kv", std::uint32_t{1});
    Add("token_embd.weight", {10, 8}, 0);
    Add("output_norm.weight", {8}, 1);
    Add("blk.0.attn_norm.weight", {8}, 2);
    Add("blk.0.ffn_norm.weight", {8}, 3);
    Add("blk.0.attn_q.weight", {8, 8}, 100);
    Add("blk.0.attn_k.weight", {4, 8}, 200);
    Add("blk.0.attn_v.weight", {4, 8}, 300);
    Add("blk.0.attn_output.weight", {8, 8}, 400);
    Add("blk.0.ffn_gate.weight", {6, 8}, 500);
    Add("blk.0.ffn_up.weight", {6, 8}, 600);
    Add("blk.0.ffn_down.weight", {8, 6}, 700);
  }

  void Add(const std::string& name, const std::vector<std::int64_t>& shape, float first) {
    const std::int64_t count =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
    Tensor(name, shape, Counting(count, first));
  }
  std::unique_ptr<TensorReader> Open() const {
    const std::filesystem::path path = Write();
    return OpenCheckpoint(path, LoadDecoderConfig(path));
  }
};

std::vector<float> ValuesOf(const TensorReader& reader, const std::string& name) {
  const TensorInfo* tensor = reader.Find(name);
  if (tensor == nullptr) return {};
  std::vector<float> values(tensor->elements());
  std::memcpy(values.data(), reader.Bytes(*tensor).data(), tensor->bytes());
  return values;
}

// The first value of each row, from which the values of a row count up.
std::vector<float> RowsOf(const TensorReader& reader, const std::string& name) {
  const std::vector<float> values = ValuesOf(reader, name);
  const TensorInfo* tensor = reader.Find(name);
  std::vector<float> rows;
  const std::int64_t cols = tensor == nullptr ? 1 : tensor->shape.back();
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    if (i % cols == 0) rows.push_back(values[i]);
    EXPECT_EQ(values[i], rows.back() + static_cast<float>(i % cols));
  }
  return rows;
}

constexpr const char* kAttention = "model.layers.0.self_attn.";

TEST(GgufCheckpoint, NamesAndShapesAreThoseOfHuggingFace) {
  const auto reader = Whole("qwen2").Open();
  std::vector<std::string> names;
  for (const TensorInfo& tensor : reader->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(
      names,
      ElementsAre(
          "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight",
          "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
          "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
          "model.layers.0.post_attention_layernorm.weight", "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(reader->Find("model.layers.0.mlp.down_proj.weight")->shape, ElementsAre(8, 6));
  EXPECT_THAT(reader->Find("model.norm.weight")->shape, ElementsAre(8));
  // Read in place: qwen2 rotates halves, as Hugging Face does.
  for (const TensorInfo& tensor : reader->tensors()) EXPECT_FALSE(reader->IsCopied(tensor));
  EXPECT_THAT(RowsOf(*reader, std::string(kAttention) + "k_proj.weight"),
              ElementsAre(200, 208, 216, 224));
}

TEST(GgufCheckpoint, RowsOfQueriesAndKeysComeBackInHalves) {
  Whole model("llama");
  model.Add("blk.0.attn_q.bias", {8}, 10);
  model.Add("blk.0.attn_k.bias", {4}, 20);
  model.Add("blk.0.attn_v.bias", {4}, 30);
  const auto reader = model.Open();
  // The file has dims 0 2 1 3 of each head as its rows 0 1 2 3.
  EXPECT_THAT(RowsOf(*reader, std::string(kAttention) + "q_proj.weight"),
              ElementsAre(100, 116, 108, 124, 132, 148, 140, 156));
  EXPECT_THAT(RowsOf(*reader, std::string(kAttention) + "k_proj.weight"),
              ElementsAre(200, 216, 208, 224));
  EXPECT_THAT(RowsOf(*reader, std::string(kAttention) + "v_proj.weight"),
              ElementsAre(300, 308, 316, 324));
  EXPECT_THAT(ValuesOf(*reader, std::string(kAttention) + "q_proj.bias"),
              ElementsAre(10, 12, 11, 13, 14, 16, 15, 17));
  EXPECT_THAT(ValuesOf(*reader, std::string(kAttention) + "v_proj.bias"),
              ElementsAre(30, 31, 32, 33));
  ExpectStoredPlaces(*reader, *OpenStoredTensors(reader->FileOf(reader->tensors()[0])));
  // A copy, which goes when it is released, and comes back.
  const TensorInfo& q = *reader->Find(std::string(kAttention) + "q_proj.weight");
  EXPECT_TRUE(reader->IsCopied(q));
  reader->Release(q);
  EXPECT_EQ(ValuesOf(*reader, q.name)[8], 116);
  EXPECT_FALSE(reader->IsCopied(*reader->Find(std::string(kAttention) + "v_proj.weight")));
}

// As in llama.cpp, where each is optional by itself.
TEST(GgufCheckpoint, BiasesThatAreMissingAreZero) {
  Whole model("llama");
  model.Add("blk.0.attn_q.bias", {8}, 10);
  const auto reader = model.Open();
  EXPECT_THAT(ValuesOf(*reader, std::string(kAttention) + "q_proj.bias"),
              ElementsAre(10, 12, 11, 13, 14, 16, 15, 17));
  EXPECT_THAT(ValuesOf(*reader, std::string(kAttention) + "k_proj.bias"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(ValuesOf(*reader, std::string(kAttention) + "v_proj.bias"), ElementsAre(0, 0, 0, 0));
  Context context(1);
  const auto backend = MakeCpuBackend(context, DType::kF32);
  const std::filesystem::path path = model.Write();
  const DecoderWeights weights = LoadWeights(context, *backend, path, LoadDecoderConfig(path), {});
  EXPECT_EQ(weights.layers[0].linears.qkv[2].bias.cols, 4);
}

// Also where the values are quantized as they are loaded, and where they are converted.
TEST(GgufCheckpoint, NotANumberIsNamedAsTheFileHasIt) {
  for (const bool load_in_4bit : {true, false}) {
    for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_q.bias", "token_embd.weight"}) {
      Whole model("llama");
      model.Add("blk.0.attn_q.bias", {8}, 10);
      model.Add("blk.0.attn_k.bias", {4}, 20);
      model.Add("blk.0.attn_v.bias", {4}, 30);
      const bool is_bias = std::string_view(name).ends_with("bias");
      const std::int64_t width = is_bias ? 1 : 8;
      const std::int64_t rows = name[0] == 't' ? 10 : 8;
      std::vector<float> values(rows * width, 1);
      // Row 5 of the file is another one of the model.
      values[5 * width] = std::nanf("");
      model.Tensor(name, is_bias ? std::vector{rows} : std::vector{rows, width}, values);
      const std::filesystem::path path = model.Write();
      Context context(1);
      const auto backend = MakeCpuBackend(context, DType::kF32);
      LoadOptions load;
      load.load_in_4bit = load_in_4bit;
      ExpectRefused([&] { LoadWeights(context, *backend, path, LoadDecoderConfig(path), load); },
                    fmt::format("model.gguf: tensor '{}' holds a NaN or Inf at {}", name,
                                is_bias ? "index 5" : "row 5, column 0"));
    }
  }
}

TEST(GgufCheckpoint, JoinedQueriesKeysAndValuesAreCut) {
  for (const char* architecture : {"llama", "qwen2"}) {
    Whole model(architecture);
    for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
      model.Remove(std::string("blk.0.") + name + ".weight");
    }
    model.Add("blk.0.attn_qkv.weight", {16, 8}, 0);
    model.Add("blk.0.attn_qkv.bias", {16}, 0);
    const auto reader = model.Open();
    const bool interleaved = std::string(architecture) == "llama";
    const float second = interleaved ? 80 : 72;
    EXPECT_THAT(RowsOf(*reader, std::string(kAttention) + "k_proj.weight"),
                ElementsAre(64, second, 152 - second, 88));
    EXPECT_THAT(RowsOf(*reader, std::string(kAttention) + "v_proj.weight"),
                ElementsAre(96, 104, 112, 120));
    EXPECT_THAT(ValuesOf(*reader, std::string(kAttention) + "k_proj.bias"),
                ElementsAre(8, interleaved ? 10 : 9, interleaved ? 9 : 10, 11));
    EXPECT_THAT(ValuesOf(*reader, std::string(kAttention) + "v_proj.bias"),
                ElementsAre(12, 13, 14, 15));
  }
}

TEST(GgufCheckpoint, PhiHasOneLinearOfQueriesKeysAndValues) {
  Whole model("phi3");
  model.Remove("blk.0.ffn_gate.weight");
  model.Add("blk.0.ffn_up.weight", {12, 8}, 600);
  const auto apart = model.Open();
  EXPECT_THAT(apart->Find("model.layers.0.mlp.gate_up_proj.weight")->shape, ElementsAre(12, 8));
  const std::string name = std::string(kAttention) + "qkv_proj.weight";
  EXPECT_THAT(apart->Find(name)->shape, ElementsAre(16, 8));
  EXPECT_EQ(RowsOf(*apart, name)[8], 200);
  EXPECT_EQ(RowsOf(*apart, name)[15], 324);
  // In two types it becomes float32.
  model.Tensor("blk.0.attn_v.weight", DType::kF16, {4, 8}, std::string(64, '\0'));
  const auto mixed = model.Open();
  EXPECT_EQ(mixed->Find(name)->dtype, DType::kF32);
  EXPECT_EQ(ValuesOf(*mixed, name)[8 * 8], 200);
  EXPECT_EQ(ValuesOf(*mixed, name)[15 * 8], 0);
}

TEST(GgufCheckpoint, ExpertsAreSlicesOfTheirStack) {
  for (const char* architecture : {"qwen3moe", "llama"}) {
    Whole model(architecture);
    model.Key("expert_count", std::uint32_t{3});
    model.Key("expert_used_count", std::uint32_t{1});
    for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) {
      model.Remove(std::string("blk.0.") + name + ".weight");
    }
    const bool qwen = std::string(architecture) == "qwen3moe";
    if (qwen) {
      model.Add("blk.0.attn_q_norm.weight", {4}, 4);
      model.Add("blk.0.attn_k_norm.weight", {4}, 5);
    }
    model.Add("blk.0.ffn_gate_inp.weight", {3, 8}, 1000);
    model.Add("blk.0.ffn_gate_exps.weight", {3, 6, 8}, 2000);
    model.Add("blk.0.ffn_up_exps.weight", {3, 6, 8}, 3000);
    model.Add("blk.0.ffn_down_exps.weight", {3, 8, 6}, 4000);
    const auto reader = model.Open();
    const std::string block = qwen ? "model.layers.0.mlp." : "model.layers.0.block_sparse_moe.";
    EXPECT_EQ(RowsOf(*reader, block + "gate.weight")[2], 1016);
    const TensorInfo* up =
        reader->Find(block + (qwen ? "experts.1.up_proj.weight" : "experts.1.w3.weight"));
    ASSERT_NE(up, nullptr);
    EXPECT_THAT(up->shape, ElementsAre(6, 8));
    EXPECT_FALSE(reader->IsCopied(*up));
    EXPECT_EQ(ValuesOf(*reader, up->name)[0], 3048);
    const std::string down = block + (qwen ? "experts.2.down_proj.weight" : "experts.2.w2.weight");
    EXPECT_EQ(ValuesOf(*reader, down)[0], 4096);
    EXPECT_EQ(
        ValuesOf(*reader, block + (qwen ? "experts.0.gate_proj.weight" : "experts.0.w1.weight"))[0],
        2000);
  }
}

// Widens a model to rows of one block of 32 values.
void Widen(Whole& model) {
  model.Key("attention.key_length", std::uint32_t{32});
  model.Key("attention.value_length", std::uint32_t{32});
  model.Key("embedding_length", std::uint32_t{32});
  model.Add("token_embd.weight", {10, 32}, 0);
  for (const char* norm : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"}) {
    model.Add(std::string(norm) + ".weight", {32}, 0);
  }
  model.Add("blk.0.attn_q.weight", {64, 32}, 0);
  model.Add("blk.0.attn_k.weight", {32, 32}, 0);
  model.Add("blk.0.attn_v.weight", {32, 32}, 0);
  model.Add("blk.0.attn_output.weight", {32, 64}, 0);
  model.Add("blk.0.ffn_gate.weight", {6, 32}, 0);
  model.Add("blk.0.ffn_up.weight", {6, 32}, 0);
  model.Add("blk.0.ffn_down.weight", {32, 6}, 0);
}

TEST(GgufCheckpoint, BlocksStayBlocks) {
  Whole model("llama");
  Widen(model);
  // Only this tensor is looked at: 64 rows of one block each, whose scale is 0 and first code the
  // row.
  std::string blocks;
  for (int row = 0; row < 64; ++row)
    blocks += std::string(2, '\0') + std::string(32, static_cast<char>(row));
  model.Tensor("blk.0.attn_q.weight", BlockFormat::kQ8_0, {64, 32}, blocks);
  const auto reader = model.Open();
  const TensorInfo& q = *reader->Find(std::string(kAttention) + "q_proj.weight");
  EXPECT_EQ(q.dtype, BlockFormat::kQ8_0);
  const std::string bytes = AsString(reader->Bytes(q));
  ASSERT_EQ(bytes.size(), blocks.size());
  // Row 1 of a head is row 2 of the file, and row 16 is row 1.
  EXPECT_EQ(bytes[1 * 34 + 2], 2);
  EXPECT_EQ(bytes[16 * 34 + 2], 1);
  EXPECT_EQ(bytes[63 * 34 + 2], 63);
}

// A model of 16-bit linears may hold its tables in blocks; its linears can be quantized then.
TEST(GgufCheckpoint, LinearsInBlocksMakeItQuantized) {
  Whole model("llama");
  Widen(model);
  model.Tensor("token_embd.weight", BlockFormat::kQ8_0, {10, 32}, std::string(10 * 34, '\0'));
  model.Tensor("output.weight", BlockFormat::kQ8_0, {10, 32}, std::string(10 * 34, '\0'));
  const DecoderConfig config = LoadDecoderConfig(model.Write());
  EXPECT_FALSE(CheckpointTensors(*model.Open(), config).is_quantized());
  model.Tensor("blk.0.attn_v.weight", BlockFormat::kQ8_0, {32, 32}, std::string(32 * 34, '\0'));
  EXPECT_TRUE(CheckpointTensors(*model.Open(), config).is_quantized());
}

TEST(GgufCheckpoint, ScalesOfWeightsAreMultipliedIn) {
  Whole model("llama");
  model.Tensor("blk.0.attn_q.scale", {1}, {2});
  model.Tensor("blk.0.ffn_up.scale", {1}, {1});
  model.Tensor("blk.0.ffn_up.input_scale", {1}, {3});  // not used by llama.cpp
  const auto reader = model.Open();
  EXPECT_EQ(ValuesOf(*reader, std::string(kAttention) + "q_proj.weight")[8], 2 * 116);
  EXPECT_EQ(reader->Find(std::string(kAttention) + "q_proj.weight")->dtype, DType::kF32);
  EXPECT_FALSE(reader->IsCopied(*reader->Find("model.layers.0.mlp.up_proj.weight")));
  model.Tensor("blk.0.attn_q.scale", {1}, {0});
  ExpectRefused([&] { model.Open(); },
                "'blk.0.attn_q.scale': expected numbers of F32 other than 0");
  model.Remove("blk.0.attn_q.scale");
  model.Tensor("token_embd.scale", {1}, {2});
  ExpectRefused([&] { model.Open(); }, "tensor 'token_embd.scale' is none of a llama");
}

TEST(GgufCheckpoint, TheScaleOfAnMlpIsBehindItsBias) {
  Whole model("llama");
  model.Tensor("blk.0.ffn_up.scale", {1}, {2});
  model.Add("blk.0.ffn_gate.bias", {6}, 800);
  model.Add("blk.0.ffn_up.bias", {6}, 900);
  model.Add("blk.0.ffn_down.bias", {8}, 1000);
  model.Tensor("blk.0.attn_q.scale", {1}, {2});
  model.Add("blk.0.attn_q.bias", {8}, 1100);
  model.Add("blk.0.attn_k.bias", {4}, 1200);
  model.Add("blk.0.attn_v.bias", {4}, 1300);
  const auto reader = model.Open();
  EXPECT_EQ(ValuesOf(*reader, "model.layers.0.mlp.up_proj.bias")[1], 2 * 901);
  EXPECT_EQ(ValuesOf(*reader, "model.layers.0.mlp.gate_proj.bias")[1], 801);
  EXPECT_EQ(ValuesOf(*reader, std::string(kAttention) + "q_proj.bias")[0], 1100);
}

TEST(GgufCheckpoint, EachExpertHasItsScale) {
  Whole model("llama");
  model.Key("expert_count", std::uint32_t{2});
  model.Key("expert_used_count", std::uint32_t{1});
  for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) {
    model.Remove(std::string("blk.0.") + name + ".weight");
  }
  model.Add("blk.0.ffn_gate_inp.weight", {2, 8}, 1);
  model.Add("blk.0.ffn_gate_exps.weight", {2, 6, 8}, 1);
  model.Add("blk.0.ffn_up_exps.weight", {2, 6, 8}, 1);
  model.Add("blk.0.ffn_down_exps.weight", {2, 8, 6}, 1);
  model.Tensor("blk.0.ffn_down_exps.scale", {2}, {1, 4});
  const auto reader = model.Open();
  EXPECT_EQ(ValuesOf(*reader, "model.layers.0.block_sparse_moe.experts.0.w2.weight")[1], 2);
  EXPECT_EQ(ValuesOf(*reader, "model.layers.0.block_sparse_moe.experts.1.w2.weight")[0], 4 * 49);
}

TEST(GgufCheckpoint, NamesTheTensorThatIsWrong) {
  const auto refused = [](const char* architecture, const auto& change,
                          const std::string& message) {
    Whole model(architecture);
    change(model);
    ExpectRefused([&] { model.Open(); }, message);
    ExpectRefused([&] { model.Open(); }, "model.gguf");
  };
  refused(
      "llama", [](Whole& m) { m.Remove("blk.0.ffn_up.weight"); },
      "tensor 'blk.0.ffn_up.weight' is missing, which a llama of 1 layers has");
  refused(
      "llama",
      [](Whole& m) {
        m.Add("blk.0.ffn_up.weight", {8, 6}, 0);
      },
      "'blk.0.ffn_up.weight' has the shape [8, 6], its keys expect [6, 8]");
  refused(
      "llama", [](Whole& m) { m.Add("blk.0.attn_norm.weight", {9}, 0); },
      "'blk.0.attn_norm.weight' has the shape [9], its keys expect [8]");
  refused(
      "llama", [](Whole& m) { m.Add("blk.0.attn_q.bias", {9}, 0); },
      "'blk.0.attn_q.bias' has the shape [9], its keys expect [8]");
  refused(
      "llama", [](Whole& m) { m.Add("blk.0.extra.weight", {8}, 0); },
      "tensor 'blk.0.extra.weight' is none of a llama of 1 layers that is supported");
  // Layers behind the count of blocks.
  refused(
      "llama",
      [](Whole& m) {
        m.Add("blk.1.attn_q.weight", {8, 8}, 0);
      },
      "tensor 'blk.1.attn_q.weight' is none of a llama of 1 layers");
  refused(
      "llama",
      [](Whole& m) {
        m.Tensor("blk.0.attn_q.weight", DType::kF64, {8, 8}, std::string(512, '\0'));
      },
      "tensor 'blk.0.attn_q.weight' is F64, expected F32, F16, BF16 or blocks");
  // Norms of heads are qwen3's, divisors of frequencies llama's, and Gemma 2 has no head.
  refused(
      "llama", [](Whole& m) { m.Add("blk.0.attn_q_norm.weight", {4}, 0); }, "is none of a llama");
  refused(
      "qwen2", [](Whole& m) { m.Add("rope_freqs.weight", {2}, 1); },
      "tensor 'rope_freqs.weight' is none of a qwen2");
  refused(
      "gemma2",
      [](Whole& m) {
        m.Add("blk.0.post_attention_norm.weight", {8}, 0);
        m.Add("blk.0.post_ffw_norm.weight", {8}, 0);
        m.Add("output.weight", {10, 8}, 0);
      },
      "tensor 'output.weight' is none of a gemma2");
  // Biases of o and of the MLP are tensors that llama.cpp has in some families.
  refused(
      "qwen2", [](Whole& m) { m.Add("blk.0.attn_output.bias", {8}, 0); },
      "tensor 'blk.0.attn_output.bias' is none of a qwen2");
  refused(
      "qwen2", [](Whole& m) { m.Add("blk.0.ffn_up.bias", {6}, 0); },
      "tensor 'blk.0.ffn_up.bias' is none of a qwen2");
}

}  // namespace
}  // namespace qlora
