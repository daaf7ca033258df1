#include "convert/export_gguf.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/matrix.h"
#include "convert/gguf_limits.h"
#include "convert/gguf_metadata.h"
#include "convert/gguf_tokenizer_keys.h"
#include "convert/merged_linear.h"
#include "gguf/gguf_writer.h"
#include "io/float_encoding.h"
#include "model/gguf_names.h"
#include "qlora/export_gguf.h"

namespace qlora {
namespace {

// Returns LLAMA_FTYPE of llama.cpp, which readers show; the types of tensors decide.
std::uint32_t FileType(const TensorType& type) {
  if (type == BlockFormat::kQ8_0) return 7;
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kBF16:
      return 32;
    default:
      ThrowInvalidInput("GGUF export as {} is not supported", NameOf(type));
  }
}

// A tensor that is declared now and produced, rows at a time, when its turn comes.
struct PlannedTensor {
  TensorInfo info;
  // Writes rows [first, first + count) to out (count, cols).
  std::function<void(std::int64_t first, std::int64_t count, float* out)> rows;
};

class Plan {
 public:
  void Matrix(const std::string& name, TensorType type, std::int64_t rows, std::int64_t cols,
              std::function<void(std::int64_t, std::int64_t, float*)> produce) {
    // A row is a whole number of blocks.
    if (cols % type.block_values() != 0) type = DType::kF16;
    tensors_.push_back({{name, type, {rows, cols}}, std::move(produce)});
  }

  // One tensor (E, rows, cols) of the matrices of E experts; producers[e] writes rows of matrix e.
  // A single matrix keeps two dimensions.
  using Producer = std::function<void(std::int64_t, std::int64_t, float*)>;
  void Stack(const std::string& name, TensorType type, std::int64_t rows, std::int64_t cols,
             std::vector<Producer> producers) {
    const auto experts = static_cast<std::int64_t>(producers.size());
    Matrix(
        name, type, experts * rows, cols,
        [=, producers = std::move(producers)](std::int64_t first, std::int64_t count, float* out) {
          for (std::int64_t row = first; row < first + count;) {
            const std::int64_t begin = row % rows;
            const std::int64_t part = std::min(rows - begin, first + count - row);
            // (E, rows, cols) as rows:  | expert 0: 0 ... rows - 1 | expert 1: rows ... | ...
            // A piece may begin in one expert and end in the next.
            producers[row / rows](begin, part, out + (row - first) * cols);
            row += part;
          }
        });
    if (experts > 1) tensors_.back().info.shape = {experts, rows, cols};
  }

  void Vector(const std::string& name, std::vector<float> values) {
    // Families without this norm have no such tensor.
    if (values.empty()) return;
    const std::int64_t size = std::ssize(values);
    // llama.cpp expects norms and biases in float32 for weights of every type.
    tensors_.push_back({{name, DType::kF32, {size}},
                        [values = std::move(values)](std::int64_t, std::int64_t, float* out) {
                          std::ranges::copy(values, out);
                        }});
  }

  void Write(const std::filesystem::path& path, OpenMode mode, const GgufMetadata& metadata,
             const ProgressFn& progress) const {
    std::vector<TensorInfo> infos;
    for (const PlannedTensor& tensor : tensors_) infos.push_back(tensor.info);
    // GGUF states all sizes before the first value, hence the plan: first all shapes, then the
    // values, never the whole model.
    const std::unique_ptr<TensorWriter> writer = CreateGguf(path, metadata, infos, mode);
    std::vector<float> values;
    std::vector<std::byte> bytes;
    std::int64_t done = 0;
    for (const PlannedTensor& tensor : tensors_) {
      const std::int64_t cols = tensor.info.shape.back();
      const std::int64_t rows = tensor.info.elements() / cols;
      const std::int64_t chunk = std::max<std::int64_t>(1, kPieceValues / cols);
      for (std::int64_t first = 0; first < rows; first += chunk) {
        const std::int64_t count = std::min(chunk, rows - first);
        values.resize(count * cols);
        tensor.rows(first, count, values.data());
        // Pieces of whole rows are pieces of whole blocks (Matrix).
        bytes.resize(BytesOf(tensor.info.dtype, values.size()));
        const std::int64_t bad = EncodeFloats(tensor.info.dtype, values, bytes);
        if (bad >= 0) {
          ThrowInvalidInput("tensor '{}': value {} at row {} does not fit into {}; use f32 or bf16",
                            tensor.info.name, values[bad], first + bad / cols,
                            NameOf(tensor.info.dtype));
        }
        writer->Write(bytes);
      }
      if (progress) progress(++done, static_cast<std::int64_t>(tensors_.size()));
    }
    writer->Finish();
  }

