#include "io/peft/peft.h"

#include <numeric>

#include "base/file.h"
#include "io/float_encoding.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kQ = "model.layers.0.self_attn.q_proj";
constexpr const char* kV = "model.layers.1.self_attn.v_proj";

class PeftTest : public ::testing::Test {
 protected:
  PeftTest() {
    config_.target_modules = std::vector<std::string>{"q_proj", "v_proj"};
    config_.r = 2;
    config_.rank_pattern = {{"v_proj", 3}};
    a_.resize(100);
    std::iota(a_.begin(), a_.end(), 0.0f);
    for (float& value : a_) value = value / 8 - 3;
  }

  // q: r 2, in 5, out 4. v: r 3, in 5, out 6. Views with a stride.
  std::vector<AdapterWeights> Weights() const {
    const auto view = [&](std::int64_t rows, std::int64_t cols, std::size_t at) {
      return ConstMatrixView{a_.data() + at, DType::kF32, rows, cols, 7};
    };
    std::vector<AdapterWeights> out = {{kQ, view(2, 5, 0), view(4, 2, 1), {}},
                                       {kV, view(3, 5, 2), view(6, 3, 3), {}}};
    if (config_.use_dora) {
      out[0].magnitude = MakeView(a_.data(), 1, 4);
      out[1].magnitude = MakeView(a_.data(), 1, 6);
    }
    return out;
  }

  static void ExpectEqual(const Adapter& adapter, const TensorInfo* tensor,
                          const ConstMatrixView& expected) {
    ASSERT_NE(tensor, nullptr);
    std::vector<float> values(tensor->elements());
    DecodeFloats(tensor->dtype, adapter.tensors->Bytes(*tensor), values);
    ASSERT_EQ(tensor->elements(), expected.rows * expected.cols);
    for (std::int64_t i = 0; i < tensor->elements(); ++i) {
      EXPECT_EQ(values[i], expected.Row<float>(i / expected.cols)[i % expected.cols]);
    }
  }

  // An adapter directory whose tensors have the given names and shapes, all F32 zeros.
  void WriteRaw(const std::vector<TensorInfo>& tensors) {
    const auto writer = CreateSafetensors(folder_ / "adapter_model.safetensors", tensors, {});
    for (const TensorInfo& tensor : tensors) {
      writer->Write(BytesOfVector(std::string(tensor.bytes(), '\0')));
    }
    writer->Finish();
    WriteTextFile(folder_ / "adapter_config.json", FormatAdapterConfig(config_));
  }
  static TensorInfo Tensor(const std::string& name, std::vector<std::int64_t> shape) {
    return {"base_model.model." + name, DType::kF32, std::move(shape)};
  }
  std::vector<TensorInfo> GoodTensors() const {
    const std::string q = kQ;
    return {Tensor(q + ".lora_A.weight", {2, 5}), Tensor(q + ".lora_B.weight", {4, 2})};
  }
  void ExpectTensorsRefused(const std::vector<TensorInfo>& tensors, const std::string& message) {
    WriteRaw(tensors);
    ExpectRefused([&] { OpenAdapter(folder_.path()); }, message);
  }

  AdapterConfig config_;
  std::vector<float> a_;
  TemporaryFolder folder_;
};

TEST_F(PeftTest, KeepsTheDropoutOfParametersBesideTheConfiguration) {
  config_.lora_dropout = 0.1;
  config_.rank_pattern = {};
  config_.target_parameters = {"mlp.experts.down_proj"};
  const auto view = [&](std::int64_t rows, std::int64_t cols) {
    return ConstMatrixView{a_.data(), DType::kF32, rows, cols, 7};
  };
  // 3 experts of rank 2.
  const std::vector<AdapterWeights> weights = {{.path = "model.layers.0.mlp.experts.0.down_proj",
                                                .a = view(6, 5),
                                                .b = view(4, 6),
                                                .magnitude = {},
                                                .wrapper = "model.layers.0.mlp.experts",
                                                .experts = 3}};
  WriteAdapter(folder_.path(), config_, weights, DType::kF32);
  // PEFT refuses another number there.
  EXPECT_EQ(ReadJsonFile(folder_ / "adapter_config.json")["lora_dropout"], 0);
  EXPECT_EQ(OpenAdapter(folder_.path()).config.lora_dropout, 0.1);

  const auto stored = OpenAdapter(folder_.path());
  for (const char* text : {"1", "-0.5", "nan", "half", ""}) {
    const auto writer = CreateSafetensors(folder_ / "adapter_model.safetensors",
                                          stored.tensors->tensors(), {{"lora_dropout", text}});
    for (const TensorInfo& tensor : stored.tensors->tensors()) {
      writer->Write(stored.tensors->Bytes(tensor));
    }
    writer->Finish();
    ExpectRefused([&] { OpenAdapter(folder_.path()); }, "expected 0 <= p < 1");
  }
}

