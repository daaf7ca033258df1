// The configuration that is written for adapters beside and on experts, as PEFT takes it: where a
// family's experts became parameters, it turns the names of their linears into parameters on
// loading, whatever else has these names. A generator draws what is adapted, with ranks and scales.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "adapter/expert_stack.h"
#include "io/json.h"
#include "model/linear_shapes.h"

namespace qlora {
namespace {

using Names = std::vector<std::string>;

DecoderConfig ConfigOf(const std::string& model_type, const Json& more) {
  Json json = {{"model_type", model_type},
               {"hidden_size", 16},
               {"intermediate_size", 24},
               {"num_hidden_layers", 3},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"head_dim", 4},
               {"vocab_size", 20},
               {"rms_norm_eps", 1e-5},
               {"max_position_embeddings", 64},
               {"num_experts", 3},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 12}};
  json.update(more);
  return ParseDecoderConfig(json, "config.json");
}

std::vector<DecoderConfig> Models() {
  return {ConfigOf("qwen3_moe", Json::object()), ConfigOf("qwen3_moe", {{"mlp_only_layers", {1}}}),
          ConfigOf("mixtral", {{"num_local_experts", 3}}),
          ConfigOf("qwen3_next",
                   {{"shared_expert_intermediate_size", 8},
                    {"mlp_only_layers", {0}},
                    {"partial_rotary_factor", 0.5},
                    {"layer_types", {"linear_attention", "full_attention", "linear_attention"}},
                    {"linear_num_key_heads", 2},
                    {"linear_num_value_heads", 4},
                    {"linear_key_head_dim", 4},
                    {"linear_value_head_dim", 4}})};
}

// What an adapter has at a linear.
struct Lora {
  bool is_there = false;
  std::int64_t rank = 0;
  double scale = 0;
};

Lora LoraOf(const AdapterConfig& config, const std::string& path) {
  if (!IsTargetModule(config, path)) return {};
  return {true, RankOf(config, path), ScaleOf(config, path)};
}

// As PEFT 0.19 loads it with transformers 5.
class Peft {
 public:
  Peft(AdapterConfig config, const DecoderConfig& decoder) : config_(std::move(config)) {
    const ModuleNames& names = decoder.names;
    up_ = names.up;
    down_ = names.down;
    Names modules;
    for (const std::string& name : std::get<Names>(config_.target_modules)) {
      const std::string last = name.substr(name.rfind('.') + 1);
      if (last == names.gate || last == names.up) {
        converts_gate_up_ = true;
      } else if (last == names.down) {
        config_.target_parameters.emplace_back("down_proj");
        converts_ = true;
      } else {
        modules.push_back(name);
      }
    }
    if (converts_gate_up_) config_.target_parameters.emplace_back("gate_up_proj");
    converts_ = converts_ || converts_gate_up_;
    config_.target_modules = modules;
  }

  // Whether experts with a LoRA each became parameters.
  bool converts() const { return converts_; }

  Lora At(const std::string& path) const {
    Lora lora = LoraOf(config_, path);
    if (path.find(".experts.") == std::string::npos || path.ends_with("." + down_)) return lora;
    // Gate and up have a half each.
    if (!lora.is_there) return lora;
    if (converts_gate_up_) {
      const auto rank = static_cast<double>(2 * config_.r);
      return {true, config_.r,
              2 * config_.lora_alpha / (config_.use_rslora ? std::sqrt(rank) : rank)};
    }
    lora.rank /= 2;
    return lora;
  }

 private:
  AdapterConfig config_;
  std::string up_;
  std::string down_;
  bool converts_ = false;
  bool converts_gate_up_ = false;
};

class Drawer {
 public:
  Drawer(const DecoderConfig& decoder, unsigned seed) : decoder_(decoder), random_(seed) {}

  AdapterConfig Config() {
    AdapterConfig config;
    config.r = 6;
    config.lora_alpha = 12;
    config.use_rslora = Draw(3) == 0;
    config.lora_dropout = Draw(4) == 0 ? 0.5 : 0;
    std::set<std::string> all;
    for (std::int64_t l = 0; l < decoder_.num_hidden_layers; ++l) {
      LinearPaths(decoder_, l).ForEach([&](const std::string& path) {
        all.insert(path.substr(path.rfind('.') + 1));
      });
    }
    Names names;
    for (const std::string& name : all) {
      if (Draw(5) > 0) names.push_back(name);
    }
    if (names.empty()) names.emplace_back("q_proj");
    config.target_modules = names;
    if (Draw(4) == 0) config.layers_to_transform = {Draw(3)};
    if (Draw(6) == 0) config.exclude_modules = Names{"shared_expert.gate_proj", "q_proj"};
    if (Draw(6) == 0) config.target_modules = std::string("all-linear");
    for (const std::string& name : names) {
      if (Draw(8) == 0) config.rank_pattern.emplace_back(name, 1 + Draw(5));
      if (Draw(8) == 0) config.alpha_pattern.emplace_back(name, 1 + Draw(5));
    }
    if (std::holds_alternative<std::string>(config.target_modules)) config.layers_to_transform = {};
    return config;
  }

 private:
  std::int64_t Draw(std::int64_t below) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint32_t>(below));
  }

  const DecoderConfig& decoder_;
  std::mt19937 random_;
};

AdapterConfig Stored(const AdapterConfig& config) {
  std::vector<std::string> unknown;
  return ParseAdapterConfig(FormatAdapterConfig(config), "a.json", unknown);
}

TEST(ExpertFormsTest, PeftTakesWhatIsWritten) {
  std::int64_t parameters = 0;
  std::int64_t linears = 0;
  for (const DecoderConfig& decoder : Models()) {
    for (unsigned seed = 1; seed <= 150; ++seed) {
      const AdapterConfig config = Drawer(decoder, seed).Config();
      // Of these a warning tells.
      if (HasUnevenExperts(config, decoder)) continue;
      const bool writes = WritesParameters(config, decoder);
      const AdapterConfig written = writes ? ConfigOfParameters(config, decoder) : config;
      ++(writes ? parameters : linears);
      if (std::holds_alternative<std::string>(written.target_modules)) continue;
      SCOPED_TRACE(fmt::format("{}, seed {}:\n{}\n{}", decoder.model_type, seed,
                               FormatAdapterConfig(config), FormatAdapterConfig(written)));
      const Peft peft(Stored(written), decoder);
      EXPECT_FALSE(writes && peft.converts());
      for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
        LinearPaths(decoder, l).ForEach([&](const std::string& path) {
          const Lora expected = LoraOf(config, path);
          const Lora found = peft.At(path);
          EXPECT_FALSE(peft.converts() && config.lora_dropout > 0 &&
                       HaveEqualExperts(config, decoder));
          ASSERT_EQ(found.is_there, expected.is_there) << path;
          ASSERT_EQ(found.rank, expected.rank) << path;
          ASSERT_NEAR(found.scale, expected.scale, 1e-12) << path;
        });
      }
    }
  }
  EXPECT_GT(parameters, 100);
  EXPECT_GT(linears, 20);
}

}  // namespace
}  // namespace qlora