 private:
  std::vector<PlannedTensor> tensors_;
};

class ModelPlan {
 public:
  ModelPlan(Context& context, Memory& memory, const DecoderConfig& config,
            const DecoderWeights& weights, const LoraAdapter* adapter, TensorType outtype)
      : context_(context),
        memory_(memory),
        config_(config),
        weights_(weights),
        adapter_(adapter),
        outtype_(outtype) {}

  const Plan& Build() {
    // Under Q8_0 the embedding and the head stay F16: they are a small part of most models, and the
    // head's rounding goes straight into the logits.
    const TensorType table_type = outtype_.is_blocks() ? TensorType(DType::kF16) : outtype_;
    Table("token_embd.weight", weights_.embed, table_type);
    Vector("output_norm.weight", weights_.final_norm);
    // Without output.weight llama.cpp uses token_embd as the head.
    if (!weights_.is_tied()) {
      Table("output.weight", weights_.head, table_type);
    }
    for (const RopeFactors& factors : GgufRopeFactors(config_)) {
      plan_.Vector(factors.name, factors.values);
    }
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) Layer(l);
    return plan_;
  }

 private:
  static std::vector<const LoraLinear*> Optional(const LoraLinear* lora) {
    if (lora == nullptr) return {};
    return {lora};
  }

  void Table(const std::string& name, const WeightView& table, TensorType type) {
    plan_.Matrix(name, type, table.rows(), table.cols(),
                 [this, table](std::int64_t first, std::int64_t count, float* out) {
                   const HostWeight rows(memory_, table, first, count);
                   for (std::int64_t r = 0; r < count; ++r) rows.Read(r, out + r * table.cols());
                 });
  }

  // Writes a vector of the wide type as it is.
  void Vector(const std::string& name, const ConstMatrixView& values) {
    plan_.Vector(name, FloatsOf(values));
  }

  std::vector<float> FloatsOf(const ConstMatrixView& m) const {
    if (m.empty()) return {};
    const std::vector<double> values = DownloadReal(memory_, m);
    return {values.begin(), values.end()};
  }

  // Returns the linear that is being written. Only this linear may have a copy in host memory.
  const MergedLinear& Merged(const FrozenLinear* frozen, const LoraLinear* lora) {
    // Rows of one linear come in several pieces, one after the other.
    if (current_ != frozen) {
      merged_.reset();
      merged_.emplace(memory_, frozen->weight, lora);
      current_ = frozen;
    }
    return *merged_;
  }

  // Adds the linears that share one tensor; loras may be empty.
  void Linears(const std::string& name, const std::vector<const FrozenLinear*>& stack,
               const std::vector<const LoraLinear*>& loras, const LinearRows& rows) {
    std::vector<std::int64_t> order = rows.order;
    const float factor = rows.factor;
    const FrozenLinear& first_linear = *stack[0];
    if (order.empty()) {
      // order[i] is the row of the checkpoint that becomes row i of the file.
      order.resize(first_linear.weight.rows());
      std::iota(order.begin(), order.end(), std::int64_t{0});
    }
    if (!first_linear.bias.empty()) Bias(name + ".bias", first_linear.bias, order, factor);
    std::vector<Plan::Producer> producers;
    for (std::size_t e = 0; e < stack.size(); ++e) {
      producers.push_back([this, frozen = stack[e], lora = loras.empty() ? nullptr : loras[e],
                           order, factor](std::int64_t first, std::int64_t count, float* out) {
        const MergedLinear& merged = Merged(frozen, lora);
        merged.Read(context_, std::span(order).subspan(first, count), out);
        if (factor == 1) return;
        std::transform(out, out + count * merged.cols(), out,
                       [factor](float value) { return value * factor; });
      });
    }
    plan_.Stack(name + ".weight", outtype_, first_linear.weight.rows(), first_linear.weight.cols(),
                std::move(producers));
  }

