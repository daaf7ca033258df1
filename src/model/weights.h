// The frozen weights of a decoder, read from a checkpoint.
//
// LoadWeights walks the linears, norms and tables of all layers in the order of the forward pass,
// one tensor at a time, so that memory holds one dense tensor beyond the weights that are kept:
//
//   tensor of the file -> stored 4-bit blocks (io/bnb.h), as they are
//                      -> stored blocks of ggml (ggml/block_format.h), as they are
//                      -> dense values -> Backend::Quantize -> NF4 blocks
//                      -> dense values, as they are (load_in_4bit false, embedding, head)
//   -> Backend::Adopt: the mapped file in place, or a copy; a prepacked copy to generate
//   -> WeightView, which linears read
//
// checkpoint_tensors.h finds the tensors, weight_placement.h has the places of their parts.
//
// The same walk without reading (PlanWeights) gives the sizes. A plan carves memory with the code
// that later fills it (base/arena.h), so that both agree. Training and evaluation use stored 4-bit
// weights in place. To generate, weights are copied into large pages, and 4-bit weights are
// prepacked for the backend (WeightUse::kGeneration).
//
// The table of per-layer embeddings (Gemma 4), which is larger than all other weights, is read row
// by row and is no part of the sizes where it stays in the file.
//
// config.h reads config.json; a family of models is one row of family_table.cc. lora.h has the
// adapters, base_record.h records the form of the base that an adapter was trained on.
#ifndef QLORA_MODEL_WEIGHTS_H_
#define QLORA_MODEL_WEIGHTS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "config/config.h"
#include "io/tensor_file.h"
#include "model/linear_shapes.h"
#include "model/replaced_tensors.h"
#include "qlora/context.h"
#include "qlora/nf4.h"
#include "qlora/quantization.h"

namespace qlora {

struct FrozenLinear {
  std::string path;      // module path in the checkpoint: "model.layers.0.self_attn.q_proj"
  WeightView weight;     // (O, I)
  ConstMatrixView bias;  // (1, O) wide, or empty
};

// What a layer with a short convolution has beside its linears; wide.
struct ConvWeights {
  ConstMatrixView weight;  // (C, K)
  ConstMatrixView bias;    // (1, C) or empty
};

// What a gated delta rule has beside its linears and its convolution; wide.
struct DeltaRuleWeights {
  ConstMatrixView rate;     // (1, H): -exp(A_log)
  ConstMatrixView dt_bias;  // (1, H)
  ConstMatrixView norm;     // (1, V): of each head, as stored
};

// What experts beside the MLP have beside their linears; wide.
struct SideWeights {
  ConstMatrixView router_norm;   // (1, D): router.scale times D^-1/2
  ConstMatrixView expert_scale;  // (E, 1): router.per_expert_scale
  ConstMatrixView dense_norm;    // (1, D) on the MLP's output
  ConstMatrixView norm;          // (1, D) before the experts
  ConstMatrixView sum_norm;      // (1, D) on the experts' output
};

struct LayerWeights {
  // False for a layer of another stage of a pipeline, of which everything is empty.
  bool is_here() const { return !linears.qkv.empty(); }

  PerLinear<FrozenLinear> linears;
  // Norms are wide. 1 is added to norms that are stored as w - 1.
  ConstMatrixView input_norm;      // (1, D); empty without input norms
  ConstMatrixView post_attn_norm;  // (1, D) on the attention output; empty without post norms
  ConstMatrixView mlp_norm;        // (1, D); empty without input norms
  ConstMatrixView post_mlp_norm;   // (1, D) on the MLP output; empty without post norms
  ConstMatrixView q_norm;          // (1, K), (1, H*K) of all heads together, or empty
  ConstMatrixView k_norm;          // (1, K), (1, G*K), or empty
  ConstMatrixView v_norm;          // (1, K) of ones, or empty
  ConstMatrixView per_layer_norm;  // (1, D) on what the per-layer embedding adds, or empty
  ConstMatrixView scale;           // (1, D): layer_scalar in each, or empty
  ConvWeights conv;                // empty but for the mixers that have it
  DeltaRuleWeights delta_rule;     // likewise
  WeightView router;               // (E, D) as in the file; empty without experts
  SideWeights side;                // empty without experts beside the MLP
  ConstMatrixView expert_bias;     // (1, E) of the choice of experts, or empty
  ConstMatrixView router_bias;     // (1, E) wide, or empty
  ConstMatrixView sinks;           // (1, H) wide, or empty
};

// The share of the parameters that is quantized, which compute_dtype int8 multiplies in 8 bits.
struct QuantizedShares {
  std::array<double, kLinearGroups.size()> linears = {};  // of each group, in all layers
  double head = 0;

