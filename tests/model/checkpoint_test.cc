// Checkpoints whose names, pieces and heads are not those that transformers writes.
#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/checkpoint_tensors.h"
#include "model/stored_places.h"
#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Stored {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Stored>;

// A tensor whose values count up from `first`.
Stored Counting(std::vector<std::int64_t> shape, float first) {
  Stored stored{std::move(shape), {}};
  std::int64_t count = 1;
  for (const std::int64_t size : stored.shape) count *= size;
  for (std::int64_t i = 0; i < count; ++i) {
    stored.values.push_back(first + static_cast<float>(i));
  }
  return stored;
}

class CheckpointTest : public testing::Test {
 protected:
  static Json Config(const char* model_type) {
    return {{"model_type", model_type},
            {"vocab_size", 6},
            {"hidden_size", 4},
            {"intermediate_size", 3},
            {"moe_intermediate_size", 3},
            {"num_experts", 2},
            {"num_experts_per_tok", 1},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"head_dim", 2},
            {"tie_word_embeddings", true}};
  }

  void Write(const Json& config, const Tensors& tensors) const {
    WriteTextFile(dir_ / "config.json", config.dump());
    std::vector<TensorInfo> infos;
    for (const auto& [name, stored] : tensors) infos.push_back({name, DType::kF32, stored.shape});
    const auto writer = CreateSafetensors(dir_ / "model.safetensors", infos, {});
    for (const auto& [name, stored] : tensors)
      writer->Write(std::as_bytes(std::span(stored.values)));
    writer->Finish();
  }

  std::unique_ptr<TensorReader> Open() const {
    return OpenCheckpoint(dir_, LoadDecoderConfig(dir_));
  }

  // Each value where the files have it.
  void ExpectPlaces(const TensorReader& reader) const {
    ExpectStoredPlaces(reader, *OpenStoredTensors(dir_));
  }

  static std::vector<float> Values(const TensorReader& reader, const std::string& name) {
    const TensorInfo* tensor = reader.Find(name);
    if (tensor == nullptr) {
      ADD_FAILURE() << "no " << name;
      return {};
    }
    std::vector<float> values(static_cast<std::size_t>(tensor->elements()));
    std::memcpy(values.data(), reader.Bytes(*tensor).data(), tensor->bytes());
    return values;
  }

  TemporaryFolder folder_;
  fs::path dir_ = folder_.path();
};

TEST_F(CheckpointTest, NamesGetThePrefixOfTransformers) {
  for (const char* prefix : {"", "transformer.", "language_model.", "module.model.",
                             "_orig_mod.model.", "base_model.model.model.", "model.model."}) {
    SCOPED_TRACE(prefix);
    const std::string p = prefix;
    Write(Config("qwen3"), {{p + "embed_tokens.weight", Counting({6, 4}, 0)},
                            {p + "layers.0.mlp.up_proj.weight", Counting({3, 4}, 1)},
                            {p + "norm.weight", Counting({4}, 2)},
                            {"other.weight", Counting({1}, 3)}});
    const auto reader = Open();
    EXPECT_EQ(Values(*reader, "model.norm.weight"), (std::vector<float>{2, 3, 4, 5}));
    EXPECT_NE(reader->Find("model.embed_tokens.weight"), nullptr);
    EXPECT_NE(reader->Find("model.layers.0.mlp.up_proj.weight"), nullptr);
    EXPECT_NE(reader->Find("other.weight"), nullptr);
  }
}

