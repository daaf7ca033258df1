#include "model/gguf_checkpoint.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "model/gguf_keys.h"
#include "model/gguf_names.h"
#include "model/linear_shapes.h"
#include "model/tensor_views.h"

namespace qlora {
namespace {

// The number of the block in "blk.12.attn_q.weight"; -1 for other names.
std::int64_t BlockOf(std::string_view name) {
  if (!name.starts_with("blk.")) return -1;
  std::int64_t block = -1;
  std::from_chars(name.data() + 4, name.data() + name.size(), block);
  return block;
}

std::vector<std::int64_t> Inverse(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> inverse(order.size());
  for (std::int64_t i = 0; i < std::ssize(order); ++i) inverse[order[i]] = i;
  return inverse;
}

// Linears of a layer that one tensor may hold together.
struct Group {
  std::vector<std::string> stored;  // "blk.0.attn_q", ...
  std::vector<std::string> names;   // "model.layers.0.self_attn.q_proj", ...
  std::vector<LinearShape> shapes;
  std::vector<std::vector<std::int64_t>> orders;  // GgufRowOrder
  bool bias = false;
};

class Builder {
 public:
  Builder(const GgufReader& file, const DecoderConfig& config) : file_(file), config_(config) {}

  std::vector<TensorView> Run() {
    const std::int64_t d = config_.hidden_size;
    Rows("token_embd.weight", 0, {config_.vocab_size, d}, {}, "model.embed_tokens.weight");
    const GgufArchitecture& architecture = *FindGgufArchitecture(config_.model_type);
    Vector(fmt::format("{}.weight", architecture.final_norm), d,
           fmt::format("model.{}.weight", config_.names.final_norm));
    if (!config_.tie_word_embeddings) {
      Rows("output.weight", 0, {config_.vocab_size, d}, {}, "lm_head.weight");
    }
    if (config_.per_layer_size > 0) {
      Rows("per_layer_token_embd.weight", 0,
           {config_.per_layer_vocab, config_.per_layer_features()}, {},
           "model.embed_tokens_per_layer.weight");
      Vector("per_layer_proj_norm.weight", config_.per_layer_size,
             "model.per_layer_projection_norm.weight");
    }
    // The file bounds the memory for orders of rows, which its keys alone would not.
    const bool attends = config_.layers[0].mixer == Mixer::kAttention;
    const LayerConfig first = config_.layer(0);
    if (!attends) {
      // Of fused linears the first tensor has a part.
      const std::int64_t rows =
          config_.fused_delta ? config_.delta_conv_features() : ShapeLinears(config_, 0).qkv[0].out;
      Get(GgufLinearNames(0, config_).qkv[0] + ".weight", rows, d);
    } else if (Has("blk.0.attn_qkv.weight")) {
      Get("blk.0.attn_qkv.weight", first.qkv_features(), d);
    } else {
      Get("blk.0.attn_q.weight",
          first.q_features() * (config_.output_gate == OutputGate::kFull ? 2 : 1), d);
    }
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) Layer(l);
    CheckAllRead();
    return std::move(views_);
  }

 private:
  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }

  // The tensor of this many rows and columns, of whatever dimensions.
  const TensorInfo& Get(const std::string& name, std::int64_t rows, std::int64_t cols) {
    const TensorInfo* tensor = file_.Find(name);
    if (tensor == nullptr) {
      ThrowInvalidInput("{}: tensor '{}' is missing, which a {} of {} layers has", file_.where(),
                        name, config_.model_type, config_.num_hidden_layers);
    }
    read_.insert(name);
    if (!tensor->dtype.is_blocks() && !IsFloat(tensor->dtype)) {
      ThrowInvalidInput("{}: tensor '{}' is {}, expected F32, F16, BF16 or blocks",
                        file_.FileOf(*tensor), name, NameOf(tensor->dtype));
    }
    const bool has_columns = !tensor->shape.empty() && tensor->shape.back() == cols;
    if (tensor->elements() != rows * cols || (!has_columns && rows != 1)) {
      ThrowInvalidInput("{}: tensor '{}' has the shape [{}], its keys expect {} rows of {}",
                        file_.FileOf(*tensor), name, fmt::join(tensor->shape, ", "), rows, cols);
    }
    return *tensor;
  }

