#include "io/peft/peft_config.h"

#include "io/json.h"
#include "io/test_util.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using Names = std::vector<std::string>;

AdapterConfig Parsed(const std::string& body) {
  std::vector<std::string> unknown;
  return ParseAdapterConfig("{\"peft_type\": \"LORA\", " + body + "}", "a.json", unknown);
}
AdapterConfig Selecting(const ModuleSelection& selection) {
  AdapterConfig config;
  config.target_modules = selection;
  return config;
}
std::string Linear(int layer, const std::string& name = "self_attn.q_proj") {
  return "model.layers." + std::to_string(layer) + "." + name;
}

TEST(PeftConfig, WritesWhatPeftWrites) {
  AdapterConfig config;
  config.base_model_name_or_path = "org/model\xc3\xa9";
  config.r = 4;
  config.lora_alpha = 16;
  config.lora_dropout = 0.05;
  config.target_modules = Names{"q_proj", "v_proj"};
  config.rank_pattern = {{"k_proj", 2}};
  config.alpha_pattern = {{"k_proj", 1.5}};
  EXPECT_EQ(FormatAdapterConfig(config), R"({
  "alpha_pattern": {
    "k_proj": 1.5
  },
  "base_model_name_or_path": "org/model\u00e9",
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layers_pattern": null,
  "layers_to_transform": null,
  "lora_alpha": 16,
  "lora_dropout": 0.05,
  "modules_to_save": null,
  "peft_type": "LORA",
  "r": 4,
  "rank_pattern": {
    "k_proj": 2
  },
  "revision": null,
  "target_modules": [
    "q_proj",
    "v_proj"
  ],
  "task_type": "CAUSAL_LM",
  "use_dora": false,
  "use_rslora": false
})");
}

TEST(PeftConfig, ReadsBackWhatItWrites) {
  AdapterConfig config;
  config.base_model_name_or_path = "base";
  config.revision = "main";
  config.task_type = "";
  config.r = 3;
  config.lora_alpha = 2.5;
  config.lora_dropout = 0.1;
  config.target_modules = Names{"q_proj"};
  config.exclude_modules = std::string(R"(.*\.3\..*)");
  config.modules_to_save = {"lm_head"};
  config.fan_in_fan_out = config.use_rslora = config.use_dora = true;
  config.rank_pattern = {{"a", 1}, {"b", 2}};
  config.alpha_pattern = {{"c", 0.5}};
  config.layers_to_transform = {1, 5};
  config.layers_pattern = {"layers"};
  std::vector<std::string> unknown;
  const std::string text = FormatAdapterConfig(config);
  const AdapterConfig read = ParseAdapterConfig(text, "a.json", unknown);
  EXPECT_TRUE(unknown.empty());
  EXPECT_EQ(FormatAdapterConfig(read), text);
  EXPECT_EQ(read.base_model_name_or_path, "base");
  EXPECT_EQ(read.revision, "main");
  EXPECT_EQ(read.task_type, "");
  EXPECT_EQ(read.r, 3);
  EXPECT_EQ(read.lora_alpha, 2.5);
  EXPECT_EQ(read.lora_dropout, 0.1);
  EXPECT_EQ(read.exclude_modules, config.exclude_modules);
  EXPECT_EQ(read.rank_pattern, config.rank_pattern);
  EXPECT_EQ(read.alpha_pattern, config.alpha_pattern);
  EXPECT_EQ(read.layers_to_transform, config.layers_to_transform);
}

TEST(PeftConfig, DefaultsArePefts) {
  const AdapterConfig config = Parsed(R"("target_modules": ["q_proj"], "layers_to_transform": 3)");
  EXPECT_EQ(config.r, 8);
  EXPECT_EQ(config.lora_alpha, 8);
  EXPECT_EQ(config.lora_dropout, 0);
  EXPECT_EQ(config.task_type, "");
  EXPECT_THAT(config.layers_to_transform, ElementsAre(3));
  const std::string empty = R"("target_modules": ["q_proj"], "layers_pattern": "")";
  EXPECT_TRUE(Parsed(empty).layers_pattern.empty()) << "the same as none";
}

