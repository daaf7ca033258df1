// The trained part: LoRA matrices of the linears of a decoder (Hu et al., arXiv:2106.09685).
#ifndef QLORA_MODEL_LORA_H_
#define QLORA_MODEL_LORA_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "io/peft.h"
#include "model/config.h"
#include "model/weights.h"

namespace qlora {

// The adapter of one linear; rank 0: none. The update is scale * B A.
struct LoraLinear {
  std::string path;  // module path of the linear
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t rank = 0;
  float scale = 1;  // alpha / r, or alpha / sqrt(r)
  float dropout = 0;
  MatrixView a;   // (R, I) wide
  MatrixView b;   // (O, R) wide
  MatrixView da;  // (R, I) gradient of a; empty until AllocateGradients
  MatrixView db;  // (O, R)
};

// The adapters of a whole decoder. All matrices of one kind lie in one arena, so that zeroing, the
// norm, the optimizer, an all-reduce and a checkpoint are one call over one range.
class LoraAdapter {
 public:
  // Places an adapter on every linear that `config` targets: A Kaiming-uniform in +-1/sqrt(I) from
  // the seed, B zero. Errors: InvalidInput when nothing matches.
  static LoraAdapter Create(const AdapterConfig& config, const DecoderConfig& decoder,
                            std::uint64_t seed, DType wide = DType::kF32);
  // Reads a PEFT directory. Errors: InvalidInput when it does not belong to this decoder: a target
  // without tensors, a tensor without target, a shape that differs.
  static LoraAdapter Load(const std::filesystem::path& dir, const DecoderConfig& decoder,
                          DType wide = DType::kF32);
  // Replaces all values by those of a PEFT directory of the same configuration. Errors: as Load.
  void Read(const std::filesystem::path& dir);
  // Writes adapter_config.json and adapter_model.safetensors, float32 unless said.
  void Save(const std::filesystem::path& dir, DType dtype = DType::kF32) const;

  void AllocateGradients();
  void ZeroGradients();

  const AdapterConfig& config() const { return config_; }
  AdapterConfig& config() { return config_; }
  std::vector<PerLinear<LoraLinear>>& layers() { return layers_; }
  const std::vector<PerLinear<LoraLinear>>& layers() const { return layers_; }

  // All parameters (or gradients) as one (1, n) range; padding between matrices is zero.
  MatrixView parameters() const;
  MatrixView gradients() const;
  std::int64_t trainable() const;       // number of trained values, padding left out
  std::int64_t max_group_rank() const;  // largest sum of ranks over linears that share an input

 private:
  LoraAdapter(const AdapterConfig& config, const DecoderConfig& decoder, DType wide);
  void Read(const std::filesystem::path& dir, const Adapter& peft);
  // Carves one arena into the matrices a and b of every linear.
  Arena Allocate(MatrixView LoraLinear::*a, MatrixView LoraLinear::*b);

  AdapterConfig config_;
  DType wide_ = DType::kF32;
  std::vector<PerLinear<LoraLinear>> layers_;
  Arena parameters_;
  Arena gradients_;
};

}  // namespace qlora

#endif  // QLORA_MODEL_LORA_H_
