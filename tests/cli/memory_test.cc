// The memory that a run takes is the memory that its plan says, within a twentieth.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/tiny_model.h"
#include "io/safetensors_writer.h"
#include "io/tensor_file.h"
#include "test_build.h"

namespace qlora {
namespace {

struct RunShape {
  std::int64_t max_length;
  std::int64_t batch;
  const char* recompute;
  bool evaluates = false;
  const char* recipe = "";  // of what `options` ask for
  std::vector<std::string> options = {};
};

class MemoryTest : public ScratchTest, public ::testing::WithParamInterface<RunShape> {
 protected:
  static constexpr std::int64_t kVocab = 4096;
  static constexpr std::int64_t kHidden = 512;
  static constexpr std::int64_t kIntermediate = 1376;
  static constexpr std::int64_t kKeyValue = 128;  // 2 of 8 heads
  static constexpr int kLayers = 4;

  // A Llama large enough that the program itself is a small part of it.
  void WriteModel() {
    fs::create_directory(scratch_ / "model");
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(Golden("llama-tiny") / name, scratch_ / "model" / name);
    }
    nlohmann::json config = nlohmann::json::parse(ReadAll(Golden("llama-tiny") / "config.json"));
    config.update({{"vocab_size", kVocab},
                   {"hidden_size", kHidden},
                   {"intermediate_size", kIntermediate},
                   {"num_hidden_layers", kLayers},
                   {"num_attention_heads", 8},
                   {"num_key_value_heads", 2},
                   {"head_dim", 64},
                   {"max_position_embeddings", 4096},
                   {"tie_word_embeddings", false}});
    Write("model/config.json", config.dump());

    std::vector<TensorInfo> tensors;
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
      tensors.push_back({name + ".weight", DType::kBF16, std::move(shape)});
    };
    add("model.embed_tokens", {kVocab, kHidden});
    for (int l = 0; l < kLayers; ++l) {
      const std::string layer = "model.layers." + std::to_string(l) + ".";
      add(layer + "input_layernorm", {kHidden});
      add(layer + "post_attention_layernorm", {kHidden});
      for (const char* name : {"q_proj", "o_proj"}) {
        add(layer + "self_attn." + name, {kHidden, kHidden});
      }
      for (const char* name : {"k_proj", "v_proj"}) {
        add(layer + "self_attn." + name, {kKeyValue, kHidden});
      }
      for (const char* name : {"gate_proj", "up_proj"}) {
        add(layer + "mlp." + name, {kIntermediate, kHidden});
      }
      add(layer + "mlp.down_proj", {kHidden, kIntermediate});
    }
    add("model.norm", {kHidden});
    add("lm_head", {kVocab, kHidden});
    const auto writer = CreateSafetensors(scratch_ / "model" / "model.safetensors", tensors, {});
    const std::vector<std::uint16_t> drawn = DrawValues();
    for (const TensorInfo& tensor : tensors) {
      std::vector<std::uint16_t> values(tensor.elements());
      for (auto rest = std::span(values); !rest.empty();) {
        const auto part = rest.first(std::min(rest.size(), drawn.size()));
        std::copy_n(drawn.begin(), part.size(), part.begin());
        rest = rest.subspan(part.size());
      }
      writer->Write(std::as_bytes(std::span(values)));
    }
    writer->Finish();
  }

