// llama.cpp's names of architectures and tensors, beside those of Hugging Face. The export to GGUF
// and the reading of GGUF share this table; what llama.cpp computes otherwise is in
// gguf_config.h, for files that are read, and convert/gguf_limits.h, for files that are written.
#ifndef QLORA_MODEL_GGUF_NAMES_H_
#define QLORA_MODEL_GGUF_NAMES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/linear_shapes.h"

namespace qlora {

struct GgufArchitecture {
  std::string_view model_type;  // of Hugging Face
  std::string_view name;        // of llama.cpp: the value of general.architecture
  // Neighbouring dims of a head rotate together, not dims i and i + K/2 as in the checkpoint. Which
  // of the two pairings llama.cpp uses is part of its architecture.
  bool interleaved_rotary;
  // One linear of the checkpoint holds gate and up, and the file has two tensors.
  bool splits_gate_up = false;
  std::string_view mlp_norm = "ffn_norm";
  std::string_view final_norm = "output_norm";
  // Its graph has no head size of its own: embedding_length / head_count.
  bool derived_heads = false;
};

// Model types of one architecture stand with the one that files without further keys are, first.
std::span<const GgufArchitecture> GgufArchitectures();
// Return nullptr when there is none.
const GgufArchitecture* FindGgufArchitecture(std::string_view model_type);
const GgufArchitecture* FindGgufArchitectureNamed(std::string_view name);

// Returns the tensor names of the linears of layer l, without ".weight". The experts of a mixture
// are stacked: gate_up then holds two names and down one, of tensors (E, O, I). Two names for one
// linear (splits_gate_up; attn_qkv and attn_gate of fused_delta) are of parts of its rows. The last
// of shared_in has one row.
PerLinear<std::string> GgufLinearNames(std::int64_t layer, const DecoderConfig& config);

// A norm of a layer: "attn_norm" and "input_layernorm", without ".weight".
struct GgufNorm {
  std::string gguf;
  std::string_view hugging_face;
  std::int64_t size = 0;
};
// Name of the norm before the MLP: "ffn_norm", or what the architecture has instead.
std::string GgufMlpNorm(const DecoderConfig& config);
// The norms that layer l has.
std::vector<GgufNorm> GgufNorms(std::int64_t layer, const DecoderConfig& config);

// Where the rows of q_proj and k_proj change places (interleaved_rotary), and where a linear is two
// tensors (splits_gate_up): the row of Hugging Face that is row i of the file. Empty for linears
// whose rows stay. In the places of GgufLinearNames.
PerLinear<std::vector<std::int64_t>> GgufRowOrder(std::int64_t layer, const DecoderConfig& config);

// How the rows of a linear are written.
struct LinearRows {
  std::vector<std::int64_t> order;    // GgufRowOrder: the source row of each output row
  std::vector<std::int64_t> columns;  // the source column of each output column, or empty
  // The factor of the rows: llama.cpp ignores query_pre_attn_scalar of Gemma 2 (GgufScoreFactor);
  // the difference goes into q_proj. In Gemma 3 it goes into the norm of the queries.
  float factor = 1;
};

// llama.cpp repeats key heads of the gated delta rule as a whole where Hugging Face repeats each:
// the value head of the checkpoint that is value head i of the file. Empty where none moves.
//   Hugging Face  key head g has the value heads g r ... g r + r - 1
//   llama.cpp     value head j has the key head j mod G
std::vector<std::int64_t> GgufValueHeads(const DecoderConfig& config);
// The rows of all value heads, `size` for each of `heads`, behind `before` rows that stay.
std::vector<std::int64_t> RowsOfHeads(const std::vector<std::int64_t>& heads, std::int64_t size,
                                      std::int64_t before = 0);
// The order of the linears of layer l that GgufValueHeads gives; all empty where no head moves.
PerLinear<LinearRows> ValueHeadOrder(std::int64_t layer, const DecoderConfig& config,
                                     const std::vector<std::int64_t>& heads);

// The factor between the scores that config.json asks for and those of llama.cpp, which has no key
// for their scale: 1/sqrt(head_dim), or for Gemma 2 of 46 layers and Gemma 3 of 62 (both 27B)
// 1/sqrt(hidden_size / heads), rounded down.
float GgufScoreFactor(const DecoderConfig& config);

// Returns the linears of a group (PerLinear::gate_up, down ...) that are stored in tensor number
// `place` of `places`: one, or all experts'.
template <typename T>
std::vector<const T*> StackOf(std::span<const T> group, std::size_t place, std::size_t places) {
  std::vector<const T*> stack;
  // One linear that is several tensors (GgufLinearNames) is in each of them: the first one of a
  // group of fewer linears than tensors.
  const std::size_t more = group.size() < places ? places - group.size() : 0;
  const std::size_t first = place < more ? 0 : place - more;
  for (std::size_t i = first; i < group.size(); i += places) stack.push_back(&group[i]);
  return stack;
}

// llama.cpp adds the adapter of ffn_down_exps behind the number of each expert that a Gemma 4
// multiplies its output with, so that B in an adapter GGUF has that number in it. The numbers of
// all experts, layer after layer, under a key that llama.cpp does not know, lead back.
inline constexpr const char* kGgufExpertScales = "qlora.expert_scales";

// What divides the frequency of a pair of dims that does not turn (Gemma 4's rope_freqs).
inline constexpr float kGgufStays = 1e30F;

PerLinear<LinearRows> GgufLinearRows(std::int64_t layer, const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_GGUF_NAMES_H_