TEST_F(PeftTest, RoundTripInEveryDtype) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {  // all hold these values
    for (const bool dora : {false, true}) {
      config_.use_dora = dora;
      const fs::path directory = folder_ / "new" / NameOf(dtype);
      const std::vector<AdapterWeights> weights = Weights();
      WriteAdapter(directory, config_, weights, dtype);
      const Adapter adapter = OpenAdapter(directory);
      EXPECT_TRUE(adapter.unknown_keys.empty());
      EXPECT_EQ(adapter.config.use_dora, dora);
      EXPECT_EQ(adapter.tensors->metadata().at("format"), "pt");
      ASSERT_EQ(adapter.modules.size(), 2u);
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(adapter.modules[i].path, weights[i].path);
        EXPECT_EQ(adapter.modules[i].a->dtype, dtype);
        ExpectEqual(adapter, adapter.modules[i].a, weights[i].a);
        ExpectEqual(adapter, adapter.modules[i].b, weights[i].b);
        if (dora) {
          ExpectEqual(adapter, adapter.modules[i].magnitude, weights[i].magnitude);
        } else {
          EXPECT_EQ(adapter.modules[i].magnitude, nullptr);
        }
      }
    }
  }
}

TEST_F(PeftTest, NamesAndFilesArePefts) {
  config_.use_dora = true;
  WriteAdapter(folder_.path(), config_, Weights(), DType::kF32);
  EXPECT_EQ(folder_.files(), 2u);
  const auto reader = OpenSafetensors(folder_ / "adapter_model.safetensors");
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  ASSERT_NE(reader->Find(q + ".lora_A.weight"), nullptr);
  EXPECT_THAT(reader->Find(q + ".lora_A.weight")->shape, ElementsAre(2, 5));
  EXPECT_THAT(reader->Find(q + ".lora_B.weight")->shape, ElementsAre(4, 2));
  EXPECT_THAT(reader->Find(q + ".lora_magnitude_vector")->shape, ElementsAre(4));
  EXPECT_EQ(reader->tensors().size(), 6u);
  EXPECT_EQ(ReadTextFile(folder_ / "adapter_config.json"), FormatAdapterConfig(config_));
}

TEST_F(PeftTest, OverwritesAnOlderAdapter) {
  WriteAdapter(folder_.path(), config_, Weights(), DType::kF32);
  config_.lora_alpha = 99;
  WriteAdapter(folder_.path(), config_, Weights(), DType::kBF16);
  const Adapter adapter = OpenAdapter(folder_.path());
  EXPECT_EQ(adapter.config.lora_alpha, 99);
  EXPECT_EQ(adapter.modules[0].a->dtype, DType::kBF16);
  EXPECT_EQ(folder_.files(), 2u);
}

TEST_F(PeftTest, AFailedWriteLeavesTheOldAdapter) {
  WriteAdapter(folder_.path(), config_, Weights(), DType::kF32);
  const std::string old = ReadTextFile(folder_ / "adapter_config.json");
  config_.lora_alpha = 99;
  a_[10] = std::nanf("");
  const Error error =
      ErrorOf([&] { WriteAdapter(folder_.path(), config_, Weights(), DType::kF32); });
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  EXPECT_THAT(error.what(), HasSubstr("lora_A.weight': value 3 of row 1 is nan"));
  EXPECT_EQ(ReadTextFile(folder_ / "adapter_config.json"), old);
  EXPECT_EQ(OpenAdapter(folder_.path()).modules.size(), 2u);
  EXPECT_EQ(folder_.files(), 2u);
}

