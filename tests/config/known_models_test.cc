// The table of well-known models, against the numbers of parameters that their publishers give.
#include "hub/known_models.h"

#include <gtest/gtest.h>

#include <map>

#include "config/config.h"
#include "io/json.h"
#include "model/weights.h"
#include "qlora/context.h"

namespace qlora {
namespace {

// Of the language model alone; a tied head counts once.
const std::map<std::string, std::int64_t> kParameters = {
    {"Llama-2-7b", 6738415616},
    {"gpt-oss-20b", 20914757184},
    {"gpt-oss-120b", 116829156672},
    {"Llama-2-13b", 13015864320},
    {"Llama-2-70b", 68976648192},
    {"Llama-3-8B", 8030261248},
    {"Llama-3-70B", 70553706496},
    {"Llama-3.1-8B", 8030261248},
    {"Llama-3.1-70B", 70553706496},
    {"Llama-3.1-405B", 405853388800},
    {"Llama-3.2-1B", 1235814400},
    {"Llama-3.2-3B", 3212749824},
    {"Llama-3.3-70B", 70553706496},
    {"TinyLlama-1.1B", 1100048384},
    {"Mistral-7B-v0.1", 7241732096},
    {"Mistral-7B-v0.3", 7248023552},
    {"Mistral-Nemo-2407", 12247782400},
    {"Mistral-Small-24B", 23572403200},
    {"Mixtral-8x7B", 46702792704},
    {"Mixtral-8x22B", 140630071296},
    {"Qwen2.5-0.5B", 494032768},
    {"Qwen2.5-1.5B", 1543714304},
    {"Qwen2.5-3B", 3085938688},
    {"Qwen2.5-7B", 7615616512},
    {"Qwen2.5-14B", 14770033664},
    {"Qwen2.5-32B", 32763876352},
    {"Qwen2.5-72B", 72706203648},
    {"Qwen2.5-Coder-0.5B", 494032768},
    {"Qwen2.5-Coder-1.5B", 1543714304},
    {"Qwen2.5-Coder-3B", 3085938688},
    {"Qwen2.5-Coder-7B", 7615616512},
    {"Qwen2.5-Coder-14B", 14770033664},
    {"Qwen2.5-Coder-32B", 32763876352},
    {"DeepSeek-R1-Distill-Qwen-1.5B", 1777088000},
    {"DeepSeek-R1-Distill-Qwen-7B", 7615616512},
    {"DeepSeek-R1-Distill-Llama-8B", 8030261248},
    {"DeepSeek-R1-Distill-Qwen-14B", 14770033664},
    {"DeepSeek-R1-Distill-Qwen-32B", 32763876352},
    {"DeepSeek-R1-Distill-Llama-70B", 70553706496},
    {"Qwen3-0.6B", 596049920},
    {"Qwen3-1.7B", 1720574976},
    {"Qwen3-4B", 4022468096},
    {"Qwen3-Embedding-0.6B", 595776512},
    {"Qwen3-Embedding-4B", 4021774336},
    {"Qwen3-8B", 8190735360},
    {"Qwen3-14B", 14768307200},
    {"Qwen3-32B", 32762123264},
    {"Qwen3-30B-A3B", 30532122624},
    {"Qwen3-235B-A22B", 235093634560},
    {"gemma-2-2b", 2614341888},
    {"gemma-2-9b", 9241705984},
    {"gemma-2-27b", 27227128320},
    {"gemma-3-270m", 268098176},
    {"gemma-3-1b", 999885952},
    {"gemma-3-4b", 3880263168},
    {"gemma-3-12b", 11766034176},
    {"gemma-3-27b", 27009346304},
    {"gemma-4-E2B", 4628569379},
    {"gemma-4-E4B", 7463013418},
    // The 11959730224 of the files without the 52379904 of the embedders of images and sound.
    {"gemma-4-12B", 11907350320},
    {"gemma-4-31B", 30697345340},
    {"gemma-4-26B-A4B", 25233141790},
    {"Phi-3-mini", 3821079552},
    {"Phi-3-medium", 13960238080},
    {"Phi-3.5-mini", 3821079552},
    {"phi-4", 14659507200},
    {"Phi-4-mini", 3836021760},
    {"SmolLM2-135M", 134515008},
    {"SmolLM2-360M", 361821120},
    {"SmolLM2-1.7B", 1711376384},
    {"SmolLM3-3B", 3075098624},
    {"MiniCPM5-1B", 1080632832},
    {"MiniCPM5-2B", 2516756480},
    {"Spark-X2.5-1.7B", 1707657216},
    {"Spark-X2.5-4B", 4112079360},
    {"EXAONE-4.0-1.2B", 1279391488},
    {"EXAONE-4.0-32B", 32003216384},
    {"LFM3-1.7B", 1722510080},  // as we count it: nobody has published the number
    {"Ministral-3-3B", 3429006336},
    {"Ministral-3-8B", 8489553920},
    {"Ministral-3-14B", 13506073600},
    {"Olmo-3-7B", 7298011136},
    {"Olmo-3-32B", 32233522176},
    {"Hunyuan-7B", 7504568320},
    {"ERNIE-4.5-0.3B", 360748032},
    {"Seed-OSS-36B", 36151104512},
    {"GLM-4-9B-0414", 9400279040},
    {"GLM-4-32B-0414", 32566487552},
    {"granite-3.1-2b", 2533531648},
    {"granite-3.1-8b", 8170848256},
    {"Qwen2.5-VL-3B", 3085938688},
    {"Qwen2.5-VL-7B", 7615616512},
    {"Qwen3-VL-2B", 1720574976},
    {"Qwen3-VL-4B", 4022468096},
    {"Qwen3-VL-8B", 8190735360},
    {"Qwen3-VL-32B", 32762123264},
    {"Qwen3.5-0.8B", 752393024},
    {"Qwen3.5-4B", 4205751296},
    {"Qwen3.5-9B", 8953803264},
    {"Qwen3.5-27B", 26895998464},
    {"Qwen3.5-35B-A3B", 34660610688},
    {"Qwen3.6-35B-A3B", 34660610688},
    {"Qwen3-Next-80B-A3B", 79674391296},
    {"LFM2-350M", 354483968},
    {"LFM2-700M", 742489344},
    {"LFM2-1.2B", 1170340608},
    {"LFM2-8B-A1B", 8339930560},  // 704 of them biases of experts
    {"Olmo-2-1B", 1484916736},
    {"Olmo-2-7B", 7298617344},
    {"Olmo-2-13B", 13716198400},
    {"Olmo-2-32B", 32234279936},
    {"Falcon3-1B", 1669408768},
    {"Falcon3-3B", 3227655168},
    {"Falcon3-7B", 7455550464},
    {"Falcon3-10B", 10305653760},
    {"granite-3.3-2b", 2533539840},
    {"granite-3.3-8b", 8170864640},
    {"granite-swash-2b", 2144463840},
    {"granite-4.0-350m", 352379904},
    {"granite-4.0-1b", 1631750144},
    {"granite-4.0-micro", 3402836480},
    {"Mistral-Small-3.1-24B", 23572403200},
    {"Mistral-Small-3.2-24B", 23572403200},
    {"Qwen2.5-VL-72B", 72706203648},
};

TEST(KnownModelsTest, HaveTheParametersThatAreKnown) {
  Context context(1);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(context, DType::kF32);
  for (const std::string& name : KnownModelNames()) {
    const auto config = KnownModelConfig(name);
    ASSERT_TRUE(config) << name;
    const auto known = kParameters.find(name);
    ASSERT_NE(known, kParameters.end()) << name;
    EXPECT_EQ(PlanWeights(context, *backend, ParseDecoderConfig(*config, name), {}).parameters,
              known->second)
        << name;
  }
}

// Windows are no parameters, but a plan of memory knows them.
TEST(KnownModelsTest, LayersOfNewFamiliesSeeWhatTheirConfigurationsSay) {
  const auto windows = [](const char* name) {
    const DecoderConfig config = ParseDecoderConfig(*KnownModelConfig(name), name);
    std::map<std::int64_t, int> layers;
    for (const LayerConfig& layer : config.layers) ++layers[layer.window];
    return layers;
  };
  using Layers = std::map<std::int64_t, int>;
  EXPECT_EQ(windows("MiniCPM5-2B"), (Layers{{0, 42}}));
  EXPECT_EQ(windows("Spark-X2.5-1.7B"), (Layers{{0, 7}, {512, 21}}));
  EXPECT_EQ(windows("Spark-X2.5-4B"), (Layers{{0, 9}, {512, 27}}));
  EXPECT_EQ(windows("EXAONE-4.0-1.2B"), (Layers{{0, 30}}));
  EXPECT_EQ(windows("EXAONE-4.0-32B"), (Layers{{0, 16}, {4096, 48}}));
  EXPECT_EQ(windows("LFM3-1.7B"), (Layers{{0, 19}, {256, 5}}));
  EXPECT_EQ(windows("granite-swash-2b"), (Layers{{0, 7}, {128, 17}}));
}

TEST(KnownModelsTest, NamesHaveManyForms) {
  for (const char* name : {"llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct",
                           "unsloth/Meta-Llama-3.1-8B-bnb-4bit", "Llama-3.1-8B@main"}) {
    const auto config = KnownModelConfig(name);
    ASSERT_TRUE(config) << name;
    EXPECT_EQ(config->at("max_position_embeddings"), 131072) << name;
  }
  EXPECT_TRUE(KnownModelConfig("TinyLlama/TinyLlama-1.1B-Chat-v1.0"));
  EXPECT_EQ(KnownModelConfig("mistralai/Mistral-7B-Instruct-v0.3")->at("vocab_size"), 32768);
  EXPECT_EQ(KnownModelConfig("mistralai/Mistral-7B-Instruct-v0.2")->at("vocab_size"), 32000);
  EXPECT_TRUE(KnownModelConfig("mistralai/Ministral-3-8B-Reasoning-2512"));
  EXPECT_TRUE(KnownModelConfig("allenai/Olmo-3-7B-Think"));
  EXPECT_TRUE(KnownModelConfig("Qwen/Qwen3-8B-FP8"));
  EXPECT_TRUE(KnownModelConfig("allenai/OLMo-2-1124-13B-Instruct"));
  EXPECT_TRUE(KnownModelConfig("mistralai/Mistral-Small-3.2-24B-Instruct-2506"));
  EXPECT_TRUE(KnownModelConfig("ibm-granite/granite-4.0-micro-base"));
  EXPECT_FALSE(KnownModelConfig("Llama-3.1-9B"));
  EXPECT_FALSE(KnownModelConfig(""));
}

TEST(KnownModelsTest, NamesThatAreNear) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(NearKnownModels("Qwen/Qwen3-7B-Instruct"), (Names{"Qwen3-4B", "Qwen3-8B"}));
  EXPECT_EQ(NearKnownModels("Mistral-8B-v0.3"), Names{"Mistral-7B-v0.3"});
  // A model whose shape is not known is not taken for its elder.
  EXPECT_FALSE(KnownModelConfig("XHToken/Spark-X2.6-4B"));
  EXPECT_EQ(NearKnownModels("Spark-X2.6-4B"), Names{"Spark-X2.5-4B"});
  EXPECT_EQ(NearKnownModels("bert-large-uncased"), Names{});
}

TEST(KnownModelsTest, RepositoriesOfNamesWithoutOrganisation) {
  for (const std::string& name : KnownModelNames()) {
    const std::string repository = KnownRepository(name);
    EXPECT_EQ(KnownModelConfig(repository), KnownModelConfig(name)) << repository;
  }
  EXPECT_EQ(KnownRepository("Llama-2-7b"), "meta-llama/Llama-2-7b-hf");
  EXPECT_EQ(KnownRepository("Llama-3.2-1B-Instruct"), "meta-llama/Llama-3.2-1B-Instruct");
  EXPECT_EQ(KnownRepository("Llama-3.2-2B"), "");
}

}  // namespace
}  // namespace qlora
