// The frozen weights of a decoder.
#ifndef QLORA_MODEL_WEIGHTS_H_
#define QLORA_MODEL_WEIGHTS_H_

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "io/formats.h"
#include "model/config.h"
#include "qlora/context.h"
#include "qlora/nf4.h"
#include "qlora/quantization.h"

namespace qlora {

// One T for each linear of a layer: weights, adapters and gradients share this shape. qkv and
// gate_up hold one entry where the family fuses them (Phi-3), else three and two. With E experts,
// gate_up holds gate and up of expert 0, of expert 1 ... (2E), and down E entries, else one.
template <typename T>
struct PerLinear {
  std::vector<T> qkv;
  T o{};
  std::vector<T> gate_up;
  std::vector<T> down;

  // visit(T&) for every linear, in the order of the forward pass.
  template <typename Self, typename Visit>
  static void ForEachOf(Self& self, Visit&& visit) {
    for (auto& linear : self.qkv) visit(linear);
    visit(self.o);
    for (auto& linear : self.gate_up) visit(linear);
    for (auto& linear : self.down) visit(linear);
  }
  template <typename Visit>
  void ForEach(Visit&& visit) {
    ForEachOf(*this, visit);
  }
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    ForEachOf(*this, visit);
  }
};

// fn(a, b) for every linear of a layer.
template <typename A, typename B, typename Fn>
auto Combine(A&& a, B&& b, Fn&& fn) {
  PerLinear<decltype(fn(a.o, b.o))> out;
  for (std::size_t i = 0; i < a.qkv.size(); ++i) out.qkv.push_back(fn(a.qkv[i], b.qkv[i]));
  out.o = fn(a.o, b.o);
  for (std::size_t i = 0; i < a.gate_up.size(); ++i) {
    out.gate_up.push_back(fn(a.gate_up[i], b.gate_up[i]));
  }
  for (std::size_t i = 0; i < a.down.size(); ++i) out.down.push_back(fn(a.down[i], b.down[i]));
  return out;
}

// The linears of a layer that read the same input.
enum class LinearGroup : std::uint8_t { kQkv, kO, kGateUp, kDown };

template <typename T>
std::span<const T> GroupOf(const PerLinear<T>& linears, LinearGroup group) {
  switch (group) {
    case LinearGroup::kQkv:
      return linears.qkv;
    case LinearGroup::kO:
      return {&linears.o, 1};
    case LinearGroup::kGateUp:
      return linears.gate_up;
    case LinearGroup::kDown:
      break;
  }
  return linears.down;
}

struct FrozenLinear {
  std::string path;      // module path in the checkpoint: "model.layers.0.self_attn.q_proj"
  WeightView weight;     // (O, I)
  ConstMatrixView bias;  // (1, O) wide, or empty
};

struct LayerWeights {
  PerLinear<FrozenLinear> linears;
  ConstMatrixView input_norm;  // (1, D) wide, as are all norms; 1 is added already where stored so
  ConstMatrixView post_attn_norm;  // (1, D) on the attention output; empty without post norms
  ConstMatrixView mlp_norm;        // (1, D)
  ConstMatrixView post_mlp_norm;   // (1, D) on the MLP output; empty without post norms
  ConstMatrixView q_norm;          // (1, K) or empty
  ConstMatrixView k_norm;          // (1, K) or empty
  ConstMatrixView router;          // (E, D) as in the file; empty without experts
};

// Bytes that LoadWeights takes, from the headers alone.
struct WeightSizes {
  std::size_t owned = 0;   // allocated: what is quantized on load or copied, norms, biases
  std::size_t mapped = 0;  // used in place in the file: embeddings; without WeightUse::kGeneration
                           // also the head, stored 4-bit weights ...
  // The token embedding where LoadOptions::host_embedding decides on its place, else 0: a part of
  // `owned`, or of host memory alone.
  std::size_t embedding = 0;
  std::optional<QuantizationFields> stored_4bit = {};  // of a checkpoint that is 4-bit itself
  std::int64_t parameters = 0;                         // of the model, norms and biases included
};

struct DecoderWeights {
  ConstMatrixView embed;        // (V, D) float32, float16 or bfloat16, as in the file
  bool host_embedding = false;  // `embed` is in host memory, and everything else is not
  ConstMatrixView head;         // (V, D); the same matrix as embed when tied
  ConstMatrixView final_norm;   // (1, D) wide
  std::vector<LayerWeights> layers;

  WeightSizes sizes;
  // The owners of the bytes that the views point into.
  std::unique_ptr<TensorReader> reader;
  Arena arena;
  std::vector<std::shared_ptr<const void>> owners;
};

struct LoadOptions {
  bool load_in_4bit = true;  // quantize the linears of the blocks, unless they are stored so
  QuantizeOptions quantize;
  DType wide = DType::kF32;  // element type of norms and biases
  // Leaves the token embedding in the file, from which each pass uploads the rows that it reads.
  // No effect where the backend computes in host memory, where the output head is tied to the
  // embedding, or for elements of more than 16 bits.
  bool host_embedding = false;
  // kGeneration: copies what passes read as a whole, not row by row. Copies of what the file holds
  // take the place of its pages; those of what is quantized on load come on top.
  WeightUse use = WeightUse::kTraining;
  // Called after each tensor with the number read so far and in all.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

// The sizes that LoadWeights will report.
WeightSizes PlanWeights(Context& context, Backend& backend, const std::filesystem::path& model_dir,
                        const DecoderConfig& config, const LoadOptions& options);

// The sizes for a checkpoint of this shape in bfloat16, of which no file is at hand.
WeightSizes PlanWeights(Context& context, Backend& backend, const DecoderConfig& config,
                        const LoadOptions& options);

// Streams a Hugging Face directory: one dense tensor at a time is in memory beyond what is kept.
// A checkpoint that is already 4-bit (bitsandbytes) is used as it is, with the linears that it
// leaves dense. Errors: InvalidInput naming file and tensor: missing, of the wrong shape or dtype,
// NaN or Inf. backend: runs the weights and must outlive them.
DecoderWeights LoadWeights(Context& context, Backend& backend,
                           const std::filesystem::path& model_dir, const DecoderConfig& config,
                           const LoadOptions& options);

// Names of the linears inside a layer: "self_attn.q_proj".
PerLinear<std::string> LinearNames(const DecoderConfig& config);
// Module path of every linear of a layer as PEFT sees it: "model.layers.0.self_attn.q_proj".
PerLinear<std::string> LinearPaths(const DecoderConfig& config, std::int64_t layer);

// Name of the router inside a layer: "mlp.gate".
std::string RouterName(const DecoderConfig& config);

struct LinearShape {
  std::int64_t out = 0;
  std::int64_t in = 0;
};
PerLinear<LinearShape> ShapeLinears(const DecoderConfig& config);
// The most inputs and outputs of one linear, and outputs of the linears together that share an
// input.
std::int64_t WidestInput(const DecoderConfig& config);
std::int64_t WidestLinear(const DecoderConfig& config);
std::int64_t WidestGroup(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_WEIGHTS_H_