TEST(PeftConfig, ReportsUnknownKeys) {
  std::vector<std::string> unknown;
  ParseAdapterConfig(R"({"peft_type": "LORA", "target_modules": ["a"], "zeta": 1, "alpha": null,
                         "peft_version": "0.20", "loftq_config": {}, "lora_bias": false,
                         "megatron_core": "megatron.core", "target_parameters": null})",
                     "a.json", unknown);
  EXPECT_THAT(unknown, ElementsAre("alpha", "zeta"));
}

TEST(PeftConfig, RefusesSettingsThatWouldBeLost) {
  const std::pair<const char*, const char*> cases[] = {{"use_qalora", "true"},
                                                       {"megatron_config", "{\"a\": 1}"},
                                                       {"layer_replication", "[[0, 4]]"},
                                                       {"lora_bias", "true"},
                                                       {"trainable_token_indices", "3"},
                                                       {"alora_invocation_tokens", "[5]"},
                                                       {"use_bdlora", "{\"nblocks\": 2}"},
                                                       {"arrow_config", "{\"a\": 1}"},
                                                       {"kasa_config", "{\"a\": 1}"},
                                                       {"velora_config", "{\"a\": 1}"},
                                                       {"monteclora_config", "{\"a\": 1}"},
                                                       {"bias", "\"some\""},
                                                       {"init_lora_weights", "\"pissa_niter_4\""},
                                                       {"init_lora_weights", "\"olora\""},
                                                       {"init_lora_weights", "\"loftq\""},
                                                       {"init_lora_weights", "\"corda\""},
                                                       {"init_lora_weights", "\"later\""}};
  for (const auto& [key, value] : cases) {
    const std::string body =
        "\"target_modules\": [\"a\"], \"" + std::string(key) + "\": " + std::string(value);
    ExpectRefused([&] { Parsed(body); }, "a.json: key '" + std::string(key) + "'");
  }
  EXPECT_NO_THROW(Parsed(R"("target_modules": ["a"], "init_lora_weights": "gaussian")"));
  EXPECT_NO_THROW(Parsed(R"("target_modules": ["a"], "init_lora_weights": false)"));
}

TEST(PeftConfig, ReadsTokenRowsAndParameters) {
  const AdapterConfig list = Parsed(R"("trainable_token_indices": [5, 3])");
  ASSERT_EQ(list.trainable_token_indices.size(), 1u);
  EXPECT_EQ(list.trainable_token_indices[0].first, "embed_tokens");
  EXPECT_THAT(list.trainable_token_indices[0].second, ElementsAre(5, 3));
  const AdapterConfig object = Parsed(R"("trainable_token_indices": {"lm_head": [7]})");
  EXPECT_EQ(object.trainable_token_indices[0].first, "lm_head");
  const AdapterConfig experts = Parsed(R"("target_modules": ["q_proj", "gate_proj"], "r": 4,
                "target_parameters": ["mlp.experts.down_proj"],
                "rank_pattern": {"experts.down_proj": 2})");
  EXPECT_TRUE(IsTargetModule(experts, "model.layers.0.mlp.experts.3.down_proj"));
  // As parameters, experts are not reached by target_modules.
  EXPECT_FALSE(IsTargetModule(experts, "model.layers.0.mlp.experts.3.gate_proj"));
  EXPECT_TRUE(IsTargetModule(experts, "model.layers.0.mlp.shared_expert.gate_proj"));
  EXPECT_EQ(RankOf(experts, "model.layers.0.mlp.experts.3.down_proj"), 2);
  EXPECT_TRUE(IsTargetModule(experts, "model.layers.0.block_sparse_moe.experts.1.w2"));
}