TEST_F(CheckpointTest, AnAdapterThatWasNotMergedIsNamed) {
  Write(Config("llama"),
        {{"base_model.model.model.layers.0.mlp.up_proj.base_layer.weight", Counting({1}, 0)}});
  try {
    OpenCheckpoint(dir_, ParseDecoderConfig(Config("llama"), "config.json"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("merge_and_unload"));
  }
}

// Where nothing in config.json says so, names of tensors tell who quantized the linears.
TEST_F(CheckpointTest, LinearsInFormsOfOthersAreNamed) {
  for (const auto& [mark, writer] :
       std::map<std::string, std::string>{{".weight_packed", "llm-compressor"},
                                          {".bitmask", "llm-compressor"},
                                          {".weight_scale_2", "NVIDIA ModelOpt"},
                                          {".qweight", "GPTQ or AWQ"},
                                          {".W_q", "HQQ"},
                                          {".weight._data", "Quanto"},
                                          {".SCB", "bitsandbytes, in 8 bits"},
                                          {".biases", "mlx-lm"}}) {
    SCOPED_TRACE(mark);
    const std::string linear = "model.layers.0.mlp.up_proj";
    Write(Config("qwen3"), {{"model.embed_tokens.weight", Counting({6, 4}, 0)},
                            {linear + mark, Counting({3, 2}, 1)}});
    const DecoderConfig config = LoadDecoderConfig(dir_);
    const auto reader = Open();
    try {
      CheckpointTensors(*reader, config).Get(linear + ".weight", {3, 4});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("its linears were saved by " + writer));
    }
  }
}

TEST_F(CheckpointTest, ExpertsInOneTensorAreShownApart) {
  const std::string experts = "model.layers.0.mlp.experts.";
  Write(Config("qwen3_moe"), {{"model.embed_tokens.weight", Counting({6, 4}, 0)},
                              {experts + "gate_up_proj", Counting({2, 6, 4}, 0)},
                              {experts + "down_proj", Counting({2, 4, 3}, 100)}});
  const auto reader = Open();
  EXPECT_EQ(Values(*reader, experts + "0.gate_proj.weight").front(), 0);
  EXPECT_EQ(Values(*reader, experts + "0.up_proj.weight").front(), 12);
  EXPECT_EQ(Values(*reader, experts + "1.up_proj.weight").front(), 36);
  EXPECT_EQ(Values(*reader, experts + "1.down_proj.weight").front(), 112);
  EXPECT_EQ(reader->Find(experts + "gate_up_proj"), nullptr);
  EXPECT_FALSE(reader->IsCopied(*reader->Find(experts + "1.up_proj.weight")));
}

TEST_F(CheckpointTest, ExpertsMayBeTransposed) {
  const std::string experts = "model.layers.0.mlp.experts.";
  Write(Config("qwen3_moe"), {{"model.embed_tokens.weight", Counting({6, 4}, 0)},
                              {experts + "gate_up_proj", Counting({2, 4, 6}, 0)},
                              {experts + "down_proj", Counting({2, 3, 4}, 100)}});
  const auto reader = Open();
  // Row 0 of up is column 3 of the stored matrix of 6 columns.
  const std::vector<float> up = Values(*reader, experts + "1.up_proj.weight");
  EXPECT_EQ(std::vector<float>(up.begin(), up.begin() + 4), (std::vector<float>{27, 33, 39, 45}));
  const std::vector<float> down = Values(*reader, experts + "0.down_proj.weight");
  EXPECT_EQ(std::vector<float>(down.begin(), down.begin() + 3),
            (std::vector<float>{100, 104, 108}));
  const TensorInfo& second = *reader->Find(experts + "1.up_proj.weight");
  EXPECT_TRUE(reader->IsCopied(second));
  EXPECT_EQ(reader->StoredAt(second, 1).tensor->name, experts + "gate_up_proj");
  EXPECT_EQ(reader->StoredAt(second, 1).element, 33);
  EXPECT_EQ(reader->StoredAt(second, 1).Place(), "row 5, column 3");
  ExpectPlaces(*reader);
}

