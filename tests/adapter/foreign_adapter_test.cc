// Adapters of PEFT that change tables and stacks of experts: their values in float32 against sums
// in double.
#include <gtest/gtest.h>

#include "adapter/expert_stack.h"
#include "adapter/lora.h"
#include "backend/backend.h"
#include "base/file.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "io/test_util.h"

namespace qlora {
namespace {

constexpr std::int64_t kVocab = 6;
constexpr std::int64_t kHidden = 4;

class ForeignAdapterTest : public ::testing::Test {
 protected:
  ForeignAdapterTest() {
    for (std::int64_t i = 0; i < kVocab * kHidden; ++i) {
      embed_.push_back(0.5f * static_cast<float>(i % 7));
      head_.push_back(0.25f * static_cast<float>(i % 5) - 1);
    }
  }

  static DecoderConfig Config(bool tied, std::int64_t experts = 0, std::int64_t intermediate = 3) {
    Json json = {{"model_type", experts > 0 ? "qwen3_moe" : "qwen3"},
                 {"architectures", {experts > 0 ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM"}},
                 {"hidden_size", kHidden},
                 {"intermediate_size", 8},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 2},
                 {"head_dim", 2},
                 {"vocab_size", kVocab},
                 {"max_position_embeddings", 64},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 1e4},
                 {"tie_word_embeddings", tied}};
    if (experts > 0) {
      json.update({{"num_experts", experts},
                   {"num_experts_per_tok", 1},
                   {"moe_intermediate_size", intermediate},
                   {"norm_topk_prob", true}});
    }
    return ParseDecoderConfig(json, "config.json");
  }

  // Adds a tensor with small values; returns them.
  std::vector<float> Add(const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(0.125f * static_cast<float>((3 * i + std::ssize(tensors_)) % 11) - 0.5f);
    }
    tensors_.push_back({"base_model.model." + name, DType::kF32, std::move(shape)});
    values_.push_back(values);
    return values;
  }

  LoraAdapter Load(const DecoderConfig& config, Json more) {
    const auto writer = CreateSafetensors(folder_ / "adapter_model.safetensors", tensors_, {});
    for (const std::vector<float>& values : values_) writer->Write(BytesOfVector(values));
    writer->Finish();
    Json json = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}};
    json.update(more);
    WriteTextFile(folder_ / "adapter_config.json", FormatJson(json));
    LoraAdapter adapter = LoraAdapter::Load(folder_.path(), config, HostMemory());
    weights_.embed = MakeView(embed_.data(), kVocab, kHidden);
    weights_.head = config.tie_word_embeddings
                        ? weights_.embed
                        : WeightView(MakeView(head_.data(), kVocab, kHidden));
    adapter.FoldTables(weights_);
    return adapter;
  }

  static void ExpectRow(const ConstMatrixView& table, std::int64_t row,
                        const std::vector<double>& expected) {
    for (std::int64_t i = 0; i < kHidden; ++i) {
      EXPECT_NEAR(table.Row<float>(row)[i], expected[i], 1e-6) << row << " " << i;
    }
  }

  std::vector<float> embed_, head_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::vector<float>> values_;
  DecoderWeights weights_;
  TemporaryFolder folder_;
};

TEST_F(ForeignAdapterTest, AddsALoraOnTheHead) {
  for (const bool tied : {false, true}) {
    tensors_.clear();
    values_.clear();
    const auto a = Add("lm_head.lora_A.weight", {2, kHidden});
    const auto b = Add("lm_head.lora_B.weight", {kVocab, 2});
    const LoraAdapter adapter = Load(Config(tied), {{"target_modules", {"lm_head"}}});
    EXPECT_EQ(adapter.embedding(), nullptr);
    const ConstMatrixView head = HeadOf(weights_, &adapter).dense;
    EXPECT_NE(head.data, weights_.embed.dense.data);
    const std::vector<float>& base = tied ? embed_ : head_;
    for (std::int64_t v = 0; v < kVocab; ++v) {
      std::vector<double> row(base.begin() + v * kHidden, base.begin() + (v + 1) * kHidden);
      for (std::int64_t i = 0; i < kHidden; ++i) {
        for (std::int64_t r = 0; r < 2; ++r) row[i] += 2.0 * b[v * 2 + r] * a[r * kHidden + i];
      }
      ExpectRow(head, v, row);
    }
  }
}