  // The number that products with matrix `expert` of `experts` of a weight are multiplied by.
  float ScaleOf(const std::string& weight, std::int64_t expert, std::int64_t experts) {
    const std::string name = weight.substr(0, weight.rfind('.')) + ".scale";
    // llama.cpp scales no embedding, and a head of this type alone.
    const bool is_head = weight == "output.weight";
    if (!Has(name) || weight == "token_embd.weight" || weight == "per_layer_token_embd.weight" ||
        (is_head && file_.Find(weight)->dtype != BlockFormat::kNVFP4)) {
      return 1;
    }
    const std::int64_t count = file_.Find(name)->elements();
    const TensorInfo& tensor = Get(name, 1, count == experts ? experts : 1);
    float scale = 0;
    if (tensor.dtype == DType::kF32) {
      const std::int64_t place = count == 1 ? 0 : expert;
      std::memcpy(&scale, file_.Bytes(tensor).data() + place * sizeof(scale), sizeof(scale));
    }
    if (scale == 0 || !std::isfinite(scale)) {
      ThrowInvalidInput("{}: tensor '{}': expected numbers of F32 other than 0",
                        file_.FileOf(tensor), name);
    }
    return scale;
  }

  void Vector(const std::string& stored, std::int64_t size, const std::string& name) {
    const TensorInfo& tensor = Get(stored, 1, size);
    views_.push_back({{name, tensor.dtype, {size}}, {{&tensor, 0, size}}});
  }

  // Matrix number `expert` of a tensor of several. order: of the file's rows.
  void Rows(const std::string& stored, std::int64_t expert, const LinearShape& shape,
            const std::vector<std::int64_t>& order, const std::string& name,
            std::int64_t experts = 1) {
    const TensorInfo& tensor = Get(stored, experts * shape.out, shape.in);
    const std::int64_t size = shape.out * shape.in;
    TensorView view{{name, tensor.dtype, {shape.out, shape.in}},
                    {{&tensor, expert * size, size, Inverse(order)}}};
    view.SetFactor(ScaleOf(stored, expert, experts));
    views_.push_back(std::move(view));
  }

  void Bias(const std::string& stored, std::int64_t size, const std::vector<std::int64_t>& order,
            const std::string& name) {
    const TensorInfo& tensor = Get(stored, 1, size);
    views_.push_back({{name, tensor.dtype, {size}}, {{&tensor, 0, size, Inverse(order)}}});
  }

  // The weights (C, 1, K) of a convolution.
  void Conv(const std::string& stored, std::int64_t channels, const std::string& name) {
    const std::int64_t taps = config_.conv_taps;
    const TensorInfo& tensor = Get(stored, channels, taps);
    views_.push_back({{name, tensor.dtype, {channels, 1, taps}}, {{&tensor, 0, channels * taps}}});
  }

  void DeltaRule(const std::string& block, const std::string& name) {
    const std::int64_t heads = config_.delta_rule.heads;
    Conv(block + "ssm_conv1d.weight", config_.delta_conv_features(), name + "conv1d.weight");
    Vector(block + "ssm_dt.bias", heads, name + "dt_bias");
    Vector(block + "ssm_a", heads, name + "rate");
  }

  // One tensor for each linear.
  void Linears(const Group& group) {
    for (std::size_t i = 0; i < group.names.size(); ++i) {
      Rows(group.stored[i] + ".weight", 0, group.shapes[i], group.orders[i],
           group.names[i] + ".weight");
      if (!group.bias) continue;
      Bias(group.stored[i] + ".bias", group.shapes[i].out, group.orders[i],
           group.names[i] + ".bias");
    }
  }