  // Values that every tensor repeats, because drawing each would take half of the test. Their count
  // is a prime, so that no row is equal to the next.
  static std::vector<std::uint16_t> DrawValues() {
    const RandomKey key = MakeKey(7, RandomPlace::kSampling);
    std::vector<std::uint16_t> values(65521);
    for (std::int64_t i = 0; i < std::ssize(values); ++i) {
      const float x = 0.1f * (RandomUniform(key, i) - 0.5f);
      values[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    }
    return values;
  }

  // Every token of the vocabulary once, so that every row of the embedding is read.
  void WriteData(std::int64_t length) {
    std::string lines;
    for (std::int64_t begin = 0; begin < kVocab; begin += length) {
      nlohmann::json ids = nlohmann::json::array();
      for (std::int64_t t = begin; t < begin + length; ++t) ids.push_back(t);
      lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
    }
    Write("data.jsonl", lines);
  }
};

TEST_P(MemoryTest, PeakIsThePlan) {
  if (Sanitized()) GTEST_SKIP() << "a sanitizer needs memory of its own";
  const RunShape& shape = GetParam();
  WriteModel();
  WriteData(shape.max_length);
  std::vector<std::string> run = {"--model",
                                  "model",
                                  "--dataset",
                                  "data.jsonl",
                                  "--max_length",
                                  std::to_string(shape.max_length),
                                  "--per_device_train_batch_size",
                                  std::to_string(shape.batch),
                                  "--gradient_accumulation_steps",
                                  "1",
                                  "--num_train_epochs",
                                  "1",
                                  "--recompute",
                                  shape.recompute,
                                  "--threads",
                                  "2"};
  if (shape.evaluates) run.insert(run.end(), {"--eval_dataset", "data.jsonl", "--eval_on_start"});
  run.insert(run.end(), shape.options.begin(), shape.options.end());
  std::vector<std::string> plan = {"plan", "--json"};
  plan.insert(plan.end(), run.begin(), run.end());
  const Outcome planned = RunQlora(scratch_, plan);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const auto peak = nlohmann::json::parse(planned.out).at("memory").at("peak").get<double>();

  std::vector<std::string> train = {"train", "--output_dir", "out"};
  train.insert(train.end(), run.begin(), run.end());
  const Outcome trained = RunQlora(scratch_, train);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string label = "peak_memory=";
  const auto at = trained.err.rfind(label);
  ASSERT_NE(at, std::string::npos) << trained.err;
  const double measured = std::stod(trained.err.substr(at + label.size())) * 0x1p20;
  EXPECT_LE(measured / peak, 1.05) << planned.err << planned.out;
  // Evaluation keeps nothing for a backward pass and leaves more of its buffers untouched.
  EXPECT_GE(measured / peak, shape.evaluates ? 0.9 : 0.95) << planned.err << planned.out;
}

std::string NameOfShape(const ::testing::TestParamInfo<RunShape>& shape) {
  return std::to_string(shape.param.max_length) + "_by_" + std::to_string(shape.param.batch) + "_" +
         shape.param.recompute + (shape.param.evaluates ? "_eval" : "") + shape.param.recipe;
}

INSTANTIATE_TEST_SUITE_P(Shapes, MemoryTest,
                         ::testing::Values(RunShape{512, 1, "none"}, RunShape{512, 4, "none"},
                                           RunShape{512, 4, "attention"}, RunShape{512, 4, "layer"},
                                           RunShape{2048, 1, "layer"}, RunShape{2048, 1, "none"},
                                           RunShape{512, 1, "layer", true}),
                         NameOfShape);

const std::vector<std::string> kWhole = {"--modules_to_save", "embed_tokens,lm_head"};
std::vector<std::string> WholeWith(const char* optim) {
  std::vector<std::string> options = kWhole;
  options.insert(options.end(), {"--optim", optim});
  return options;
}

// Few steps: the data holds two batches of 2048 tokens.
INSTANTIATE_TEST_SUITE_P(
    Recipes, MemoryTest,
    ::testing::Values(
        RunShape{512, 4, "layer", false, "_dora", {"--use_dora"}},
        RunShape{512, 4, "layer", false, "_modules", kWhole},
        RunShape{512, 4, "layer", false, "_8bit", WholeWith("adamw_8bit")},
        RunShape{512, 4, "layer", false, "_paged_8bit", WholeWith("paged_adamw_8bit")},
        RunShape{512,
                 1,
                 "layer",
                 false,
                 "_samples",
                 {"--sample_prompts", "a", "--sample_steps", "8", "--sample_max_new_tokens", "4"}}),
    NameOfShape);

}  // namespace
}  // namespace qlora
