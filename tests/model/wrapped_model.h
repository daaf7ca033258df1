// Models that also see, made of the tiny models of tests/golden.
#ifndef QLORA_TESTS_MODEL_WRAPPED_MODEL_H_
#define QLORA_TESTS_MODEL_WRAPPED_MODEL_H_

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "test_build.h"

namespace qlora {

struct WrapperCase {
  const char* wrapper;  // model_type
  const char* text;     // model_type of text_config
  const char* golden;   // the model of tests/golden
};

inline const WrapperCase kWrapperCases[] = {{"mistral3", "mistral", "mistral-tiny"},
                                            {"mistral3", "ministral3", "mistral-tiny"},
                                            {"gemma3", "gemma3_text", "gemma3-tiny"},
                                            {"qwen2_5_vl", "qwen2_5_vl_text", "qwen2-tiny"},
                                            {"qwen3_vl", "qwen3_vl_text", "qwen3-tiny"}};

// How files name the decoder, the head and the image encoder.
struct Spelling {
  const char* decoder;
  const char* head;
  const char* encoder;
};

inline const Spelling kSpellings[] = {
    {"model.language_model.", "lm_head.", "model.vision_tower."},
    {"language_model.model.", "language_model.lm_head.", "vision_tower."},
    {"model.", "lm_head.", "visual."}};

inline std::string Renamed(const std::string& name, const std::string& from,
                           const std::string& to) {
  return name.starts_with(from) ? to + name.substr(from.size()) : name;
}

// Tensors of an image encoder. Its layers have linears of the same names as the decoder's, and not
// all of its tensors have dimensions.
inline std::vector<TensorInfo> EncoderTensors(const std::string& prefix) {
  return {{prefix + "layers.0.self_attn.q_proj.weight", DType::kBF16, {64, 64}},
          {prefix + "layers.0.norm.weight", DType::kF32, {3}},
          {prefix + "input_min", DType::kF32, {}},
          {prefix + "position_ids", DType::kI64, {1, 2}}};
}

// Writes the checkpoint to `folder` and returns it.
inline std::filesystem::path WriteWrapped(const WrapperCase& of, const Spelling& spelling,
                                          const std::filesystem::path& folder) {
  const std::filesystem::path source = SourceDir() / "tests" / "golden" / of.golden;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(source / name, folder / name);
  }
  Json text = ReadJsonFile(source / "config.json");
  text.erase("architectures");
  text["model_type"] = of.text;
  text["head_dim"] = text.value("head_dim", 8);
  if (std::string(of.text) == "ministral3") {
    text["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", text["rope_theta"]}};
  }
  if (std::string(of.wrapper).starts_with("qwen")) {
    // Which part of a head rotates by time, height and width: the same positions for text.
    const int part = text["head_dim"].get<int>() / 8;
    text["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2 * part, part, part}}};
  }
  const Json config = {{"model_type", of.wrapper},
                       {"dtype", "bfloat16"},
                       {"text_config", text},
                       {"vision_config", {{"hidden_size", 64}}}};
  WriteTextFile(folder / "config.json", config.dump());

  const auto reader = OpenSafetensors(source);
  std::vector<TensorInfo> infos;
  for (TensorInfo info : reader->tensors()) {
    info.name = Renamed(Renamed(info.name, "model.", spelling.decoder), "lm_head.", spelling.head);
    infos.push_back(info);
  }
  for (const TensorInfo& info : EncoderTensors(spelling.encoder)) infos.push_back(info);
  const auto writer = CreateSafetensors(folder / "model.safetensors", infos, {});
  for (const TensorInfo& info : reader->tensors()) writer->Write(reader->Bytes(info));
  for (const TensorInfo& info : EncoderTensors("")) {
    std::vector<std::byte> bytes(info.bytes());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 50);
    writer->Write(bytes);
  }
  writer->Finish();
  return folder;
}

}  // namespace qlora

#endif  // QLORA_TESTS_MODEL_WRAPPED_MODEL_H_
