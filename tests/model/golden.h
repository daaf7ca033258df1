// What PyTorch computed for the tiny models of tests/golden (tools/make_goldens.py).
#ifndef QLORA_TESTS_MODEL_GOLDEN_H_
#define QLORA_TESTS_MODEL_GOLDEN_H_

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "pass/random_decoder.h"
#include "test_build.h"

namespace qlora {

namespace fs = std::filesystem;

inline const fs::path kGoldenDir = SourceDir() / "tests" / "golden";

inline const std::vector<std::string> kGoldenModels = {
    "llama-tiny",      "llama3-tiny",  "mistral-tiny",  "qwen2-tiny",
    "qwen2-yarn-tiny", "qwen3-tiny",   "gemma2-tiny",   "gemma3-tiny",
    "phi3-tiny",       "smollm3-tiny", "qwen3moe-tiny", "mixtral-tiny"};

class Golden {
 public:
  explicit Golden(const std::string& model)
      : reader_(OpenSafetensors(kGoldenDir / model / "golden.safetensors")) {}

  std::vector<float> Floats(const std::string& name) const {
    const TensorInfo* tensor = reader_->Find(name);
    if (tensor == nullptr) throw std::runtime_error("no golden tensor " + name);
    std::vector<float> values(tensor->elements());
    std::memcpy(values.data(), reader_->Bytes(*tensor).data(), tensor->bytes());
    return values;
  }
  std::vector<std::int32_t> Ints(const std::string& name) const {
    const TensorInfo* tensor = reader_->Find(name);
    std::vector<std::int32_t> values(tensor->elements());
    std::memcpy(values.data(), reader_->Bytes(*tensor).data(), tensor->bytes());
    return values;
  }

 private:
  std::unique_ptr<TensorReader> reader_;
};

inline Batch BatchOf(const Golden& golden) {
  const std::vector<std::int32_t> ids = golden.Ints("input_ids");
  const std::vector<std::int32_t> labels = golden.Ints("labels");
  const std::vector<std::int32_t> begin = golden.Ints("cu_seqlens");
  std::vector<Sample> samples;
  for (std::size_t s = 0; s + 1 < begin.size(); ++s) {
    samples.push_back({{ids.begin() + begin[s], ids.begin() + begin[s + 1]},
                       {labels.begin() + begin[s], labels.begin() + begin[s + 1]}});
  }
  return MakeBatch(samples);
}

// |a - b| / |b| in the Euclidean norm.
inline double RelativeError(const float* found, const std::vector<float>& expected) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{found[i]} - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace qlora

#endif  // QLORA_TESTS_MODEL_GOLDEN_H_
