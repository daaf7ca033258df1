// What a GGUF file says about where it came from, for the adapters that are trained on it.
#ifndef QLORA_MODEL_GGUF_SOURCE_H_
#define QLORA_MODEL_GGUF_SOURCE_H_

#include <filesystem>
#include <string>

namespace qlora {

class GgufReader;

struct GgufSource {
  std::string name;  // general.name; "" without
  std::string
      repository;  // org/name of the checkpoint on Hugging Face's hub; "" where none is named
};

GgufSource GgufSourceOf(const GgufReader& file);

// What an adapter GGUF names as the base that it was trained on.
GgufSource AdapterBaseOf(const GgufReader& file);
GgufSource AdapterBaseOf(const std::filesystem::path& file);

// How an adapter names the base that it was trained on: by the checkpoint that a GGUF file names as
// its own, which other programs can load, otherwise as the model was given.
std::string BaseNameOf(const std::string& model_name_or_path);

}  // namespace qlora

#endif  // QLORA_MODEL_GGUF_SOURCE_H_