TEST(PeftConfig, MatchesPathsAsTheAdapterSpellsThem) {
  AdapterConfig config =
      Parsed(R"("target_modules": ["model.language_model.layers.1.mlp.up_proj"])");
  EXPECT_FALSE(IsTargetModule(config, "model.layers.1.mlp.up_proj"));
  config.module_prefix = "model.language_model.";
  EXPECT_TRUE(IsTargetModule(config, "model.layers.1.mlp.up_proj"));
  EXPECT_EQ(SpelledPath(config, "lm_head"), "lm_head");
  config.module_prefix = "language_model.model.";
  EXPECT_EQ(SpelledPath(config, "lm_head"), "language_model.lm_head");
  config.target_modules = R"((?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?))";
  EXPECT_TRUE(IsTargetModule(config, "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(IsTargetModule(config, "model.layers.0.self_attn.k_proj"));
}

// PEFT would adapt linears of an encoder that have these names, too.
TEST(PeftConfig, SelectsNothingBesideTheTextModel) {
  AdapterConfig config = Selecting(Names{"q_proj", "mlp.up_proj", "lm_head", "embed_tokens",
                                         "model.language_model.layers.2.self_attn.k_proj"});
  for (const char* const prefix : {"model.language_model.", "language_model.model."}) {
    config.module_prefix = prefix;
    std::get<Names>(config.target_modules).back() =
        SpelledPath(config, Linear(2, "self_attn.k_proj"));
    for (const std::vector<std::int64_t>& layers : {std::vector<std::int64_t>{}, {0, 12}}) {
      config.layers_to_transform = layers;
      std::vector<std::string> unknown;
      AdapterConfig stored = ParseAdapterConfig(FormatAdapterConfig(config), "a.json", unknown);
      EXPECT_TRUE(stored.layers_to_transform.empty());
      for (const char* const encoder :
           {"model.vision_tower.encoder.layers.0.self_attn.q_proj", "vision_tower.q_proj",
            "model.audio_tower.layers.12.mlp.up_proj", "visual.blocks.0.q_proj"}) {
        EXPECT_FALSE(IsTargetModule(stored, encoder)) << encoder;
      }
      stored.module_prefix = prefix;
      for (const int layer : {0, 1, 2, 12}) {
        for (const char* const name : {"self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj",
                                       "mlp.experts.0.up_proj", "other.q_proj"}) {
          const std::string path = Linear(layer, name);
          EXPECT_EQ(IsTargetModule(stored, path), IsTargetModule(config, path)) << path;
        }
      }
      for (const char* const table : {"lm_head", "model.embed_tokens"}) {
        EXPECT_EQ(IsTargetModule(stored, table), IsTargetModule(config, table)) << table;
      }
    }
  }
}

// PEFT names the other of two tied tables by its path.
TEST(PeftConfig, ModulesToSaveMayBePaths) {
  std::vector<std::string> unknown;
  const AdapterConfig config = ParseAdapterConfig(
      R"({"peft_type": "LORA", "target_modules": ["q_proj"], "modules_to_save":
          ["embed_tokens", "model.embed_tokens", "lm_head", "model.language_model.lm_head", "norm"]})",
      "a.json", unknown);
  EXPECT_EQ(config.modules_to_save, (std::vector<std::string>{"embed_tokens", "lm_head", "norm"}));
}

TEST(PeftConfig, RefusesBrokenConfigurations) {
  std::vector<std::string> unknown;
  const auto refused = [&](const std::string& text, const std::string& message) {
    ExpectRefused([&] { ParseAdapterConfig(text, "a.json", unknown); }, message);
  };
  refused("", "a.json: not valid JSON");
  refused("[]", "expected a JSON object");
  refused("{}", "key 'peft_type'");
  refused(R"({"peft_type": "LORA", "peft_type": "LORA"})", "appears twice");
  refused(R"({"peft_type": "IA3"})", "expected \"LORA\", found \"IA3\"");
  refused(R"({"fine_tune_type": "lora"})", "mlx-lm");
  const auto bad = [&](const std::string& body, const std::string& message) {
    refused("{\"peft_type\": \"LORA\", " + body + "}", message);
  };
  bad(R"("r": 4)", "key 'target_modules' is missing");
  bad(R"("target_modules": [])", "key 'target_modules' is missing");
  bad(R"("target_modules": [3])", "key 'target_modules': expected a string, found 3");
  const std::string q = R"("target_modules": ["q_proj"], )";
  bad(q + R"("r": 0)", "a rank must be at least 1, found 0");
  bad(q + R"("r": "8")", "expected an integer");
  bad(q + R"("rank_pattern": {"k": 0})", "key 'rank_pattern': a rank must be");
  bad(q + R"("rank_pattern": {"k": 1.5})", "expected an integer, found 1.5");
  bad(q + R"("rank_pattern": [1])", "key 'rank_pattern': expected an object");
  bad(q + R"("alpha_pattern": {"k": "x"})", "expected a number");
  bad(q + R"("lora_dropout": 1.0)", "expected 0 <= p < 1, found 1");
  bad(q + R"("lora_dropout": -0.1)", "expected 0 <= p < 1");
  bad(q + R"("use_dora": 1)", "expected true or false");
  bad(q + R"("layers_pattern": "layers")", "needs layers_to_transform");
  bad(R"("target_modules": ".*", "layers_to_transform": [1])", "key 'layers_to_transform' cannot");
  bad(R"("target_modules": ".*", "layers_to_transform": [1], "layers_pattern": "h")",
      "key 'layers_pattern' cannot");
}

