#include "convert/gguf_base.h"

#include "base/check.h"
#include "gguf/gguf.h"
#include "model/gguf_names.h"
#include "model/gguf_source.h"

namespace qlora {

void CheckFitsGguf(const std::filesystem::path& file, const DecoderConfig& config,
                   const LoraAdapter& adapter) {
  const std::unique_ptr<GgufReader> reader = OpenGguf(file);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const PerLinear<std::string> names = GgufLinearNames(l, config);
    const auto check = [&](const std::string& name, const LoraLinear& lora) {
      if (lora.rank == 0 || reader->Find(name + ".weight") != nullptr) return;
      ThrowInvalidInput(
          "{}: has no tensor '{}.weight', to which an adapter GGUF would add the adapter of '{}': "
          "it holds these weights in another cut; merge the adapter into the model (--format gguf)",
          file.string(), name, lora.path);
    };
    const auto check_all = [&](const std::vector<std::string>& tensors,
                               const std::vector<LoraLinear>& loras) {
      for (std::size_t i = 0; i < loras.size(); ++i) check(tensors[i % tensors.size()], loras[i]);
    };
    const PerLinear<LoraLinear>& loras = adapter.layers()[l];
    check_all(names.qkv, loras.qkv);
    check(names.o, loras.o);
    check_all(names.gate_up, loras.gate_up);
    check_all(names.down, loras.down);
  }
}

void RefuseCheckpointOf(const std::filesystem::path& file, const std::string& verb) {
  const std::string repository = GgufSourceOf(*OpenGguf(file)).repository;
  ThrowInvalidInput(
      "{}: is a GGUF file, which lacks the configuration and the tokenizer's files of a Hugging "
      "Face checkpoint, so that {} cannot write one; give the checkpoint that it was made from{}, "
      "with which an adapter of this file works too",
      file.string(), verb, repository.empty() ? "" : " (" + repository + ")");
}

}  // namespace qlora