  void Bias(const std::string& name, const ConstMatrixView& bias,
            const std::vector<std::int64_t>& order, float factor) {
    const std::vector<float> source = FloatsOf(bias);
    std::vector<float> values;
    // An output has its row of W and its value of the bias: both change places together.
    for (const std::int64_t row : order) values.push_back(factor * source[row]);
    plan_.Vector(name, std::move(values));
  }

  void Layer(std::int64_t l) {
    const LayerWeights& w = weights_.layers[l];
    const PerLinear<std::string> names = GgufLinearNames(l, config_);
    const PerLinear<LinearRows> rows = GgufLinearRows(config_);
    const PerLinear<LoraLinear>* loras = adapter_ == nullptr ? nullptr : &adapter_->layers()[l];
    const std::string block = fmt::format("blk.{}.", l);

    Vector(block + "attn_norm.weight", w.input_norm);
    const auto add =
        [&](const std::vector<std::string>& tensors, const std::vector<FrozenLinear>& group,
            const std::vector<LoraLinear>* group_loras, const std::vector<LinearRows>& group_rows) {
          for (std::size_t i = 0; i < tensors.size(); ++i) {
            std::vector<const LoraLinear*> stack;
            if (group_loras != nullptr) stack = StackOf(*group_loras, i, tensors.size());
            Linears(tensors[i], StackOf(group, i, tensors.size()), stack, group_rows[i]);
          }
        };
    add(names.qkv, w.linears.qkv, loras == nullptr ? nullptr : &loras->qkv, rows.qkv);
    std::vector<float> q_norm = FloatsOf(w.q_norm);
    const float factor = config_.qk_norm ? GgufScoreFactor(config_) : 1;
    for (float& value : q_norm) value *= factor;
    plan_.Vector(block + "attn_q_norm.weight", std::move(q_norm));
    Vector(block + "attn_k_norm.weight", w.k_norm);
    Linears(names.o, {&w.linears.o}, Optional(loras == nullptr ? nullptr : &loras->o), rows.o);
    Vector(block + "post_attention_norm.weight", w.post_attn_norm);
    Vector(block + "ffn_norm.weight", w.mlp_norm);
    // float32: a rounded logit may choose another expert.
    if (!w.router.empty()) Table(block + "ffn_gate_inp.weight", w.router, DType::kF32);
    add(names.gate_up, w.linears.gate_up, loras == nullptr ? nullptr : &loras->gate_up,
        rows.gate_up);
    add(names.down, w.linears.down, loras == nullptr ? nullptr : &loras->down, rows.down);
    Vector(block + "post_ffw_norm.weight", w.post_mlp_norm);
  }

  Context& context_;
  Memory& memory_;
  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  const LoraAdapter* adapter_;
  TensorType outtype_;
  const FrozenLinear* current_ = nullptr;
  std::optional<MergedLinear> merged_;
  Plan plan_;
};

// Names the base of an adapter as llama.cpp's convert_lora_to_gguf.py does.
void AddBaseModel(const std::string& name, const std::string& repository, GgufMetadata& metadata) {
  metadata.Add("general.base_model.count", std::uint32_t{1});
  metadata.Add("general.base_model.0.name", name);
  const std::size_t slash = repository.find('/');
  if (slash == std::string::npos) return;
  metadata.Add("general.base_model.0.organization", repository.substr(0, slash));
  metadata.Add("general.base_model.0.repo_url", "https://huggingface.co/" + repository);
}

}  // namespace

TensorType ParseOuttype(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "q8_0") return BlockFormat::kQ8_0;
  ThrowInvalidInput("outtype expects f32, f16, bf16 or q8_0, found '{}'", name);
}

void ExportGgufModel(Context& context, Memory& memory, const DecoderConfig& config,
                     const Tokenizer& tokenizer, const DecoderWeights& weights,
                     const LoraAdapter* adapter, const std::string& name,
                     const ExportTarget& target, const ProgressFn& progress,
                     std::vector<std::string>& notes) {
  CheckGgufLimits(config, GgufArchitectureOf(config), weights.is_tied());
  GgufMetadata metadata;
  const std::string own_name = NameForTokenizer(name, tokenizer, notes);
  AddModelMetadata(config, own_name, FileType(target.outtype), metadata);
  AddTokenizerMetadata(tokenizer, config.vocab_size, metadata, notes);
  ModelPlan plan(context, memory, config, weights, adapter, target.outtype);
  plan.Build().Write(target.path, target.mode, metadata, progress);
}