TEST(PeftConfig, ListsNameModulesByTheirEnd) {
  const AdapterConfig config = Selecting(Names{"q_proj", "mlp.up_proj", "head"});
  EXPECT_TRUE(IsTargetModule(config, Linear(0)));
  EXPECT_TRUE(IsTargetModule(config, Linear(11, "mlp.up_proj")));
  EXPECT_FALSE(IsTargetModule(config, Linear(0, "up_proj")));
  EXPECT_FALSE(IsTargetModule(config, Linear(0, "self_attn.my_q_proj")));
  EXPECT_FALSE(IsTargetModule(config, Linear(0) + ".base_layer"));
  EXPECT_TRUE(IsTargetModule(config, "head"));
  EXPECT_FALSE(IsTargetModule(config, "q_proj_not"));
}

TEST(PeftConfig, StringsAreFullMatchesOfTheWholePath) {
  const AdapterConfig config = Selecting(std::string(R"(model\.layers\.(0|7)\..*(q|v)_proj)"));
  EXPECT_TRUE(IsTargetModule(config, Linear(0)));
  EXPECT_TRUE(IsTargetModule(config, Linear(7, "self_attn.v_proj")));
  EXPECT_FALSE(IsTargetModule(config, Linear(1)));
  EXPECT_FALSE(IsTargetModule(config, "base." + Linear(0)));
  EXPECT_FALSE(IsTargetModule(config, Linear(0) + "x"));
  EXPECT_FALSE(IsTargetModule(Selecting(std::string("q_proj")), Linear(0)));
  EXPECT_TRUE(IsTargetModule(Selecting(std::string(R"((?P<a>.*)\.q_proj)")), Linear(0)));
}

TEST(PeftConfig, AllLinearIsEverythingButTheHead) {
  const AdapterConfig config = Selecting(std::string("all-Linear"));
  EXPECT_TRUE(IsTargetModule(config, Linear(0)));
  EXPECT_FALSE(IsTargetModule(config, "lm_head"));
}

TEST(PeftConfig, ExclusionsWin) {
  AdapterConfig config = Selecting(Names{"q_proj", "lm_head"});
  config.exclude_modules = Names{"layers.3.self_attn.q_proj", Linear(4)};
  EXPECT_TRUE(IsTargetModule(config, Linear(2)));
  EXPECT_FALSE(IsTargetModule(config, Linear(3)));
  EXPECT_FALSE(IsTargetModule(config, Linear(4)));
  EXPECT_TRUE(IsTargetModule(config, Linear(13)));
  config.exclude_modules = std::string(R"(.*\.1\d\..*)");
  EXPECT_TRUE(IsTargetModule(config, Linear(3)));
  EXPECT_FALSE(IsTargetModule(config, Linear(13)));
  config.modules_to_save = {"lm_head"};
  EXPECT_FALSE(IsTargetModule(config, "lm_head"));
  EXPECT_FALSE(IsTargetModule(config, "x.lm_head.q_proj"));
  EXPECT_TRUE(IsTargetModule(config, "my_lm_head.q_proj"));
}