  // One tensor for all linears of a group.
  void Cut(const std::string& joined, const Group& group) {
    std::int64_t rows = 0;
    for (const LinearShape& shape : group.shapes) rows += shape.out;
    for (const auto& [kind, cols] :
         {std::pair(".weight", group.shapes[0].in), std::pair(".bias", std::int64_t{1})}) {
      const bool is_weight = std::string_view(kind) == ".weight";
      if (!is_weight && !group.bias) continue;
      const TensorInfo& tensor =
          is_weight ? Get(joined + kind, rows, cols) : Get(joined + kind, 1, rows);
      std::int64_t row = 0;
      for (std::size_t i = 0; i < group.names.size(); ++i) {
        const std::int64_t out = group.shapes[i].out;
        TensorView view{{group.names[i] + kind, tensor.dtype, {out}},
                        {{&tensor, row * cols, out * cols, Inverse(group.orders[i])}}};
        if (is_weight) {
          view.info.shape.push_back(cols);
          view.SetFactor(ScaleOf(joined + kind, 0, 1));
        }
        views_.push_back(std::move(view));
        row += out;
      }
    }
  }

  // Several tensors for one linear of Phi-3.
  void JoinQkv(const std::string& block, const std::string& name, const LayerConfig& layer) {
    const std::int64_t d = config_.hidden_size;
    const std::int64_t parts[] = {layer.q_features(), layer.kv_features(), layer.kv_features()};
    const char* const stored[] = {"attn_q", "attn_k", "attn_v"};
    for (const bool is_weight : {true, false}) {
      if (!is_weight && !config_.qkv_bias) continue;
      const std::string kind = is_weight ? ".weight" : ".bias";
      TensorView view;
      view.info = {name + kind, DType::kF32, {layer.qkv_features()}};
      if (is_weight) view.info.shape.push_back(d);
      for (std::size_t i = 0; i < std::size(parts); ++i) {
        const std::string part = block + stored[i] + kind;
        const TensorInfo& tensor = is_weight ? Get(part, parts[i], d) : Get(part, 1, parts[i]);
        if (i == 0) view.info.dtype = tensor.dtype;
        if (tensor.dtype != view.info.dtype || (is_weight && ScaleOf(part, 0, 1) != 1)) {
          ThrowInvalidInput(
              "{}: tensor '{}': q, k and v of a {} are one weight and need one type, and no scales",
              file_.FileOf(tensor), part, config_.model_type);
        }
        view.pieces.push_back({&tensor, 0, tensor.elements()});
      }
      views_.push_back(std::move(view));
    }
  }

  // Two tensors for the first of two linears of Qwen3-Next, whose rows go from key head to key
  // head.
  void JoinDelta(const Group& group) {
    const DeltaRuleShape& shape = config_.delta_rule;
    const std::int64_t d = config_.hidden_size;
    const std::string parts[] = {group.stored[0] + ".weight", group.stored[1] + ".weight"};
    const TensorInfo& qkv = Get(parts[0], config_.delta_conv_features(), d);
    const TensorInfo& z = Get(parts[1], config_.delta_value_features(), d);
    if (ScaleOf(parts[0], 0, 1) != 1 || ScaleOf(parts[1], 0, 1) != 1) {
      ThrowInvalidInput("{}: tensors '{}' and '{}' are one weight of a {} and need no scales",
                        file_.where(), parts[0], parts[1], config_.model_type);
    }
    const TensorType type = qkv.dtype == z.dtype ? qkv.dtype : TensorType(DType::kF32);
    const std::int64_t keys = shape.key_heads * shape.key_dim;
    const std::int64_t value = shape.heads / shape.key_heads * shape.value_dim;
    TensorView view{{group.names[0] + ".weight", type, {group.shapes[0].out, d}}, {}};
    const auto add = [&](const TensorInfo& source, std::int64_t row, std::int64_t rows) {
      view.pieces.push_back({&source, row * d, rows * d});
    };
    for (std::int64_t g = 0; g < shape.key_heads; ++g) {
      add(qkv, g * shape.key_dim, shape.key_dim);
      add(qkv, keys + g * shape.key_dim, shape.key_dim);
      add(qkv, 2 * keys + g * value, value);
      add(z, g * value, value);
    }
    views_.push_back(std::move(view));
    Rows(group.stored[2] + ".weight", 0, group.shapes[1], {}, group.names[1] + ".weight");
  }