TEST_F(ForeignAdapterTest, AddsALoraOnTheEmbeddings) {
  const auto a = Add("model.embed_tokens.lora_embedding_A", {2, kVocab});
  const auto b = Add("model.embed_tokens.lora_embedding_B", {kHidden, 2});
  const LoraAdapter adapter = Load(Config(true), {{"target_modules", {"embed_tokens"}}});
  // PEFT leaves a head that was tied to the embeddings as it is.
  EXPECT_EQ(HeadOf(weights_, &adapter).dense.data, weights_.head.dense.data);
  for (std::int64_t v = 0; v < kVocab; ++v) {
    std::vector<double> row(embed_.begin() + v * kHidden, embed_.begin() + (v + 1) * kHidden);
    for (std::int64_t i = 0; i < kHidden; ++i) {
      for (std::int64_t r = 0; r < 2; ++r) row[i] += 2.0 * b[i * 2 + r] * a[r * kVocab + v];
    }
    ExpectRow(EmbeddingOf(weights_, &adapter).dense, v, row);
  }
}

// With the key PEFT changes a tied head with the embeddings, whichever of the two the file names.
TEST_F(ForeignAdapterTest, ALoraOfTiedTablesIsOfBoth) {
  Add("model.embed_tokens.lora_embedding_A", {2, kVocab});
  Add("model.embed_tokens.lora_embedding_B", {kHidden, 2});
  Json json = {{"target_modules", {"embed_tokens"}}, {"ensure_weight_tying", true}};
  const LoraAdapter tied = Load(Config(true), json);
  EXPECT_EQ(HeadOf(weights_, &tied).dense.data, EmbeddingOf(weights_, &tied).dense.data);
  EXPECT_EQ(Load(Config(false), json).head(), nullptr);
  tensors_.clear();
  values_.clear();
  const auto a = Add("lm_head.lora_A.weight", {2, kHidden});
  const auto b = Add("lm_head.lora_B.weight", {kVocab, 2});
  json["target_modules"] = {"lm_head"};
  const LoraAdapter of_head = Load(Config(true), json);
  const ConstMatrixView table = EmbeddingOf(weights_, &of_head).dense;
  EXPECT_EQ(HeadOf(weights_, &of_head).dense.data, table.data);
  for (std::int64_t v = 0; v < kVocab; ++v) {
    std::vector<double> row(embed_.begin() + v * kHidden, embed_.begin() + (v + 1) * kHidden);
    for (std::int64_t i = 0; i < kHidden; ++i) {
      for (std::int64_t r = 0; r < 2; ++r) row[i] += 2.0 * b[v * 2 + r] * a[r * kHidden + i];
    }
    ExpectRow(table, v, row);
  }
}

