// Merged checkpoints of gpt-oss, whose experts are two parameters a layer, and its MXFP4 in GGUF.
#include <gmock/gmock.h>

#include <algorithm>

#include "convert/family_models.h"
#include "export/adapter_fixture.h"
#include "model/checkpoint.h"
#include "model/weights.h"

namespace qlora {
namespace {

class JoinedExpertsHfTest : public AdapterFormatsTest {
 protected:
  fs::path WriteModel() {
    for (const Json& json : FamilyConfigs()) {
      if (json.at("model_type") == "gpt_oss") WriteFamilyModel(root_ / "gpt_oss", json);
    }
    return root_ / "gpt_oss";
  }

  void CopyWithTokenizer(const fs::path& mxfp4) {
    fs::copy(mxfp4, root_ / "mxfp4", fs::copy_options::recursive);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(kGolden / "llama-tiny" / name, root_ / "mxfp4" / name);
    }
  }

  fs::path Merge(const fs::path& model, const std::vector<std::string>& adapters,
                 const std::string& to) {
    ExportOptions options = ExportTo(to);
    options.model_name_or_path = model;
    options.adapter = adapters;
    options.format = "hf";
    options.outtype = "f32";
    options.verify = "true";
    EXPECT_LT(Export(context_, options).max_logprob_difference, 1e-5);
    return options.output;
  }
};

TEST_F(JoinedExpertsHfTest, HasTheParametersOfTheClass) {
  const fs::path dir = WriteModel();
  AdapterConfig config = Targeting({"q_proj", "o_proj"}, 3, 6);
  config.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  const fs::path adapter = WriteRandom(dir.string(), config, "lora", 7);
  const fs::path merged = Merge(dir, {adapter}, "merged");
  const std::vector<double> expected = TokensOf(dir, {adapter});
  const std::vector<double> found = TokensOf(merged, {});
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 5e-5) << i;

  const std::unique_ptr<TensorReader> stored = OpenStoredTensors(merged);
  const std::string experts = "model.layers.2.mlp.experts.";
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(stored->Find(experts + "gate_up_proj")->shape, (Shape{4, 32, 64}));
  EXPECT_EQ(stored->Find(experts + "gate_up_proj_bias")->shape, (Shape{4, 64}));
  EXPECT_EQ(stored->Find(experts + "down_proj")->shape, (Shape{4, 32, 32}));
  EXPECT_EQ(stored->Find(experts + "down_proj_bias")->shape, (Shape{4, 32}));
  EXPECT_EQ(stored->Find(experts + "0.gate_proj.weight"), nullptr);
  // Once more without an adapter: the same values.
  const fs::path again = Merge(merged, {}, "again");
  ExpectSame(ReadAll(again / "model.safetensors"), ReadAll(merged / "model.safetensors"));
}

// The checkpoint itself is in MXFP4: there is none of 16 bits to merge into.
TEST_F(JoinedExpertsHfTest, AdviceOnMxfp4NamesNoOtherCheckpoint) {
  const fs::path model = SharedFolder() / "golden/families/gpt_oss/mxfp4";
  if (!fs::exists(model)) GTEST_SKIP() << "no " << model;
  CopyWithTokenizer(model);
  ExportOptions options = ExportTo("merged.gguf");
  options.model_name_or_path = root_ / "mxfp4";
  options.adapter = {model / "adapter_all"};
  options.outtype = "mxfp4";
  options.merge_base = "original";
  EXPECT_THAT(Refusal(options), testing::EndsWith("in blocks of MXFP4; leave it out"));
  options.merge_base = "auto";
  options.adapter = {(model / "adapter_all").string() + ":0.001"};  // that rounding undoes
  options.force = true;
  const std::vector<std::string> notes = Export(context_, options).notes;
  const auto advice = std::ranges::find_if(
      notes, [](const std::string& note) { return note.starts_with("rounding to"); });
  ASSERT_NE(advice, notes.end());
  EXPECT_THAT(*advice, testing::EndsWith(
                           "of the weights; keep the adapter apart (--format gguf-adapter), or "
                           "choose an outtype of more bits"));
}

// Blocks that were not changed are the same values in a file of that type.
TEST_F(JoinedExpertsHfTest, Mxfp4StaysAsItIsInGguf) {
  const fs::path model = SharedFolder() / "golden/families/gpt_oss/mxfp4";
  if (!fs::exists(model)) GTEST_SKIP() << "no " << model;
  CopyWithTokenizer(model);
  ExportOptions options = ExportTo("mxfp4.gguf");
  options.model_name_or_path = root_ / "mxfp4";
  options.outtype = "mxfp4";
  options.verify = "false";
  Export(context_, options);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(context_, DType::kF32);
  const auto load = [&](const fs::path& path) {
    return LoadWeights(context_, *backend, path, LoadDecoderConfig(path), {});
  };
  const DecoderWeights source = load(root_ / "mxfp4");
  const DecoderWeights written = load(options.output);
  for (std::size_t l = 0; l < source.layers.size(); ++l) {
    const auto compare = [](const FrozenLinear& a, const FrozenLinear& b) {
      const std::int64_t cols = a.weight.cols();
      const HostWeight first(HostMemory(), a.weight, 0, a.weight.rows());
      const HostWeight second(HostMemory(), b.weight, 0, b.weight.rows());
      std::vector<float> x(cols);
      std::vector<float> y(cols);
      for (std::int64_t r = 0; r < a.weight.rows(); ++r) {
        first.Read(r, x.data());
        second.Read(r, y.data());
        ASSERT_EQ(x, y) << a.path << " row " << r;
      }
    };
    for (std::size_t i = 0; i < source.layers[l].linears.gate_up.size(); ++i) {
      compare(source.layers[l].linears.gate_up[i], written.layers[l].linears.gate_up[i]);
    }
    for (std::size_t i = 0; i < source.layers[l].linears.down.size(); ++i) {
      compare(source.layers[l].linears.down[i], written.layers[l].linears.down[i]);
    }
  }
}

}  // namespace
}  // namespace qlora