  // A tensor (E, O, I) of the linears i, i + places, i + 2 places ... of a group of experts. With
  // one place it holds gate and up of each expert (E, 2 O, I).
  void Experts(const std::string& stored, const Group& group, std::size_t first,
               std::size_t places) {
    const auto matrices = static_cast<std::int64_t>(group.names.size() / places);
    for (std::int64_t m = 0; m < matrices; ++m) {
      const std::size_t i = first + static_cast<std::size_t>(m) * places;
      Rows(stored + ".weight", m, group.shapes[i], {}, group.names[i] + ".weight", matrices);
      if (!group.bias) continue;
      const std::int64_t out = group.shapes[i].out;
      const TensorInfo& biases = Get(stored + ".bias", matrices, out);
      views_.push_back(
          {{group.names[i] + ".bias", biases.dtype, {out}}, {{&biases, m * out, out}}});
    }
  }

  // A tensor (E, O, I) as it is.
  void Stack(const std::string& stored, const LinearShape& shape, const std::string& name) {
    const std::int64_t experts = config_.side_moe.num_experts;
    const TensorInfo& tensor = Get(stored, experts * shape.out, shape.in);
    views_.push_back(
        {{name, tensor.dtype, {experts, shape.out, shape.in}}, {{&tensor, 0, tensor.elements()}}});
  }

  // Experts beside the MLP. The scale of ffn_down_exps is a number of each expert in the router's
  // hands.
  void SideExperts(const std::string& block, const std::string& layer) {
    const std::int64_t experts = config_.side_moe.num_experts;
    const std::int64_t d = config_.hidden_size;
    const std::int64_t m = config_.side_intermediate_size;
    const TensorInfo& router = Get(block + "ffn_gate_inp.weight", experts, d);
    views_.push_back({{layer + "router.proj.weight", router.dtype, {experts, d}},
                      {{&router, 0, router.elements()}}});
    Vector(block + "ffn_gate_inp.scale", d, layer + "router.scale");
    Vector(block + "ffn_down_exps.scale", experts, layer + "router.per_expert_scale");
    Stack(block + "ffn_gate_up_exps.weight", {2 * m, d}, layer + "experts.gate_up_proj");
    Stack(block + "ffn_down_exps.weight", {d, m}, layer + "experts.down_proj");
  }

  // Router, experts, and the expert of all tokens.
  void MixtureOfExperts(const std::string& block, const std::string& layer, const Group& gate_up,
                        const Group& down) {
    const std::int64_t experts = config_.moe.num_experts;
    Rows(block + "ffn_gate_inp.weight", 0, {experts, config_.hidden_size}, {},
         layer + RouterName(config_) + ".weight");
    if (config_.moe.router_bias) {
      Vector(block + "ffn_gate_inp.bias", experts, layer + RouterName(config_) + ".bias");
    }
    if (config_.moe.expert_bias) {
      Vector(block + "exp_probs_b.bias", experts, layer + ExpertBiasName(config_));
    }
    const std::string joined = block + "ffn_gate_up_exps";
    if (Has(joined + ".weight")) {
      Experts(joined, gate_up, 0, 1);
    } else {
      Experts(gate_up.stored[0], gate_up, 0, 2);
      Experts(gate_up.stored[1], gate_up, 1, 2);
    }
    Experts(down.stored[0], down, 0, 1);
  }

