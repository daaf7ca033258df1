// Small GGUF models of chosen keys and tensors, for tests.
#ifndef QLORA_TESTS_MODEL_GGUF_FILE_H_
#define QLORA_TESTS_MODEL_GGUF_FILE_H_

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf_writer.h"
#include "io/test_util.h"

namespace qlora {

// A file in a folder of its own, of keys and tensors that a test changes one by one.
class GgufFile {
 public:
  // A tensor of float32, or the bytes of blocks.
  void Tensor(const std::string& name, std::vector<std::int64_t> shape,
              const std::vector<float>& values) {
    Tensor(name, DType::kF32, std::move(shape), AsString(BytesOfVector(values)));
  }
  void Tensor(const std::string& name, TensorType type, std::vector<std::int64_t> shape,
              std::string bytes) {
    tensors_[name] = {{name, type, std::move(shape)}, std::move(bytes)};
  }
  void Set(const std::string& key, GgufValue value) { keys_[key] = std::move(value); }
  void Remove(const std::string& name) {
    keys_.erase(name);
    tensors_.erase(name);
  }

  // Writes the file and returns its path.
  std::filesystem::path Write() const {
    GgufMetadata metadata;
    for (const auto& [key, value] : keys_) metadata.Add(key, value);
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : tensors_) infos.push_back(tensor.first);
    const std::filesystem::path path = folder_ / "model.gguf";
    const auto writer = CreateGguf(path, metadata, infos);
    for (const auto& [name, tensor] : tensors_) writer->Write(BytesOfVector(tensor.second));
    writer->Finish();
    return path;
  }

 private:
  TemporaryFolder folder_;
  std::map<std::string, GgufValue> keys_;
  std::map<std::string, std::pair<TensorInfo, std::string>> tensors_;
};

// A model with the keys that llama.cpp needs, and an embedding of 10 rows of 16; 2 blocks of 4
// heads.
class GgufModel : public GgufFile {
 public:
  explicit GgufModel(std::string architecture) : architecture_(std::move(architecture)) {
    Set("general.architecture", architecture_);
    Key("block_count", std::uint32_t{2});
    Key("context_length", std::uint32_t{128});
    Key("embedding_length", std::uint32_t{16});
    Key("feed_forward_length", std::uint32_t{24});
    Key("attention.head_count", std::uint32_t{4});
    Key("attention.layer_norm_rms_epsilon", 1e-5f);
    Tensor("token_embd.weight", {10, 16}, std::vector<float>(160, 1));
  }

  // Of the architecture: "block_count".
  void Key(const std::string& name, GgufValue value) {
    Set(architecture_ + "." + name, std::move(value));
  }
  void RemoveKey(const std::string& name) { Remove(architecture_ + "." + name); }

 private:
  std::string architecture_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_MODEL_GGUF_FILE_H_
