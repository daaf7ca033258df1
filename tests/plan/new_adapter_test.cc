// The adapter that training continues, on a model of another class.
#include "plan/new_adapter.h"

#include "backend/backend.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

class ContinuedPathsTest : public TinyRunTest {
 protected:
  // Expects that an adapter with this configuration continues with the same ranks and scales where
  // the class of the model has other paths, and has `prefix` then.
  void ExpectContinued(const AdapterConfig& config, const std::string& prefix) const {
    DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
    const LoraAdapter saved = LoraAdapter::Create(config, decoder, HostMemory(), 1);
    saved.Save(root_ / "adapter");
    decoder.module_prefix = "model.language_model.";
    TrainOptions options = Options("run");
    options.adapter = root_ / "adapter";
    const LoraAdapter continued = DescribeAdapter(options, decoder, HostMemory());
    EXPECT_EQ(continued.config().module_prefix, prefix);
    for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
      Combine(saved.layers()[l], continued.layers()[l],
              [](const LoraLinear& a, const LoraLinear& b) {
                EXPECT_EQ(a.rank, b.rank) << a.path;
                EXPECT_EQ(a.scale, b.scale) << a.path;
                return 0;
              });
    }
  }
};

TEST_F(ContinuedPathsTest, NamesFitEveryClassAndPathsTheirOwn) {
  AdapterConfig plain;
  plain.r = 4;
  plain.target_modules = std::vector<std::string>{"q_proj", "v_proj"};
  plain.rank_pattern = {{"v_proj", 2}};
  ExpectContinued(plain, "model.language_model.");
  const std::string path = "model.layers.0.self_attn.q_proj";
  AdapterConfig config = plain;
  config.target_modules = std::vector<std::string>{path};
  ExpectContinued(config, "model.");
  config = plain;
  config.rank_pattern = {{path, 2}};
  ExpectContinued(config, "model.");
  config = plain;
  config.alpha_pattern = {{path, 2}};
  ExpectContinued(config, "model.");
  config = plain;
  config.exclude_modules = std::vector<std::string>{path};
  ExpectContinued(config, "model.");
}

}  // namespace
}  // namespace qlora
