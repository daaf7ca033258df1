// LoRA adapters as directories of PEFT (github.com/huggingface/peft): adapter_config.json and
// adapter_model.safetensors with tensors
//   base_model.model.<module path>.lora_A.weight           [r, in]
//   base_model.model.<module path>.lora_B.weight           [out, r]
//   base_model.model.<module path>.lora_magnitude_vector   [out]     with use_dora
//   base_model.model.<embedding>.lora_embedding_A, _B      [r, V], [D, r]
//   base_model.model.<table>.token_adapter.trainable_tokens_delta   [n, D]   rows with new values
//   base_model.model.<experts>[.base_layer].lora_A.weight  [E r, in]     with target_parameters
//   base_model.model.<experts>[.base_layer].lora_B.weight  [out, E r]    (docs/adapters.md)
//   base_model.model.<module path>[.base_layer].bias       [out]        with bias "all"
// "base_model.model." may lack, as in transformers. Paths are read in every spelling that classes
// of transformers give them and returned as those of a text model: "model.layers...",
// "model.embed_tokens", "lm_head".
#ifndef QLORA_IO_PEFT_PEFT_H_
#define QLORA_IO_PEFT_PEFT_H_

#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "io/peft/peft_config.h"
#include "io/tensor_file.h"

namespace qlora {

// The file of the weights in the folder of an adapter.
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";
// PEFT refuses dropout beside target_parameters, so adapter_config.json states none there. The
// fraction that such an adapter was trained with has this key in the metadata of its weights.
inline constexpr const char* kPeftDropout = "lora_dropout";

// The paths of the tables.
inline constexpr const char* kEmbeddingPath = "model.embed_tokens";
inline constexpr const char* kHeadPath = "lm_head";

// The adapter of one linear. Shapes are checked against each other and against the rank that the
// configuration states; the tensors are F32, F16 or BF16.
struct AdapterModule {
  std::string path;                       // "model.layers.0.self_attn.q_proj"
  const TensorInfo* a = nullptr;          // [r, in]
  const TensorInfo* b = nullptr;          // [out, r]
  const TensorInfo* magnitude = nullptr;  // [out], or null
};

// The adapters of all experts of a layer, for one parameter of theirs.
struct ExpertStack {
  std::string experts;            // "model.layers.0.mlp.experts"
  std::string parameter;          // "gate_up_proj" or "down_proj"
  const TensorInfo* a = nullptr;  // [E r, in]: row e r + i
  const TensorInfo* b = nullptr;  // [out, E r]: column i E + e

  bool is_gate_up() const { return parameter == "gate_up_proj"; }
};

// Rows of a table that have new values.
struct TokenRows {
  std::string path;                  // "model.embed_tokens" or "lm_head"
  std::vector<std::int64_t> ids;     // n
  const TensorInfo* rows = nullptr;  // [n, D]
};

// A whole weight of the base that the adapter replaces (modules_to_save, resized embeddings).
struct ReplacedWeight {
  std::string name;  // in the base: "lm_head.weight"
  const TensorInfo* tensor = nullptr;
};

struct Adapter {
  AdapterConfig config;
  std::vector<std::string> unknown_keys;  // of adapter_config.json; worth a warning
  std::unique_ptr<TensorReader> tensors;  // owns the tensors that the pointers below point to
  std::vector<AdapterModule> modules;     // sorted by path
  std::vector<ReplacedWeight> replaced;   // sorted by name
  std::vector<ExpertStack> stacks;
  std::vector<TokenRows> token_rows;
  // Of encoders of images and sound, which this program does not run: not read.
  std::vector<std::string> left_out;
  // Of layers that attend to the keys and values of others, and have no such linear: not read.
  std::vector<std::string> unused = {};
};

// True for "model.embed_tokens" and "lm_head", whose changes are folded into the weights on
// loading.
bool IsTable(std::string_view path);
// Errors: InvalidInput when the adapter changes a table or experts in a way that is only read, not
// trained, with what to do. trains_stacks: experts in one tensor are trained.
void CheckTrainable(const Adapter& adapter, const std::filesystem::path& directory,
                    bool trains_stacks = false);

// Errors: InvalidInput for files that OpenSafetensors or ParseAdapterConfig refuse, for pickled
// adapters (adapter_model.bin), for a tensor that PEFT would silently ignore, and for half of a
// pair. The caller, who knows the base, checks that the modules exist in the base and that all
// target modules have an adapter.
Adapter OpenAdapter(const std::filesystem::path& directory);

// The tensors that WriteAdapter stores for one linear; float32, bfloat16 or float16 views.
struct AdapterWeights {
  std::string path;
  ConstMatrixView a;          // (r, in)
  ConstMatrixView b;          // (out, r)
  ConstMatrixView magnitude;  // (1, out) with use_dora, otherwise empty
  // Not empty: a is (E r, in) and b (out, E r), of all experts of the layer of `path`, which is a
  // linear of one of them; and this is the path of PEFT's wrapper.
  std::string wrapper = {};
  std::int64_t experts = 1;  // E
};

// A whole weight to store in place of the base's.
struct ReplacedMatrix {
  std::string name;  // in the base: "lm_head.weight"
  ConstMatrixView weight;
};

// Writes both files into `directory` (made when missing), converted to `dtype` (kF32, kF16, kBF16).
// The views are in `memory`.
// A crash at any time leaves the old pair, no loadable adapter, or the new pair. Errors:
// InvalidInput when configuration and weights do not belong together; Runtime when a value cannot
// be stored (NaN) or the disk is full.
void WriteAdapter(const std::filesystem::path& directory, const AdapterConfig& config,
                  std::span<const AdapterWeights> weights, DType dtype,
                  std::span<const ReplacedMatrix> replaced = {}, Memory& memory = HostMemory());

// Puts an adapter into place whose weights `writer` has received: a crash at any time leaves the
// old pair of files, no loadable adapter, or the new pair. text: of adapter_config.json.
void CommitAdapter(TensorWriter& writer, const std::filesystem::path& directory,
                   const std::string& text);

}  // namespace qlora

#endif  // QLORA_IO_PEFT_PEFT_H_