// Of gpt-oss: (E, in, out), gate and up in turn.
TEST_F(CheckpointTest, JoinedExpertsAreCut) {
  Json config = Config("gpt_oss");
  config["num_local_experts"] = 2;
  const std::string experts = "model.layers.0.mlp.experts.";
  const Tensors tensors = {{"model.embed_tokens.weight", Counting({6, 4}, 0)},
                           {experts + "gate_up_proj", Counting({2, 4, 6}, 0)},
                           {experts + "gate_up_proj_bias", Counting({2, 6}, 200)},
                           {experts + "down_proj", Counting({2, 3, 4}, 100)},
                           {experts + "down_proj_bias", Counting({2, 4}, 300)}};
  Write(config, tensors);
  const auto reader = Open();
  // Row 1 of up of expert 1 is column 3 of its matrix of 6 columns.
  const std::vector<float> up = Values(*reader, experts + "1.up_proj.weight");
  ASSERT_EQ(up.size(), 12u);
  EXPECT_EQ(std::vector<float>(up.begin() + 4, up.begin() + 8),
            (std::vector<float>{27, 33, 39, 45}));
  EXPECT_EQ(Values(*reader, experts + "1.gate_proj.bias"), (std::vector<float>{206, 208, 210}));
  EXPECT_EQ(Values(*reader, experts + "0.up_proj.bias"), (std::vector<float>{201, 203, 205}));
  EXPECT_EQ(Values(*reader, experts + "1.down_proj.bias"),
            (std::vector<float>{304, 305, 306, 307}));
  const std::vector<float> down = Values(*reader, experts + "0.down_proj.weight");
  EXPECT_EQ(std::vector<float>(down.begin(), down.begin() + 3),
            (std::vector<float>{100, 104, 108}));
  EXPECT_EQ(reader->Find(experts + "down_proj"), nullptr);
  ExpectPlaces(*reader);

  Tensors turned = tensors;
  turned[experts + "down_proj"] = Counting({2, 4, 3}, 100);
  Write(config, turned);
  try {
    Open();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json expects [2, 3, 4]"));
  }
}

TEST_F(CheckpointTest, JoinedLinearsAreCutAndSeparateOnesJoined) {
  const std::string layer = "model.layers.0.";
  Write(Config("llama"), {{"model.embed_tokens.weight", Counting({6, 4}, 0)},
                          {layer + "self_attn.qkv_proj.weight", Counting({8, 4}, 0)},
                          {layer + "mlp.gate_up_proj.weight", Counting({6, 4}, 0)}});
  auto reader = Open();
  EXPECT_EQ(Values(*reader, layer + "self_attn.k_proj.weight").front(), 16);
  EXPECT_EQ(Values(*reader, layer + "self_attn.v_proj.weight").front(), 24);
  EXPECT_EQ(Values(*reader, layer + "mlp.up_proj.weight").front(), 12);

  Write(Config("phi3"), {{"model.embed_tokens.weight", Counting({6, 4}, 0)},
                         {layer + "self_attn.q_proj.weight", Counting({4, 4}, 0)},
                         {layer + "self_attn.k_proj.weight", Counting({2, 4}, 50)},
                         {layer + "self_attn.v_proj.weight", Counting({2, 4}, 90)}});
  reader = Open();
  const std::vector<float> qkv = Values(*reader, layer + "self_attn.qkv_proj.weight");
  ASSERT_EQ(qkv.size(), 32u);
  EXPECT_EQ(qkv[16], 50);
  EXPECT_EQ(qkv[24], 90);
  ExpectPlaces(*reader);

  // A part with fewer columns: the joined linear is missing, which loading reports by its name.
  Write(Config("phi3"), {{"model.embed_tokens.weight", Counting({6, 4}, 0)},
                         {layer + "self_attn.q_proj.weight", Counting({4, 4}, 0)},
                         {layer + "self_attn.k_proj.weight", Counting({2, 2}, 50)},
                         {layer + "self_attn.v_proj.weight", Counting({2, 4}, 90)}});
  reader = Open();
  EXPECT_EQ(reader->Find(layer + "self_attn.qkv_proj.weight"), nullptr);
  EXPECT_EQ(Values(*reader, layer + "self_attn.k_proj.weight").size(), 4u);
}

TEST_F(CheckpointTest, AHeadThatDiffersUntiesTheModel) {
  const Stored table = Counting({6, 4}, 0);
  Write(Config("qwen3"), {{"model.embed_tokens.weight", table}, {"lm_head.weight", table}});
  EXPECT_TRUE(LoadDecoderConfig(dir_).tie_word_embeddings);
  Write(Config("qwen3"),
        {{"model.embed_tokens.weight", table}, {"lm_head.weight", Counting({6, 4}, 1)}});
  const DecoderConfig config = LoadDecoderConfig(dir_);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.has_own_head);
}

}  // namespace
}  // namespace qlora
