#include "convert/gguf_weights.h"

#include <algorithm>

#include "base/check.h"
#include "convert/gguf_limits.h"
#include "convert/gguf_metadata.h"
#include "gguf/gguf.h"
#include "io/float_encoding.h"
#include "model/gguf_names.h"

namespace qlora {
namespace {

const TensorInfo& Get(const GgufReader& reader, const std::string& name, std::int64_t rows,
                      std::int64_t cols) {
  const TensorInfo* tensor = reader.Find(name);
  if (tensor == nullptr) ThrowInvalidInput("GGUF tensor '{}' is missing", name);
  // Stacks of experts have three dimensions, so the product of all but the last is compared.
  if (tensor->elements() != rows * cols || tensor->shape.back() != cols) {
    ThrowInvalidInput("{}: tensor '{}' does not have the shape [{}, {}]", reader.FileOf(*tensor),
                      name, rows, cols);
  }
  return *tensor;
}

// Values that are decoded before they are uploaded.

// Decodes to out (rows, cols) float32 in `memory`, from row `first` of the tensor on; row order[i]
// of out is row first + i (empty: the same order).
void Decode(const GgufReader& reader, const TensorInfo& tensor, std::int64_t first,
            const std::vector<std::int64_t>& order, float factor, Memory& memory,
            const MatrixView& out) {
  const std::span<const std::byte> bytes = reader.Bytes(tensor);
  const std::size_t row_bytes = BytesOf(tensor.dtype, out.cols);
  // Rows that change places are decoded together.
  const std::int64_t piece =
      order.empty() ? std::max<std::int64_t>(1, kPieceValues / out.cols) : out.rows;
  for (std::int64_t begin = 0; begin < out.rows; begin += piece) {
    const std::int64_t rows = std::min(piece, out.rows - begin);
    std::vector<float> values(rows * out.cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      // The inverse of the export, which wrote row order[r] of the source as row r.
      const std::int64_t target = order.empty() ? r : order[r];
      const std::span<float> row = std::span(values).subspan(target * out.cols, out.cols);
      DecodeFloats(tensor.dtype, bytes.subspan((first + begin + r) * row_bytes, row_bytes), row);
      for (std::int64_t i = 0; factor != 1 && i < out.cols; ++i) row[i] *= factor;
    }
    Upload(memory, std::span<const float>(values), Rows(out, begin, rows));
  }
}

class Loader {
 public:
  Loader(const GgufReader& reader, const DecoderConfig& config, Memory& memory)
      : reader_(reader), config_(config), memory_(memory) {}

  void Run(Carver& carver, DecoderWeights& out, const ProgressFn& progress) {
    carver_ = &carver;
    out.layers.clear();
    out.embed = Matrix("token_embd.weight", config_.vocab_size, config_.hidden_size);
    out.final_norm = Matrix("output_norm.weight", 1, config_.hidden_size);
    // Without output.weight llama.cpp uses the embedding as the head.
    out.head = reader_.Find("output.weight") == nullptr
                   ? out.embed
                   : Matrix("output.weight", config_.vocab_size, config_.hidden_size);
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      out.layers.push_back(Layer(l));
      if (progress) progress(l + 1, config_.num_hidden_layers);
    }
  }

 private:
  float ScoreFactor() const { return config_.qk_norm ? GgufScoreFactor(config_) : 1; }

  ConstMatrixView Matrix(const std::string& name, std::int64_t rows, std::int64_t cols,
                         float factor = 1) {
    const MatrixView out = carver_->Matrix(DType::kF32, rows, cols);
    const TensorInfo& tensor = Get(reader_, name, rows, cols);
    // The first run only plans: it checks names and shapes before memory is taken.
    if (out.data != nullptr) Decode(reader_, tensor, 0, {}, factor, memory_, out);
    return out;
  }

  ConstMatrixView Optional(const std::string& name, std::int64_t cols, float factor = 1) {
    return reader_.Find(name) == nullptr ? ConstMatrixView{} : Matrix(name, 1, cols, factor);
  }

  LayerWeights Layer(std::int64_t l) {
    const std::string block = fmt::format("blk.{}.", l);
    LayerWeights out;
    out.input_norm = Matrix(block + "attn_norm.weight", 1, config_.hidden_size);
    out.mlp_norm = Matrix(block + "ffn_norm.weight", 1, config_.hidden_size);
    out.post_attn_norm = Optional(block + "post_attention_norm.weight", config_.hidden_size);
    out.post_mlp_norm = Optional(block + "post_ffw_norm.weight", config_.hidden_size);
    // The export multiplied the factor in; dividing by it returns the source, up to rounding.
    out.q_norm = Optional(block + "attn_q_norm.weight", config_.head_dim, 1 / ScoreFactor());
    out.k_norm = Optional(block + "attn_k_norm.weight", config_.head_dim);
    if (config_.moe.num_experts > 0) {
      out.router =
          Matrix(block + "ffn_gate_inp.weight", config_.moe.num_experts, config_.hidden_size);
    }
    const PerLinear<std::string> names = GgufLinearNames(l, config_);
    const PerLinear<LinearShape> shapes = ShapeLinears(config_);
    const PerLinear<LinearRows> rows = GgufLinearRows(config_);
    const auto group = [&](const std::vector<std::string>& tensors,
                           const std::vector<LinearShape>& linears,
                           const std::vector<LinearRows>& linear_rows) {
      std::vector<FrozenLinear> frozen;
      for (std::size_t i = 0; i < linears.size(); ++i) {
        // linears: gate 0, up 0, gate 1, up 1, ... of experts 0, 1 ...    tensors: gate, up
        // linear i is in tensor i % 2, as its expert i / 2.
        const std::size_t place = i % tensors.size();
        frozen.push_back(Linear(tensors[place], linears[i], linear_rows[place], i / tensors.size(),
                                linears.size() / tensors.size()));
      }
      return frozen;
    };
    out.linears.qkv = group(names.qkv, shapes.qkv, rows.qkv);
    out.linears.o = Linear(names.o, shapes.o, rows.o, 0, 1);
    out.linears.gate_up = group(names.gate_up, shapes.gate_up, rows.gate_up);
    out.linears.down = group(names.down, shapes.down, rows.down);
    return out;
  }