// As PEFT saves them beside transformers 5: the configuration names the embedding, twice.
TEST_F(ForeignAdapterTest, OfTiedTablesOneIsNamed) {
  const auto a = Add("model.embed_tokens.lora_embedding_A", {2, kVocab});
  const auto b = Add("model.embed_tokens.lora_embedding_B", {kHidden, 2});
  // Those of the head are turned.
  const auto turned = [&](const std::string& name, const std::vector<float>& values,
                          std::int64_t rows, std::int64_t cols) {
    Add(name, {cols, rows});
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        values_.back()[c * rows + r] = values[r * cols + c];
      }
    }
  };
  turned("lm_head.lora_A.weight", b, kHidden, 2);
  turned("lm_head.lora_B.weight", a, 2, kVocab);
  const Json json = {{"target_modules", {"model.embed_tokens", "embed_tokens"}},
                     {"ensure_weight_tying", true}};
  const LoraAdapter adapter = Load(Config(true), json);
  const ConstMatrixView embed = EmbeddingOf(weights_, &adapter).dense;
  EXPECT_EQ(HeadOf(weights_, &adapter).dense.data, embed.data);
  for (std::int64_t v = 0; v < kVocab; ++v) {
    std::vector<double> row(embed_.begin() + v * kHidden, embed_.begin() + (v + 1) * kHidden);
    for (std::int64_t i = 0; i < kHidden; ++i) {
      for (std::int64_t r = 0; r < 2; ++r) row[i] += 2.0 * b[i * 2 + r] * a[r * kVocab + v];
    }
    ExpectRow(embed, v, row);
  }
  // In a model whose tables are apart, PEFT passes over what is not named.
  ExpectRefused(
      [&] {
        Load(Config(false), {{"target_modules", {"embed_tokens"}}});
      },
      "do not name it");
}

// The experts of a class are parameters, which names of linears do not reach.
TEST_F(ForeignAdapterTest, NamesOfLinearsDoNotReachExpertsThatAreParameters) {
  Add("model.layers.0.self_attn.q_proj.lora_A.weight", {2, kHidden});
  Add("model.layers.0.self_attn.q_proj.lora_B.weight", {kHidden, 2});
  for (const Json& excluded : {Json(), Json({"k_proj"}), Json(".*v_proj")}) {
    const LoraAdapter adapter = Load(
        Config(false, 3),
        {{"target_modules", {"q_proj", "up_proj", "down_proj"}}, {"exclude_modules", excluded}});
    EXPECT_EQ(adapter.layers()[0].down[1].rank, 0);
    EXPECT_EQ(adapter.layers()[0].qkv[0].rank, 2);
    EXPECT_FALSE(HaveEqualExperts(adapter.config(), Config(false, 3)));
  }
  // A linear that the class has, without a LoRA, is an error as before.
  ExpectRefused(
      [&] {
        Load(Config(false, 3), {{"target_modules", {"q_proj", "k_proj"}}});
      },
      "there are no tensors for it");
}

// PEFT looks for the ends of paths, and takes a name that the model does not have.
TEST_F(ForeignAdapterTest, ModulesToSaveThatTheModelLacksAreNamed) {
  Add("model.layers.0.self_attn.q_proj.lora_A.weight", {2, kHidden});
  Add("model.layers.0.self_attn.q_proj.lora_B.weight", {kHidden, 2});
  const auto norm = Add("model.layers.0.input_layernorm.weight", {kHidden});
  const LoraAdapter adapter =
      Load(Config(false), {{"target_modules", {"q_proj"}}, {"modules_to_save", {"embed", "norm"}}});
  EXPECT_EQ(adapter.replaced()->at("model.layers.0.input_layernorm.weight").values, norm);
  ASSERT_EQ(adapter.notes().size(), 1u);
  EXPECT_EQ(adapter.notes()[0], "modules_to_save names 'embed', which this model does not have");
  ExpectRefused(
      [&] {
        Load(Config(false),
             {{"target_modules", {"q_proj"}}, {"modules_to_save", {"norm", "k_proj"}}});
      },
      "'k_proj' cannot be trained as a whole");
}

TEST_F(ForeignAdapterTest, ATableOfATiedModelMayBeStoredTwiceWhereItIsOne) {
  const auto table = Add("model.embed_tokens.weight", {kVocab, kHidden});
  Add("model.layers.0.self_attn.q_proj.lora_A.weight", {2, kHidden});
  Add("model.layers.0.self_attn.q_proj.lora_B.weight", {4, 2});
  const Json json = {{"target_modules", {"q_proj"}},
                     {"modules_to_save", {"embed_tokens", "lm_head"}},
                     {"ensure_weight_tying", true}};
  tensors_.push_back({"base_model.model.lm_head.weight", DType::kF32, {kVocab, kHidden}});
  values_.push_back(table);
  const LoraAdapter adapter = Load(Config(true), json);
  EXPECT_EQ(HeadOf(weights_, &adapter).dense.data, EmbeddingOf(weights_, &adapter).dense.data);
  EXPECT_EQ(adapter.modules().size(), 1u);
  values_.back()[0] += 1;
  ExpectRefused([&] { Load(Config(true), json); }, "what the adapter has for lm_head");
}

