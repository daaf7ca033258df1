// Attacks the readers of PEFT's and mlx-lm's adapters. The input is adapter_config.json, a 0 byte,
// the header of the safetensors file, a 0 byte, and its data; each reader gets it as its own
// folder.
#include "adapter/mlx_adapter.h"
#include "fuzz_decoders.h"
#include "fuzz_util.h"
#include "io/peft/peft.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  static const FuzzFolder folder;
  static const FuzzFolder mlx;
  static const std::vector<DecoderConfig> decoders = FuzzDecoders();
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string config_text(TakeText(input));
  const std::string_view header = TakeText(input);
  Attack([&] {
    std::vector<std::string> unknown;
    const AdapterConfig config = ParseAdapterConfig(config_text, "config", unknown);
    for (const char* module : {"model.layers.1.self_attn.q_proj", "lm_head", "", "q_proj"}) {
      Attack([&] { IsTargetModule(config, module); });
      Attack([&] { ScaleOf(config, module); });
    }
    // A configuration that is accepted is accepted again after being written.
    ParseAdapterConfig(FormatAdapterConfig(config), "written", unknown);
  });
  Attack([&] {
    folder.Put("adapter_config.json", config_text);
    folder.Put("adapter_model.safetensors", SafetensorsOf(header, input));
    const Adapter adapter = OpenAdapter(folder.path());
    ReadAll(*adapter.tensors);
    for (const AdapterModule& module : adapter.modules) {
      if (module.a->shape[0] != module.b->shape[1]) std::abort();
    }
  });
  mlx.Put("adapter_config.json", config_text);
  mlx.Put(kMlxWeights, SafetensorsOf(header, input));
  for (const DecoderConfig& decoder : decoders) {
    Attack([&] { CheckValues(ReadMlxValues(mlx.path(), decoder)); });
  }
  return 0;
}