TEST_F(PeftTest, ValuesBeyondF16AreNotStoredAsInfinity) {
  a_[0] = 1e6f;
  EXPECT_THAT(
      ErrorOf([&] { WriteAdapter(folder_.path(), config_, Weights(), DType::kF16); }).what(),
      HasSubstr("cannot be stored as F16"));
}

TEST_F(PeftTest, RefusesWeightsThatDoNotFitTheConfiguration) {
  const auto refused = [&](const std::vector<AdapterWeights>& weights, const std::string& message) {
    ExpectRefused([&] { WriteAdapter(folder_.path(), config_, weights, DType::kF32); }, message);
    EXPECT_EQ(folder_.files(), 0u);
  };
  refused({}, "at least one module");
  auto weights = Weights();
  weights[0].path = "model.layers.0.mlp.up_proj";
  refused(weights, "module 'model.layers.0.mlp.up_proj': target_modules do not name it");
  weights = Weights();
  weights[0].a.rows = 3;
  refused(weights, "expected A (2, in) and B (out, 2), found (3, 5) and (4, 2)");
  weights = Weights();
  weights[1].b = {};
  refused(weights, "found (3, 5) and (0, 0)");
  weights = Weights();
  weights[1] = weights[0];
  refused(weights, "is declared twice");
  weights = Weights();
  weights[0].magnitude = MakeView(a_.data(), 1, 4);
  refused(weights, "with use_dora = false expected a magnitude of 0 values, found 4");
  config_.use_dora = true;
  refused(weights, "found 0");  // module 1 has none
  config_.use_dora = false;
  config_.modules_to_save = {"lm_head"};
  refused(Weights(), "modules_to_save");
  config_.modules_to_save = {};
  config_.lora_dropout = 2;
  refused(Weights(), "lora_dropout");
  config_.lora_dropout = 0;
  config_.alpha_pattern = {{"q_proj", 2}, {"layers.0.*", 4}};  // sorted, the second comes first
  refused(Weights(), "sorted they would mean another scale");
}

TEST_F(PeftTest, NormalisesThirdPartyNames) {
  config_.use_dora = true;
  const std::string q = kQ;
  for (const char* magnitude :
       {".lora_magnitude_vector", ".lora_magnitude_vector.weight", ".lora_magnitude_vector.default",
        ".lora_magnitude_vector.default.weight"}) {
    WriteRaw({Tensor(q + ".lora_A.default.weight", {2, 5}),
              Tensor(q + ".lora_B.default.weight", {4, 2}), Tensor(q + magnitude, {4})});
    const Adapter adapter = OpenAdapter(folder_.path());
    ASSERT_EQ(adapter.modules.size(), 1u);
    EXPECT_EQ(adapter.modules[0].path, q);
    EXPECT_NE(adapter.modules[0].magnitude, nullptr);
  }
}

// One adapter in the spellings of three classes and of savers that leave words in the names.
TEST_F(PeftTest, ReadsEverySpellingOfPaths) {
  const std::string end = "layers.0.self_attn.q_proj";
  for (const std::string prefix :
       {"model.", "model.language_model.", "language_model.model.", "", "module.model."}) {
    for (const std::string name : {"", ".default", ".other"}) {
      WriteRaw({Tensor(prefix + end + ".lora_A" + name + ".weight", {2, 5}),
                Tensor(prefix + end + ".lora_B" + name + ".weight", {4, 2})});
      const Adapter adapter = OpenAdapter(folder_.path());
      ASSERT_EQ(adapter.modules.size(), 1u);
      EXPECT_EQ(adapter.modules[0].path, kQ);
    }
  }
}

TEST_F(PeftTest, WritesThePathsOfTheClassThatItWasTrainedOn) {
  config_.module_prefix = "model.language_model.";
  WriteAdapter(folder_.path(), config_, Weights(), DType::kF32);
  const auto tensors = OpenSafetensors(folder_ / "adapter_model.safetensors");
  const std::string name =
      "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight";
  EXPECT_NE(tensors->Find(name), nullptr);
  const Adapter adapter = OpenAdapter(folder_.path());
  EXPECT_EQ(adapter.modules[0].path, kQ);
  EXPECT_EQ(adapter.config.module_prefix, config_.module_prefix);
}

