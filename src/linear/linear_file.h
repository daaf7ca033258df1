// A QLoRA layer as a safetensors file.
#ifndef QLORA_LINEAR_LINEAR_FILE_H_
#define QLORA_LINEAR_LINEAR_FILE_H_

#include <filesystem>
#include <memory>
#include <span>

#include "io/tensor_file.h"
#include "qlora/linear.h"

namespace qlora {

// The parts of a layer. The views of a loaded one point into the file, which `reader` keeps.
struct LinearParts {
  compat::Matrix weight;  // (O, I)
  QLoraConfig config;
  std::span<const float> bias;  // (O) or empty
  ConstMatrixView a;            // (R, I) float32
  ConstMatrixView b;            // (O, R) float32
  std::shared_ptr<const TensorReader> reader;
};

// Tensors: weight and its pieces (io/bnb.h), bias, lora_A.weight, lora_B.weight; the configuration
// is the metadata text "qlora_config". Errors: as QLoraLinear::Save and Load.
void SaveLinear(const std::filesystem::path& file, const LinearParts& parts);
LinearParts LoadLinear(const std::filesystem::path& file);

}  // namespace qlora

#endif  // QLORA_LINEAR_LINEAR_FILE_H_