TEST(PeftConfig, LayersAreChosenByTheFirstNumberedSegment) {
  AdapterConfig config = Selecting(Names{"q_proj", "w1"});
  config.layers_to_transform = {1, 12};
  EXPECT_FALSE(IsTargetModule(config, Linear(0)));
  EXPECT_TRUE(IsTargetModule(config, Linear(1)));
  EXPECT_TRUE(IsTargetModule(config, Linear(12)));
  EXPECT_FALSE(IsTargetModule(config, "q_proj.x.q_proj"));  // no layer at all
  EXPECT_TRUE(IsTargetModule(config, "q_proj"));            // the path itself is in the list
  EXPECT_TRUE(IsTargetModule(config, "model.layers.1.experts.0.w1"));
  EXPECT_FALSE(IsTargetModule(config, "model.layers.0.experts.1.w1"));
  config.layers_pattern = {"h", "experts"};
  EXPECT_FALSE(IsTargetModule(config, Linear(1)));
  EXPECT_TRUE(IsTargetModule(config, "model.h.1.q_proj"));
  EXPECT_TRUE(IsTargetModule(config, "model.layers.0.experts.1.w1"));
  EXPECT_FALSE(IsTargetModule(config, "model.h.99999999999999999999.q_proj"));
  config.layers_pattern = {"(h|layers)"};
  EXPECT_TRUE(IsTargetModule(config, Linear(1)));
}

TEST(PeftConfig, PatternsOverrideRankAndAlpha) {
  const AdapterConfig config = Parsed(
      R"("target_modules": ["q_proj"], "r": 16, "lora_alpha": 32,
         "rank_pattern": {"self_attn.q_proj": 4, ".*layers\\.2.*": 2, "k_proj": 5},
         "alpha_pattern": {"layers.0.*": 1})");
  EXPECT_EQ(RankOf(config, Linear(0)), 4);
  EXPECT_EQ(RankOf(config, Linear(2)), 4);  // the first entry of the file wins
  EXPECT_EQ(RankOf(config, Linear(2, "mlp.up_proj")), 2);
  EXPECT_EQ(RankOf(config, Linear(1, "mlp.up_proj")), 16);
  EXPECT_EQ(RankOf(config, Linear(1, "self_attn.k_proj")), 5);
  EXPECT_EQ(RankOf(config, Linear(1, "self_attn.qk_proj")), 16);
  EXPECT_EQ(RankOf(config, "k_proj"), 5);
  EXPECT_EQ(AlphaOf(config, Linear(0)), 1);
  EXPECT_EQ(AlphaOf(config, Linear(1)), 32);
  EXPECT_EQ(ScaleOf(config, Linear(0)), 0.25);
}

TEST(PeftConfig, RsloraScalesByTheRoot) {
  AdapterConfig config = Selecting(Names{"q_proj"});
  config.r = 16;
  config.lora_alpha = 8;
  EXPECT_EQ(ScaleOf(config, Linear(0)), 0.5);
  config.use_rslora = true;
  EXPECT_EQ(ScaleOf(config, Linear(0)), 2.0);
}

TEST(PeftConfig, BadPatternsAreErrorsThatNameTheKey) {
  ExpectRefused([] { IsTargetModule(Selecting(std::string("a(b")), "x"); },
                "target_modules: 'a(b' is not a regular expression");
  AdapterConfig config = Selecting(Names{"q_proj"});
  config.rank_pattern = {{"[", 1}};
  ExpectRefused([&] { RankOf(config, "x"); }, "rank_pattern");
  ExpectRefused([] { IsTargetModule(Selecting(std::string("(a+)+[bc]")), std::string(60, 'a')); },
                "cannot be matched");
}

TEST(PeftConfig, ReadsTheSharedAdapter) {
  const auto path = SharedFolder() / "models" / "stories260K-lora-r4" / "adapter_config.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  std::vector<std::string> unknown;
  const AdapterConfig config =
      ParseAdapterConfig(ReadJsonFile(path).dump(), path.string(), unknown);
  EXPECT_TRUE(unknown.empty());
  EXPECT_EQ(config.r, 4);
  EXPECT_EQ(ScaleOf(config, Linear(0)), 2.0);
}

}  // namespace
}  // namespace qlora
