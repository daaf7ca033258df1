// A checkpoint with more layers than the small ones of tests/golden.
#ifndef QLORA_TESTS_MODEL_DEEPER_MODEL_H_
#define QLORA_TESTS_MODEL_DEEPER_MODEL_H_

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/tensor_file.h"

namespace qlora {

// Writes the model to `to` with its layers repeated, `times` in all. A model whose config.json has
// no list with an entry for each layer.
inline void WriteDeeper(const std::filesystem::path& model, const std::filesystem::path& to,
                        std::int64_t times) {
  std::filesystem::create_directories(to);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(model / name, to / name);
  }
  Json config = ReadJsonFile(model / "config.json");
  const auto layers = config["num_hidden_layers"].get<std::int64_t>();
  config["num_hidden_layers"] = times * layers;
  WriteTextFile(to / "config.json", FormatJson(config));

  const auto reader = OpenSafetensors(model);
  const std::string prefix = "model.layers.";
  std::vector<TensorInfo> tensors;
  std::vector<const TensorInfo*> sources;
  for (const TensorInfo& tensor : reader->tensors()) {
    const bool of_layer = tensor.name.starts_with(prefix);
    for (std::int64_t i = 0; i < (of_layer ? times : 1); ++i) {
      tensors.push_back(tensor);
      sources.push_back(&tensor);
      if (!of_layer) continue;
      const std::size_t dot = tensor.name.find('.', prefix.size());
      const std::int64_t l = std::stoll(tensor.name.substr(prefix.size(), dot - prefix.size()));
      tensors.back().name = prefix + std::to_string(i * layers + l) + tensor.name.substr(dot);
    }
  }
  const auto writer = CreateSafetensors(to / "model.safetensors", tensors, {});
  for (const TensorInfo* source : sources) writer->Write(reader->Bytes(*source));
  writer->Finish();
}

}  // namespace qlora

#endif  // QLORA_TESTS_MODEL_DEEPER_MODEL_H_