TEST_F(PeftTest, LeavesOutEncodersOfImages) {
  std::vector<TensorInfo> tensors = GoodTensors();
  tensors.push_back(Tensor("model.vision_tower.encoder.layers.0.q_proj.lora_A.weight", {2, 5}));
  tensors.push_back(Tensor("model.vision_tower.encoder.layers.0.q_proj.lora_B.weight", {4, 2}));
  WriteRaw(tensors);
  const Adapter adapter = OpenAdapter(folder_.path());
  EXPECT_EQ(adapter.modules.size(), 1u);
  EXPECT_THAT(adapter.left_out, ElementsAre(HasSubstr("vision_tower")));
  ExpectRefused([&] { CheckTrainable(adapter, folder_.path()); }, "vision_tower");
  tensors.erase(tensors.begin(), tensors.begin() + 2);
  ExpectTensorsRefused(tensors, "only of model.vision_tower");
}

TEST_F(PeftTest, FindsReplacedWeights) {
  config_.modules_to_save = {"lm_head"};
  std::vector<TensorInfo> tensors = GoodTensors();
  tensors.push_back(Tensor("lm_head.weight", {9, 5}));
  tensors.push_back(Tensor("model.embed_tokens.base_layer.weight", {9, 5}));
  WriteRaw(tensors);
  const Adapter adapter = OpenAdapter(folder_.path());
  ASSERT_EQ(adapter.replaced.size(), 2u);
  EXPECT_EQ(adapter.replaced[0].name, "lm_head.weight");
  EXPECT_EQ(adapter.replaced[1].name, "model.embed_tokens.weight");
  EXPECT_THAT(adapter.replaced[0].tensor->shape, ElementsAre(9, 5));
}

TEST_F(PeftTest, ReadsTrainedBiases) {
  std::vector<TensorInfo> tensors = GoodTensors();
  tensors.push_back(Tensor(std::string(kQ) + ".base_layer.bias", {4}));
  tensors.push_back(Tensor("model.layers.0.self_attn.o_proj.bias", {5}));
  WriteRaw(tensors);
  const Adapter adapter = OpenAdapter(folder_.path());
  ASSERT_EQ(adapter.replaced.size(), 2u);
  EXPECT_EQ(adapter.replaced[0].name, "model.layers.0.self_attn.o_proj.bias");
  EXPECT_EQ(adapter.replaced[1].name, std::string(kQ) + ".bias");
}

// As transformers does it, which takes "base_model.model." away where it is there.
TEST_F(PeftTest, ReadsNamesWithoutThePrefixOfPeft) {
  std::vector<TensorInfo> tensors = GoodTensors();
  for (TensorInfo& tensor : tensors) tensor.name.erase(0, std::string("base_model.model.").size());
  WriteRaw(tensors);
  const Adapter adapter = OpenAdapter(folder_.path());
  ASSERT_EQ(adapter.modules.size(), 1u);
  EXPECT_EQ(adapter.modules[0].path, kQ);
}

