#include "convert/gguf_base.h"

#include "base/check.h"
#include "base/file.h"
#include "convert/config_json.h"
#include "convert/verify.h"
#include "gguf/gguf.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "model/checkpoint.h"
#include "model/gguf_rows.h"
#include "model/tensor_list.h"
#include "tokenizer/gguf/gguf_tokenizer_json.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

void CheckFitsGguf(const std::filesystem::path& file, const DecoderConfig& config,
                   const LoraAdapter& adapter) {
  const std::unique_ptr<GgufReader> reader = OpenGguf(file);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ForEachGgufLinear(config, l, [&](const LayerTensor& row, const std::string& tensor) {
      for (const LoraLinear* lora : StackOf(adapter.layers()[l], row)) {
        if (lora->rank == 0 || reader->Find(tensor) != nullptr) continue;
        ThrowInvalidInput(
            "{}: has no tensor '{}', to which an adapter GGUF would add the adapter of '{}': it "
            "holds these weights in another cut; merge the adapter into the model (--format gguf)",
            file.string(), tensor, lora->path);
      }
    });
  }
}

Json CheckpointConfig(const std::filesystem::path& model) {
  const auto gguf = FindGguf(model);
  if (!gguf) return ReadJsonFile(model / "config.json");
  Json config = ConfigJsonOf(*OpenGguf(*gguf));
  // A tokenizer that cannot be used is found before anything is written.
  Tokenizer::Load(*gguf);
  config.update(TokenIdsOf(ReadGgufVocabulary(*gguf).roles));
  return config;
}

DecoderConfig LoadForCheckpoint(const std::filesystem::path& model) {
  DecoderConfig config = LoadDecoderConfig(model);
  config.delta_rule.tiled = false;
  return config;
}

std::string WriteTokenizerOf(const std::filesystem::path& file,
                             const std::filesystem::path& folder) {
  const Tokenizer stored = Tokenizer::Load(file);
  for (const auto& [name, text] : TokenizerFilesOf(ReadGgufVocabulary(file))) {
    WriteTextFile(folder / name, text);
  }
  const Tokenizer written = Tokenizer::Load(folder);
  if (stored.Encode(BuiltInText()) == written.Encode(BuiltInText())) return "";
  return fmt::format(
      "the tokenizer of {} cannot be written as tokenizer.json in all: some texts have other ids "
      "than with the file; take the tokenizer's files of the checkpoint that it was made from",
      file.string());
}

}  // namespace qlora