  double Of(LinearGroup group) const {
    const auto at = static_cast<std::int64_t>(group);
    return linears[at];
  }
  bool any() const {
    return head > 0 || std::ranges::any_of(linears, [](double share) { return share > 0; });
  }
};

// Bytes that LoadWeights takes, from the headers alone.
struct WeightSizes {
  // The table of per-layer embeddings is in neither: rows of it are read, and the system may drop
  // its pages.
  std::size_t owned = 0;   // allocated: weights that are quantized on load or copied, norms, biases
  std::size_t mapped = 0;  // used in place in the file: embeddings; without WeightUse::kGeneration
                           // also the head, stored 4-bit weights ...
  std::optional<QuantizationFields> stored_4bit = {};  // of a checkpoint that is 4-bit itself
  std::int64_t parameters = 0;                         // of the model, norms and biases included
  // Of a checkpoint whose linears are in ggml's blocks: their formats, by name ("Q4_K"), sorted.
  std::vector<std::string> block_formats = {};
  // Remarks for the user: tensors that are not used, a head that the file has and config.json
  // denies.
  std::vector<std::string> notes = {};
  QuantizedShares quantized = {};
};

// Of a stage of a pipeline: embed is empty without the first layer, unless the head is tied to it;
// head and its norms are empty without the last layer.
struct DecoderWeights {
  WeightView embed;            // (V, D) as in the file
  WeightView head;             // (V, D); the same matrix as embed when tied
  ConstMatrixView final_norm;  // (1, D) wide
  ConstMatrixView head_norm;   // (1, D) wide: final_norm times logit_scale, as passes read it
  // Of per-layer embeddings; empty without.
  WeightView per_layer_embed;        // (V', L*P) as in the file
  ConstMatrixView per_layer_norm;    // (1, P) wide
  ConstMatrixView per_layer_half;    // (1, P) wide: per_layer_norm times 2^-1/2, as passes read it
  std::vector<LayerWeights> layers;  // L; empty outside of the stage

  bool is_tied() const { return HaveOnePlace(embed, head); }

  WeightSizes sizes;
  // The owners of the bytes that the views point into.
  std::unique_ptr<TensorReader> reader;
  Arena arena;
  std::vector<std::shared_ptr<const void>> owners;
};

struct LoadOptions {
  bool load_in_4bit = true;  // quantize the linears of the blocks, unless stored in 4 bits
  QuantizeOptions quantize;
  DType wide = DType::kF32;  // element type of norms and biases
  // kGeneration: copies the weights that passes read as a whole, not row by row. Copies of stored
  // weights take the place of their pages; copies of weights quantized on load come on top.
  WeightUse use = WeightUse::kTraining;
  // Of the adapter; null: none.
  std::shared_ptr<const ReplacedTensors> replaced = {};
  // Called after each tensor with the number read so far and in all.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

QuantizedShares QuantizedSharesOf(const DecoderWeights& weights);

// The sizes that LoadWeights will report.
WeightSizes PlanWeights(Context& context, Backend& backend, const std::filesystem::path& model_dir,
                        const DecoderConfig& config, const LoadOptions& options);

// The sizes for a checkpoint of this shape in bfloat16, without its files; experts of gpt-oss in
// MXFP4.
WeightSizes PlanWeights(Context& context, Backend& backend, const DecoderConfig& config,
                        const LoadOptions& options);

// Streams a Hugging Face directory: one dense tensor at a time is in memory beyond the weights that
// are kept. A checkpoint that is already 4-bit (bitsandbytes) is used as it is, with the linears
// that it leaves dense. Errors: InvalidInput naming file and tensor: missing, of the wrong shape or
// dtype, NaN or Inf. backend: runs the weights and must outlive them.
DecoderWeights LoadWeights(Context& context, Backend& backend,
                           const std::filesystem::path& model_dir, const DecoderConfig& config,
                           const LoadOptions& options);

}  // namespace qlora

#endif  // QLORA_MODEL_WEIGHTS_H_