  // Reads linear number `expert` of `experts` in one tensor.
  FrozenLinear Linear(const std::string& name, const LinearShape& shape, const LinearRows& rows,
                      std::size_t expert, std::size_t experts) {
    const MatrixView weight = carver_->Matrix(DType::kF32, shape.out, shape.in);
    const std::string tensor = name + ".weight";
    const auto count = static_cast<std::int64_t>(experts);
    const TensorInfo& info = Get(reader_, tensor, count * shape.out, shape.in);
    if (weight.data != nullptr) {
      // The factor was multiplied in; dividing by it returns the source weight, up to rounding.
      Decode(reader_, info, static_cast<std::int64_t>(expert) * shape.out, rows.order,
             1 / rows.factor, memory_, weight);
    }
    FrozenLinear frozen{name, weight, {}};
    if (reader_.Find(name + ".bias") != nullptr) {
      frozen.bias = Bias(name + ".bias", shape.out, rows);
    }
    return frozen;
  }

  ConstMatrixView Bias(const std::string& name, std::int64_t size, const LinearRows& rows) {
    const MatrixView out = carver_->Matrix(DType::kF32, 1, size);
    const TensorInfo& tensor = Get(reader_, name, 1, size);
    if (out.data != nullptr) {
      MatrixView column = out;  // one value a row, so that the row order applies
      column.rows = size;
      column.cols = column.stride = 1;
      Decode(reader_, tensor, 0, rows.order, 1 / rows.factor, memory_, column);
    }
    return out;
  }

  const GgufReader& reader_;
  const DecoderConfig& config_;
  Memory& memory_;
  Carver* carver_ = nullptr;
};

}  // namespace

DecoderWeights LoadGgufWeights(const std::filesystem::path& path, const DecoderConfig& config,
                               Memory& memory, const ProgressFn& progress) {
  const std::unique_ptr<GgufReader> reader = OpenGguf(path);
  Loader loader(*reader, config, memory);
  DecoderWeights weights;
  Carver plan;
  // A Carver without an arena counts.
  loader.Run(plan, weights, {});
  weights.arena = Arena(plan.bytes(), memory);
  Carver carver(weights.arena);
  loader.Run(carver, weights, progress);
  weights.sizes.owned = plan.bytes();
  return weights;
}

void LoadGgufAdapter(const std::filesystem::path& path, const DecoderConfig& config,
                     LoraAdapter& adapter) {
  const std::unique_ptr<GgufReader> reader = OpenGguf(path);
  const float alpha = reader->Require<float>("adapter.lora.alpha");
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    PerLinear<LoraLinear>& loras = adapter.layers()[l];
    const PerLinear<std::string> names = GgufLinearNames(l, config);
    const PerLinear<LinearRows> rows = GgufLinearRows(config);
    // Linear number `expert` of `experts` in one tensor.
    const auto read = [&](const std::string& name, const LinearRows& r, LoraLinear& lora,
                          std::size_t expert, std::size_t experts) {
      // The adapter has nothing for this linear, and so the file has no tensor.
      if (lora.rank == 0) return;
      const auto e = static_cast<std::int64_t>(expert);
      const auto count = static_cast<std::int64_t>(experts);
      const TensorInfo& a = Get(*reader, name + ".weight.lora_a", count * lora.rank, lora.in);
      const TensorInfo& b = Get(*reader, name + ".weight.lora_b", count * lora.out, lora.rank);
      Decode(*reader, a, e * lora.rank, {}, 1, adapter.memory(), lora.a);
      Decode(*reader, b, e * lora.out, r.order, 1 / r.factor, adapter.memory(), lora.b);
      // As llama.cpp computes it: the comparison tests llama.cpp's result.
      lora.scale = alpha / static_cast<float>(lora.rank);
    };
    const auto group = [&](const std::vector<std::string>& tensors,
                           const std::vector<LinearRows>& linear_rows,
                           std::vector<LoraLinear>& linears) {
      for (std::size_t i = 0; i < linears.size(); ++i) {
        const std::size_t place = i % tensors.size();
        read(tensors[place], linear_rows[place], linears[i], i / tensors.size(),
             linears.size() / tensors.size());
      }
    };
    group(names.qkv, rows.qkv, loras.qkv);
    read(names.o, rows.o, loras.o, 0, 1);
    group(names.gate_up, rows.gate_up, loras.gate_up);
    group(names.down, rows.down, loras.down);
  }
}

}  // namespace qlora
