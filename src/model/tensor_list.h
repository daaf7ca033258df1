// The tensors of a decoder, told once: what each is to the layers, its names in checkpoints of
// Hugging Face and in GGUF files, its shape, and how its values differ between both. The loader,
// readers and writers of both formats, and adapters walk these lists.
#ifndef QLORA_MODEL_TENSOR_LIST_H_
#define QLORA_MODEL_TENSOR_LIST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/gguf_names.h"
#include "model/linear_shapes.h"
#include "model/weights.h"

namespace qlora {

enum class TensorKind : std::uint8_t {
  kLinear,  // (O, I), a place in PerLinear; may have a bias
  kTable,   // (rows, D) in the form of the file
  kNorm,    // a vector, stored as w - 1 with DecoderConfig::one_plus_norm
  kVector,  // other values in the wide type
  kScalar,  // one number, for all channels
  kRate,    // A_log in checkpoints, of which GGUF files and layers have -exp
  kConv,    // (C, K), in checkpoints (C, 1, K)
};

// What changes places between the checkpoint and a GGUF file.
enum class TensorOrder : std::uint8_t {
  kSame,
  kRotary,        // rows of a head, where the architecture has interleaved_rotary
  kValueHeads,    // rows of value heads of a delta rule (GgufValueHeads), behind rows that stay
  kValueColumns,  // likewise the columns of the linear that reads them
};

// Rows [first, first + rows) of a tensor of a GGUF file that has `of` of them, for each expert.
struct GgufPiece {
  std::string tensor;  // "blk.0.attn_q.weight"
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t of = 0;
};
// The rows of a tensor of the checkpoint, one piece after the other.
using GgufSpelling = std::vector<GgufPiece>;

struct ListedTensor {
  TensorKind kind = TensorKind::kLinear;
  // In the checkpoint, inside its layer or in the decoder. A * is the number of an expert:
  // "self_attn.q_proj.weight", "mlp.experts.*.up_proj.weight".
  std::string name;
  // Files are written in the first and read in any. Empty: GGUF files have none.
  std::vector<GgufSpelling> gguf;
  LinearShape shape;  // of one matrix; vectors have one row
  TensorOrder order = TensorOrder::kSame;
  std::int64_t head_rows = 0;  // rows, or columns, of a value head
  double load_factor = 1;      // of values as layers read them
  float gguf_factor = 1;       // of values of layers as GGUF files are written (GgufScoreFactor)
};

// A view in the weights of a layer, to fill and to read.
struct LayerMember {
  ConstMatrixView& (*fill)(LayerWeights&) = nullptr;
  const ConstMatrixView& (*read)(const LayerWeights&) = nullptr;
};

struct LayerTensor : ListedTensor {
  LayerMember member;  // of all but kLinear and the router (kTable)
  // Of linears: number `place` of the `places` of a group, or with experts of those of each expert.
  LinearGroup group = LinearGroup::kQkv;
  std::int64_t place = 0;
  std::int64_t places = 0;
  std::int64_t experts = 0;  // > 0: as many matrices, which a GGUF file has in one tensor
  bool is_stacked = false;   // and so has the checkpoint, without "*." and ".weight" in its name
  bool has_bias = false;
  bool may_lack_bias = false;  // in a GGUF file: it is 0
  bool of_decoder = false;     // beside the layers: listed with layer 0

  std::int64_t matrices() const { return experts > 0 ? experts : 1; }
  // The module of a linear, inside its layer or in the decoder: "self_attn.q_proj".
  std::string Module(std::int64_t expert) const;
  // The same behind `decoder`: "model.layers.0.self_attn.q_proj", as PEFT sees it.
  std::string ModuleIn(std::string_view decoder, std::int64_t layer, std::int64_t expert) const;
  // The name of a stack, or of any other tensor that no expert has, behind `decoder`.
  std::string TensorIn(std::string_view decoder, std::int64_t layer) const;

 private:
  std::string Before(std::string_view decoder, std::int64_t layer) const;
};

// In the order of GGUF files that are written. The linears of a group stand together.
std::vector<LayerTensor> LayerTensors(const DecoderConfig& config, std::int64_t layer);

// Whether `name` ("self_attn.k_proj.weight", or in GGUF files "blk.0.attn_k.weight") is a tensor of
// keys or values that files hold for a layer although it attends to those of another.
bool IsUnreadKv(const DecoderConfig& config, std::int64_t layer, std::string_view name);

struct DecoderTensor : ListedTensor {
  WeightView DecoderWeights::*table = nullptr;  // of kTable
  ConstMatrixView DecoderWeights::*vector = nullptr;
  ConstMatrixView DecoderWeights::*scaled = nullptr;  // the vector times `scale`, for passes
  double scale = 1;

  bool is_head() const { return table == &DecoderWeights::head; }
};
// Those beside the layers. Files have no head where it is tied; its name has no decoder in front.
std::vector<DecoderTensor> DecoderTensors(const DecoderConfig& config);

// "attn_q.weight" without ".weight", to which ".bias", ".scale" and ".weight.lora_a" belong.
std::string StemOf(std::string_view tensor);

// What a GGUF file is read as has -exp(A_log) under this name in the place of A_log.
std::string RateName(const std::string& a_log);

// Of the linears of a layer, those of one row: one, or all experts'.
template <typename T>
std::vector<const T*> StackOf(const PerLinear<T>& linears, const LayerTensor& row) {
  const std::span<const T> group = GroupOf(linears, row.group);
  std::vector<const T*> stack;
  for (std::int64_t i = row.place; i < std::ssize(group); i += row.places) {
    stack.push_back(&group[i]);
  }
  return stack;
}

// visit(row, expert) for each linear among the rows of a layer, in the order of PerLinear.
template <typename Visit>
void ForEachLinear(const std::vector<LayerTensor>& rows, Visit&& visit) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].kind != TensorKind::kLinear || rows[i].place > 0) continue;
    for (std::int64_t e = 0; e < rows[i].matrices(); ++e) {
      for (std::int64_t place = 0; place < rows[i].places; ++place) visit(rows[i + place], e);
    }
  }
}

}  // namespace qlora

#endif  // QLORA_MODEL_TENSOR_LIST_H_