TEST_F(ForeignAdapterTest, ReplacesRowsOfTokens) {
  for (const bool tied : {false, true}) {
    tensors_.clear();
    values_.clear();
    const auto rows = Add("model.embed_tokens.token_adapter.trainable_tokens_delta", {2, kHidden});
    const LoraAdapter adapter = Load(Config(tied), {{"trainable_token_indices", {5, 1}}});
    const ConstMatrixView embed = EmbeddingOf(weights_, &adapter).dense;
    ExpectRow(embed, 5, {rows.begin(), rows.begin() + kHidden});
    ExpectRow(embed, 1, {rows.begin() + kHidden, rows.end()});
    ExpectRow(embed, 0, {embed_.begin(), embed_.begin() + kHidden});
    EXPECT_EQ(HeadOf(weights_, &adapter).dense.data == embed.data, tied);
  }
  ExpectRefused([&] { Load(Config(true), {{"trainable_token_indices", {5, 6}}}); }, "token id 6");
}

TEST_F(ForeignAdapterTest, TakesTablesOfAResizedVocabulary) {
  Add("model.embed_tokens.weight", {kVocab + 2, kHidden});
  Add("model.layers.0.self_attn.q_proj.lora_A.weight", {2, kHidden});
  Add("model.layers.0.self_attn.q_proj.lora_B.weight", {4, 2});
  const Json targets = {{"target_modules", {"q_proj"}}};
  EXPECT_EQ(Load(Config(true), targets).vocab_size(), kVocab + 2);
  ExpectRefused([&] { Load(Config(false), targets); }, "resized vocabulary");
  Add("lm_head.weight", {kVocab + 2, kHidden});
  const LoraAdapter adapter = Load(Config(false), targets);
  EXPECT_EQ(HeadOf(weights_, &adapter).rows(), kVocab + 2);
}

// A[e] is rows e r ... of lora_A, B[e] columns e, E + e ... of lora_B; gate has the first rows of
// B.
TEST_F(ForeignAdapterTest, SplitsStacksOfExperts) {
  constexpr std::int64_t kExperts = 3;
  constexpr std::int64_t kF = 3;
  const std::string experts = "model.layers.0.mlp.experts";
  const auto a1 = Add(experts + ".base_layer.lora_A.weight", {kExperts * 2, kHidden});
  const auto b1 = Add(experts + ".base_layer.lora_B.weight", {2 * kF, kExperts * 2});
  const auto a2 = Add(experts + ".lora_A.weight", {kExperts * 2, kF});
  const auto b2 = Add(experts + ".lora_B.weight", {kHidden, kExperts * 2});
  const LoraAdapter adapter =
      Load(Config(false, kExperts),
           {{"target_parameters", {"experts.gate_up_proj", "experts.down_proj"}}});
  const PerLinear<LoraLinear>& layer = adapter.layers()[0];
  for (std::int64_t e = 0; e < kExperts; ++e) {
    for (std::int64_t half = 0; half < 2; ++half) {
      const LoraLinear& lora = layer.gate_up[2 * e + half];
      ASSERT_EQ(lora.rank, 2);
      EXPECT_EQ(lora.scale, 2);
      for (std::int64_t r = 0; r < 2; ++r) {
        EXPECT_EQ(lora.a.Row<float>(r)[1], a1[(e * 2 + r) * kHidden + 1]);
        EXPECT_EQ(lora.b.Row<float>(2)[r], b1[(half * kF + 2) * kExperts * 2 + r * kExperts + e]);
      }
    }
    EXPECT_EQ(layer.down[e].a.Row<float>(1)[2], a2[(e * 2 + 1) * kF + 2]);
    EXPECT_EQ(layer.down[e].b.Row<float>(3)[1], b2[3 * kExperts * 2 + kExperts + e]);
  }
}

