// Adapters in the layouts that trainers write: the same changes of the same weights under other
// names, in other pieces, in every form of PEFT for experts. A generator draws a layout, and the
// changes B A that are read are compared with those that were drawn.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "adapter/adapter_rewriter.h"
#include "adapter/expert_stack.h"
#include "adapter/fitted_adapter.h"
#include "adapter/lora.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/layout_models.h"
#include "model/tensor_list.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using rewriting::AdapterRewriter;
using rewriting::Changes;

std::vector<Json> Models() {
  const LayoutParts parts;
  const std::vector<std::string> attention(2, "attention");
  return {LayoutModel("llama", Json::object()),
          LayoutModel("qwen2", Json::object()),
          LayoutModel("phi3", {{"pad_token_id", 0}}),
          LayoutModel("granite", Json::object()),
          LayoutModel("granitemoehybrid", {{"num_local_experts", 0},
                                           {"shared_intermediate_size", 24},
                                           {"layer_types", attention}}),
          LayoutModel("qwen3_moe", parts.experts),
          LayoutModel("gpt_oss", {{"num_local_experts", 3}, {"num_experts_per_tok", 2}}),
          LayoutModel("lfm2_moe", parts.convolutions),
          LayoutModel("qwen3_5_moe_text", parts.delta_rule)};
}

void ExpectChanges(const LoraAdapter& adapter, const Changes& expected) {
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) {
      const auto found = expected.find(lora.path);
      for (std::int64_t y = 0; y < lora.out; ++y) {
        for (std::int64_t x = 0; x < lora.in; ++x) {
          double sum = 0;
          for (std::int64_t r = 0; r < lora.rank; ++r) {
            sum += double{lora.b.Row<float>(y)[r]} * lora.a.Row<float>(r)[x];
          }
          const double wanted = found == expected.end() ? 0 : found->second.values[y * lora.in + x];
          // Terms of size 1 times the scale, rounded once where a scale was folded into B.
          const double bound = 1e-6 * lora.scale * static_cast<double>(lora.rank + 1);
          ASSERT_NEAR(lora.scale * sum, wanted, bound + 1e-6 * std::abs(wanted)) << lora.path;
        }
      }
    });
  }
}

void ExpectReplaced(const LoraAdapter& adapter, const AdapterRewriter& writer) {
  for (const auto& [name, values] : writer.norms()) {
    ASSERT_NE(adapter.replaced(), nullptr) << name;
    EXPECT_EQ(adapter.replaced()->at(name).values, values) << name;
  }
  for (const auto& [name, change] : writer.routers()) {
    ASSERT_NE(adapter.replaced(), nullptr) << name;
    const ReplacedTensor& found = adapter.replaced()->at(name);
    EXPECT_TRUE(found.is_change);
    for (std::size_t i = 0; i < change.values.size(); ++i) {
      ASSERT_NEAR(found.values[i], change.values[i], 1e-6 * (1 + std::abs(change.values[i])));
    }
  }
}

// Returns whether experts were written as parameters.
bool Compare(const Json& model, unsigned seed) {
  TemporaryFolder folder;
  const DecoderConfig config = ParseDecoderConfig(model, "config.json");
  const AdapterRewriter writer(config, seed);
  SCOPED_TRACE(fmt::format("seed {}: {}, {}", seed, config.model_type, writer.story()));
  writer.Write(folder.path());
  try {
    const LoraAdapter adapter = LoraAdapter::Load(folder.path(), config, HostMemory());
    ExpectChanges(adapter, writer.changes());
    ExpectReplaced(adapter, writer);
    if (writer.shares_a() && !config.moe.is_joined) return false;
    if (adapter.replaced() != nullptr) return false;
    // What training writes is the same again, and none of it is passed over by PEFT.
    const std::filesystem::path again = folder.path() / "again";
    adapter.Save(again);
    ExpectChanges(LoraAdapter::Load(again, config, HostMemory()), writer.changes());
    const auto written = OpenSafetensors(again / "adapter_model.safetensors");
    bool has_parameters = false;
    for (const TensorInfo& tensor : written->tensors()) {
      const bool is_alone = tensor.name.find(".experts.0.") != std::string::npos;
      has_parameters |= !is_alone && tensor.name.find(".experts.") != std::string::npos;
      EXPECT_TRUE(!is_alone || !NeedsParameters(config) ||
                  !HaveEqualExperts(adapter.config(), config))
          << tensor.name;
    }
    return has_parameters;
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  return false;
}

// QLORA_LAYOUTS in the environment: the number of layouts for each model, for a long run.
TEST(AdapterLayoutsTest, EachLayoutIsTheSameChange) {
  const char* const count = std::getenv("QLORA_LAYOUTS");
  const unsigned layouts = count == nullptr ? 24 : static_cast<unsigned>(std::stoul(count));
  for (const Json& model : Models()) {
    unsigned with_parameters = 0;
    for (unsigned seed = 1; seed <= layouts && !testing::Test::HasFailure(); ++seed) {
      with_parameters += Compare(model, seed) ? 1 : 0;
    }
    const DecoderConfig config = ParseDecoderConfig(model, "config.json");
    if (!NeedsParameters(config) && !config.joins_experts()) continue;
    EXPECT_GT(with_parameters, 0u) << config.model_type;
  }
}

}  // namespace
}  // namespace qlora