  void Layer(std::int64_t l) {
    const std::string block = fmt::format("blk.{}.", l);
    const std::string layer = fmt::format("model.layers.{}.", l);
    for (const GgufNorm& norm : GgufNorms(l, config_)) {
      Vector(fmt::format("{}{}.weight", block, norm.gguf), norm.size,
             fmt::format("{}{}.weight", layer, norm.hugging_face));
    }
    const PerLinear<std::string> stored = GgufLinearNames(l, config_);
    const PerLinear<std::string> names = LinearPaths(config_, l);
    const PerLinear<LinearShape> shapes = ShapeLinears(config_, l);
    const PerLinear<std::vector<std::int64_t>> orders = GgufRowOrder(l, config_);

    const Mixer mixer = config_.layers[l].mixer;
    const bool attends = mixer == Mixer::kAttention;
    if (mixer == Mixer::kDeltaRule) DeltaRule(block, layer + "linear_attn.");
    if (mixer == Mixer::kShortConv) {
      Conv(block + "shortconv.conv.weight", config_.hidden_size, layer + "conv.conv.weight");
    }
    if (config_.sinks) {
      Vector(block + "attn_sinks.weight", config_.layer(l).num_attention_heads,
             layer + "self_attn.sinks");
    }
    const Group qkv{stored.qkv, names.qkv, shapes.qkv, orders.qkv, attends && config_.qkv_bias};
    const std::string joined = block + "attn_qkv";
    if (mixer == Mixer::kDeltaRule && config_.fused_delta) {
      JoinDelta(qkv);
    } else if (!attends) {
      Linears(qkv);
    } else if (config_.fused_qkv && !Has(joined + ".weight")) {
      JoinQkv(block, names.qkv[0], config_.layer(l));
    } else if (!config_.fused_qkv && Has(joined + ".weight")) {
      Cut(joined, qkv);
    } else {
      Linears(qkv);
    }
    Linears({{stored.o}, {names.o}, {shapes.o}, {orders.o}, attends && config_.o_bias});
    Linears({stored.per_layer_gate, names.per_layer_gate, shapes.per_layer_gate,
             orders.per_layer_gate});
    Linears(
        {stored.per_layer_out, names.per_layer_out, shapes.per_layer_out, orders.per_layer_out});
    Linears({stored.per_layer_model, names.per_layer_model, shapes.per_layer_model,
             orders.per_layer_model});
    if (config_.side_moe.num_experts > 0) SideExperts(block, layer);
    if (config_.layer_scalar) {
      Vector(block + "layer_output_scale.weight", 1, layer + "layer_scalar");
    }
    const Group gate_up{stored.gate_up, names.gate_up, shapes.gate_up, orders.gate_up,
                        config_.mlp_bias};
    const Group down{stored.down, names.down, shapes.down, orders.down, config_.mlp_bias};
    if (config_.has_experts(l)) {
      MixtureOfExperts(block, layer, gate_up, down);
      Linears({stored.shared_in, names.shared_in, shapes.shared_in, orders.shared_in, false});
      Linears({stored.shared_out, names.shared_out, shapes.shared_out, orders.shared_out, false});
    } else {
      Linears(gate_up);
      Linears(down);
    }
  }

  // The blocks of the file, drafts included.
  std::int64_t BlockCount() const {
    const auto& architecture = file_.Require<std::string>("general.architecture");
    return GgufKeys(file_, architecture).Int("block_count");
  }

  void CheckAllRead() const {
    const RopeConfig& rope = config_.ropes[0];
    const std::int64_t blocks = BlockCount();
    for (const TensorInfo& tensor : file_.tensors()) {
      const std::string& name = tensor.name;
      if (read_.contains(name)) continue;
      const bool has_divisors = !rope.divisors.empty() || config_.value_norm;  // Gemma 4
      if (name == "rope_freqs.weight" && has_divisors) continue;
      const std::int64_t block = BlockOf(name);
      if (config_.IsUnreadKv(block, std::string_view(name).substr(name.find('.', 4) + 1))) continue;
      if (name.starts_with("rope_factors_") && rope.type == RopeType::kLongrope) continue;
      // Drafts of several tokens, and scales of activations, which llama.cpp does not use either.
      const bool is_draft = block >= config_.num_hidden_layers && block < blocks;
      if (is_draft || name.ends_with(".input_scale")) continue;
      ThrowInvalidInput(
          "{}: tensor '{}' is none of a {} of {} layers that is supported; without it, the model "
          "would be another one",
          file_.FileOf(tensor), name, config_.model_type, config_.num_hidden_layers);
    }
  }

  const GgufReader& file_;
  const DecoderConfig& config_;
  std::vector<TensorView> views_;
  std::set<std::string> read_;
};

}  // namespace

std::unique_ptr<TensorReader> OpenGgufCheckpoint(std::unique_ptr<GgufReader> file,
                                                 const DecoderConfig& config) {
  std::vector<TensorView> views = Builder(*file, config).Run();
  return std::make_unique<TensorViews>(std::move(file), std::move(views),
                                       std::vector<UnreadTensor>());
}

}  // namespace qlora