// As PEFT up to 0.18 writes them: W[e] += (B[e] A[e])^T, so that A is what others call B.
TEST_F(ForeignAdapterTest, SplitsStacksOfExpertsWithTheirSidesExchanged) {
  constexpr std::int64_t kExperts = 3;
  constexpr std::int64_t kF = 3;
  const std::string experts = "model.layers.0.mlp.experts";
  const auto a1 = Add(experts + ".base_layer.lora_A.weight", {kExperts * 2, 2 * kF});
  const auto b1 = Add(experts + ".base_layer.lora_B.weight", {kHidden, kExperts * 2});
  const auto a2 = Add(experts + ".lora_A.weight", {kExperts * 2, kHidden});
  const auto b2 = Add(experts + ".lora_B.weight", {kF, kExperts * 2});
  const Json targets = {{"target_parameters", {"experts.gate_up_proj", "experts.down_proj"}}};
  const LoraAdapter adapter = Load(Config(false, kExperts), targets);
  const PerLinear<LoraLinear>& layer = adapter.layers()[0];
  for (std::int64_t e = 0; e < kExperts; ++e) {
    for (std::int64_t r = 0; r < 2; ++r) {
      for (std::int64_t half = 0; half < 2; ++half) {
        const LoraLinear& lora = layer.gate_up[2 * e + half];
        for (std::int64_t x = 0; x < kHidden; ++x) {
          EXPECT_EQ(lora.a.Row<float>(r)[x], b1[x * kExperts * 2 + r * kExperts + e]);
        }
        for (std::int64_t y = 0; y < kF; ++y) {
          EXPECT_EQ(lora.b.Row<float>(y)[r], a1[(e * 2 + r) * 2 * kF + half * kF + y]);
        }
      }
      EXPECT_EQ(layer.down[e].a.Row<float>(r)[2], b2[2 * kExperts * 2 + r * kExperts + e]);
      EXPECT_EQ(layer.down[e].b.Row<float>(3)[r], a2[(e * 2 + r) * kHidden + 3]);
    }
  }
  tensors_.clear();
  values_.clear();
  Add(experts + ".lora_A.weight", {kExperts * 2, kHidden + 1});
  Add(experts + ".lora_B.weight", {kF, kExperts * 2});
  ExpectRefused(
      [&] {
        Load(Config(false, kExperts), {{"target_parameters", {"experts.down_proj"}}});
      },
      "or the last two sides exchanged");
}

// With twice the intermediate size equal to the hidden size gate_up_proj is square, and the shapes
// of down_proj tell.
TEST_F(ForeignAdapterTest, TheSidesOfASquareStackAreThoseOfTheOther) {
  constexpr std::int64_t kExperts = 3;
  constexpr std::int64_t kF = kHidden / 2;
  const std::string experts = "model.layers.0.mlp.experts";
  const Json targets = {{"target_parameters", {"experts.gate_up_proj", "experts.down_proj"}}};
  for (const bool exchanged : {false, true}) {
    tensors_.clear();
    values_.clear();
    const auto a = Add(experts + ".base_layer.lora_A.weight", {kExperts * 2, kHidden});
    const auto b = Add(experts + ".base_layer.lora_B.weight", {kHidden, kExperts * 2});
    Add(experts + ".lora_A.weight", {kExperts * 2, exchanged ? kHidden : kF});
    Add(experts + ".lora_B.weight", {exchanged ? kF : kHidden, kExperts * 2});
    const LoraAdapter adapter = Load(Config(false, kExperts, kF), targets);
    const LoraLinear& up = adapter.layers()[0].gate_up[2 * 1 + 1];
    const float of_a = a[(1 * 2 + 1) * kHidden + 3];
    const float of_b = b[3 * kExperts * 2 + 1 * kExperts + 1];
    EXPECT_EQ(up.a.Row<float>(1)[3], exchanged ? of_b : of_a);
    EXPECT_EQ(up.b.Row<float>(1)[1], exchanged ? of_a : of_b);
  }
}