void ExportGgufAdapter(const DecoderConfig& config, const LoraAdapter& adapter,
                       const std::string& name, const std::string& repository,
                       const ExportTarget& target) {
  CheckGgufLimits(config, GgufArchitectureOf(config), config.tie_word_embeddings);
  Memory& memory = adapter.memory();
  const double alpha = adapter.config().lora_alpha;
  GgufMetadata metadata;
  metadata.Add("general.architecture", GgufArchitectureOf(config));
  metadata.Add("general.type", std::string("adapter"));
  metadata.Add("general.name", name);
  AddBaseModel(name, repository, metadata);
  metadata.Add("adapter.type", std::string("lora"));
  metadata.Add("adapter.lora.alpha", static_cast<float>(alpha));
  Plan plan;
  const PerLinear<LinearRows> rows = GgufLinearRows(config);
  const auto add = [&](const std::string& tensor, const std::vector<const LoraLinear*>& stack,
                       const LinearRows& linear_rows) {
    const LoraLinear& lora = *stack[0];
    std::vector<Plan::Producer> as;
    std::vector<Plan::Producer> bs;
    for (const LoraLinear* expert : stack) {
      // One tensor (E, R, in) has one R.
      if (expert->rank != lora.rank) {
        ThrowInvalidInput(
            "the adapters of '{}' have rank {} and of '{}' rank {}; an adapter GGUF needs one rank "
            "for all experts: merge the adapter instead (--format gguf)",
            lora.path, lora.rank, expert->path, expert->rank);
      }
      as.push_back([&memory, a = expert->a](std::int64_t first, std::int64_t count, float* out) {
        // A is written as it is: its columns are inputs, and only outputs change their order.
        memory.Download(a.Row<float>(first), out, BytesOf(DType::kF32, count * a.cols));
      });
      // llama.cpp computes alpha / rank * B A; B takes up the difference from the trained scale.
      const double factor = double{linear_rows.factor} * double{expert->scale} *
                            static_cast<double>(expert->rank) / alpha;
      bs.push_back([&memory, b = expert->b, order = linear_rows.order, factor](
                       std::int64_t first, std::int64_t count, float* out) {
        const std::vector<float> values = Download<float>(memory, b);
        for (std::int64_t r = 0; r < count; ++r) {
          // Rows of B are outputs, like rows of W.
          const std::int64_t source = order.empty() ? first + r : order[first + r];
          const float* row = values.data() + source * b.cols;
          std::transform(row, row + b.cols, out + r * b.cols, [factor](float value) {
            return static_cast<float>(factor * double{value});
          });
        }
      });
    }
    // The adapter does not name this linear.
    if (lora.rank == 0) return;
    plan.Stack(tensor + ".weight.lora_a", target.outtype, lora.rank, lora.in, std::move(as));
    plan.Stack(tensor + ".weight.lora_b", target.outtype, lora.out, lora.rank, std::move(bs));
  };
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const PerLinear<std::string> names = GgufLinearNames(l, config);
    const PerLinear<LoraLinear>& loras = adapter.layers()[l];
    const auto add_all = [&](const std::vector<std::string>& tensors,
                             const std::vector<LoraLinear>& group,
                             const std::vector<LinearRows>& group_rows) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        add(tensors[i], StackOf(group, i, tensors.size()), group_rows[i]);
      }
    };
    add_all(names.qkv, loras.qkv, rows.qkv);
    add(names.o, {&loras.o}, rows.o);
    add_all(names.gate_up, loras.gate_up, rows.gate_up);
    add_all(names.down, loras.down, rows.down);
  }
  plan.Write(target.path, target.mode, metadata, {});
}

void ExportGguf(std::span<const NamedMatrix> tensors, const std::filesystem::path& path,
                const std::string& outtype) {
  const TensorType type = ParseOuttype(outtype);
  Plan plan;
  for (const NamedMatrix& tensor : tensors) {
    const compat::Matrix& matrix = tensor.matrix;
    plan.Matrix(tensor.name, type, matrix.rows(), matrix.cols(),
                [&matrix](std::int64_t first, std::int64_t count, float* out) {
                  compat::DequantizeRows(matrix.view(), first, MakeView(out, count, matrix.cols()));
                });
  }
  plan.Write(path, OpenMode::kReplace, {}, {});
}

}  // namespace qlora