TEST_F(PeftTest, RefusesTensorsThatWouldBeIgnoredOrMisread) {
  const std::string q = kQ;
  std::vector<TensorInfo> tensors = GoodTensors();
  ExpectTensorsRefused({tensors[0]}, "module '" + q + "': has no lora_B weight");
  ExpectTensorsRefused({tensors[1]}, "has no lora_A weight");
  ExpectTensorsRefused({Tensor("lm_head.weight", {1})}, "holds no LoRA weights");
  for (const char* name : {".lora_B.bias", ".lora_C.weight", ".lora_A.two.parts.weight"}) {
    ExpectTensorsRefused({tensors[0], tensors[1], Tensor(q + name, {4})}, "is not supported");
  }
  ExpectTensorsRefused({tensors[0], tensors[1], {q + ".lora_A.weight", DType::kF32, {2, 5}}},
                       "name the same matrix");
  ExpectTensorsRefused(
      {tensors[0], tensors[1], Tensor(q + ".base_layer.bias", {4}), Tensor(q + ".bias", {4})},
      "name the same matrix");
  ExpectTensorsRefused({tensors[0], tensors[1],
                        Tensor("model.embed_tokens.token_adapter.trainable_tokens_delta", {4, 5})},
                       "trainable_token_indices of adapter_config.json do not name its module");
  for (const char* adapter : {"default", "other"}) {
    ExpectTensorsRefused(
        {tensors[0], tensors[1], Tensor(q + ".lora_A." + adapter + ".weight", {2, 5})},
        "name the same matrix");
  }
  ExpectTensorsRefused(
      {tensors[0], tensors[1],
       Tensor("model.language_model.layers.1.self_attn.q_proj.lora_A.weight", {2, 5})},
      "begin with 'model.language_model.' and with 'model.'");
  ExpectTensorsRefused({Tensor("model.layers.0.mlp.up_proj.lora_A.weight", {2, 5}),
                        Tensor("model.layers.0.mlp.up_proj.lora_B.weight", {2, 5})},
                       "PEFT would silently ignore them");
  const auto shapes = [&](std::vector<std::int64_t> a, std::vector<std::int64_t> b) {
    return std::vector<TensorInfo>{Tensor(q + ".lora_A.weight", std::move(a)),
                                   Tensor(q + ".lora_B.weight", std::move(b))};
  };
  ExpectTensorsRefused(shapes({5, 2}, {2, 4}), "for rank 2, found [5, 2] and [2, 4]");
  ExpectTensorsRefused(shapes({2, 5}, {4, 3}), "found [2, 5] and [4, 3]");
  ExpectTensorsRefused(shapes({10}, {4, 2}), "found [10]");
  tensors.push_back(Tensor(q + ".lora_magnitude_vector", {4}));
  ExpectTensorsRefused(tensors, "use_dora is false, but there is a lora_magnitude_vector");
  config_.use_dora = true;
  ExpectTensorsRefused(GoodTensors(), "use_dora is true, but there is no lora_magnitude_vector");
  tensors.back().shape = {5};
  ExpectTensorsRefused(tensors, "expected lora_magnitude_vector [4], found [5]");
  tensors[0].dtype = DType::kI32;
  ExpectTensorsRefused(tensors, "expected F32, F16 or BF16, found I32");
}

TEST_F(PeftTest, SaysWhatADirectoryLacks) {
  ExpectRefused([&] { OpenAdapter(folder_ / "nowhere"); }, "there is no such adapter folder");
  fs::create_directory(folder_ / "empty");
  ExpectRefused([&] { OpenAdapter(folder_ / "empty"); }, "is not the folder of a LoRA adapter");
  WriteTextFile(folder_ / "a.safetensors", "");
  ExpectRefused([&] { OpenAdapter(folder_ / "a.safetensors"); },
                "an adapter is given as the folder");
  for (const char* name : {"checkpoint-9", "checkpoint-12", "checkpoint-x"}) {
    fs::create_directories(folder_ / "stopped" / name);
    WriteTextFile(folder_ / "stopped" / name / "adapter_model.safetensors", "");
  }
  ExpectRefused([&] { OpenAdapter(folder_ / "stopped"); }, "stopped/checkpoint-12");
  WriteTextFile(folder_ / "adapter_model.bin", "");
  ExpectRefused([&] { OpenAdapter(folder_.path()); }, "safe_serialization=True");
  WriteRaw(GoodTensors());
  fs::remove(folder_ / "adapter_config.json");
  ExpectRefused([&] { OpenAdapter(folder_.path()); }, "adapter_config.json: is missing");
}

TEST(PeftShared, ReadsTheSharedAdapter) {
  const fs::path folder = SharedFolder() / "models" / "stories260K-lora-r4";
  if (!fs::exists(folder)) GTEST_SKIP() << "no " << folder;
  const Adapter adapter = OpenAdapter(folder);
  EXPECT_EQ(adapter.modules.size() % 7, 0u);
  EXPECT_EQ(adapter.modules[0].a->shape[0], 4);
}

}  // namespace
}  // namespace qlora