// Gate and up of an expert beside an MLP are one linear, with one A.
TEST_F(ForeignAdapterTest, SplitsStacksOfExpertsBesideAnMlp) {
  constexpr std::int64_t kExperts = 3;
  constexpr std::int64_t kM = 3;
  const Json json = {{"model_type", "gemma4_text"},
                     {"hidden_size", kHidden},
                     {"intermediate_size", 8},
                     {"num_hidden_layers", 1},
                     {"num_attention_heads", 2},
                     {"num_key_value_heads", 2},
                     {"head_dim", 2},
                     {"global_head_dim", 2},
                     {"vocab_size", kVocab},
                     {"hidden_size_per_layer_input", 0},
                     {"enable_moe_block", true},
                     {"num_experts", kExperts},
                     {"top_k_experts", 1},
                     {"moe_intermediate_size", kM}};
  const DecoderConfig config = ParseDecoderConfig(json, "config.json");
  const std::string experts = "model.layers.0.experts";
  const Json targets = {{"target_modules", {"router.proj"}},
                        {"target_parameters", {"experts.gate_up_proj", "experts.down_proj"}}};
  for (const bool exchanged : {false, true}) {
    tensors_.clear();
    values_.clear();
    Add("model.layers.0.router.proj.lora_A.weight", {2, kHidden});
    const auto router = Add("model.layers.0.router.proj.lora_B.weight", {kExperts, 2});
    const std::int64_t in = exchanged ? 2 * kM : kHidden;
    const std::int64_t out = exchanged ? kHidden : 2 * kM;
    const auto a1 = Add(experts + ".base_layer.lora_A.weight", {kExperts * 2, in});
    const auto b1 = Add(experts + ".base_layer.lora_B.weight", {out, kExperts * 2});
    Add(experts + ".lora_A.weight", {kExperts * 2, exchanged ? kHidden : kM});
    Add(experts + ".lora_B.weight", {exchanged ? kM : kHidden, kExperts * 2});
    const LoraAdapter adapter = Load(config, targets);
    const PerLinear<LoraLinear>& layer = adapter.layers()[0];
    EXPECT_EQ(layer.side_router[0].b.Row<float>(2)[1], router[5]);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const LoraLinear& lora = layer.side_in[e];
      ASSERT_EQ(lora.rank, 2);
      for (std::int64_t r = 0; r < 2; ++r) {
        const auto a_at = [&](std::int64_t side) { return a1[(e * 2 + r) * in + side]; };
        const auto b_at = [&](std::int64_t side) {
          return b1[side * kExperts * 2 + r * kExperts + e];
        };
        EXPECT_EQ(lora.a.Row<float>(r)[1], exchanged ? b_at(1) : a_at(1));
        EXPECT_EQ(lora.b.Row<float>(4)[r], exchanged ? a_at(4) : b_at(4));
      }
      EXPECT_EQ(layer.side_out[e].out, kHidden);
    }
  }
}

TEST_F(ForeignAdapterTest, RefusesStacksThatNoLinearReads) {
  constexpr std::int64_t kExperts = 3;
  const Json targets = {{"target_parameters", {"experts.down_proj"}}};
  for (const char* layer : {"0", "1"}) {
    const std::string experts = std::string("model.layers.") + layer + ".mlp.experts";
    Add(experts + ".lora_A.weight", {kExperts * 2, 3});
    Add(experts + ".lora_B.weight", {kHidden, kExperts * 2});
    // The layer that the model has.
    if (layer == std::string("0")) Load(Config(false, kExperts), targets);
  }
  ExpectRefused([&] { Load(Config(false, kExperts), targets); },
                "'model.layers.1.mlp.experts.down_proj'");
}

}  // namespace
}  // namespace qlora
