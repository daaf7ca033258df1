#include "model/tensor_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "config/families.h"

namespace qlora {
namespace {

template <auto... kPath>
constexpr LayerMember At() {
  return {[](LayerWeights& w) -> ConstMatrixView& { return (w.*....*kPath); },
          [](const LayerWeights& w) -> const ConstMatrixView& { return (w.*....*kPath); }};
}

// One tensor that holds all rows, under a name without ".weight".
GgufSpelling Whole(const std::string& tensor, std::int64_t rows) {
  return {{tensor + ".weight", 0, rows, rows}};
}

// Makes the list of a layer.
class Lister {
 public:
  // sizes: of the layer.
  Lister(const DecoderConfig& config, std::int64_t layer, const LayerConfig& sizes)
      : c_(config),
        of_(config.names),
        sizes_(sizes),
        l_(layer),
        d_(config.hidden_size),
        gguf_(GgufFamilyOf(config.model_type)) {}

  std::vector<LayerTensor> Run() {
    const bool attends = sizes_.mixer == Mixer::kAttention;
    if (c_.input_norms) Norm(of_.input_norm, "attn_norm", d_, At<&LayerWeights::input_norm>());
    if (attends) Attention();
    if (sizes_.mixer == Mixer::kDeltaRule) DeltaRule();
    if (sizes_.mixer == Mixer::kShortConv) ShortConv();
    if (c_.post_norms) {
      Norm(of_.post_attn_norm, "post_attention_norm", d_, At<&LayerWeights::post_attn_norm>());
    }
    if (c_.input_norms) {
      Norm(of_.mlp_norm, gguf_.mlp_norm, d_, At<&LayerWeights::mlp_norm>());
    }
    if (c_.has_experts(l_)) Router();
    if (c_.sinks && attends) {
      Vector("self_attn.sinks", "attn_sinks.weight", sizes_.num_attention_heads,
             At<&LayerWeights::sinks>());
    }
    c_.has_experts(l_) ? Experts() : DenseMlp();
    if (c_.post_norms) {
      Norm(of_.post_mlp_norm, "post_ffw_norm", d_, At<&LayerWeights::post_mlp_norm>());
    }
    if (c_.per_layer_size > 0) PerLayer();
    if (c_.side_moe.num_experts > 0) SideExperts();
    if (c_.per_layer_size > 0) {
      Norm("post_per_layer_input_norm", "post_norm", d_, At<&LayerWeights::per_layer_norm>());
    }
    if (c_.layer_scalar) {
      Vector("layer_scalar", "layer_output_scale.weight", 1, At<&LayerWeights::scale>()).kind =
          TensorKind::kScalar;
    }
    CountPlaces();
    return std::move(rows_);
  }

 private:
  std::string Block(std::string_view name) const { return fmt::format("blk.{}.{}", l_, name); }

  LayerTensor& Linear(LinearGroup group, std::string_view module, std::string_view gguf,
                      const LinearShape& shape, bool has_bias = false) {
    LayerTensor& row = rows_.emplace_back();
    row.name = fmt::format("{}.weight", module);
    row.gguf = {Whole(Block(gguf), shape.out)};
    row.shape = shape;
    row.group = group;
    row.has_bias = row.may_lack_bias = has_bias;
    return row;
  }

  LayerTensor& Vector(std::string_view name, std::string_view gguf, std::int64_t size,
                      const LayerMember& member) {
    LayerTensor& row = rows_.emplace_back();
    row.kind = TensorKind::kVector;
    row.name = name;
    if (!gguf.empty()) row.gguf = {{{Block(gguf), 0, 1, 1}}};
    row.shape = {1, size};
    row.member = member;
    return row;
  }

  LayerTensor& Norm(std::string_view module, std::string_view gguf, std::int64_t size,
                    const LayerMember& member) {
    LayerTensor& row =
        Vector(fmt::format("{}.weight", module), fmt::format("{}.weight", gguf), size, member);
    row.kind = TensorKind::kNorm;
    return row;
  }

  void Conv(std::string_view module, std::string_view gguf, std::int64_t channels) {
    LayerTensor& row = Norm(module, gguf, 0, At<&LayerWeights::conv, &ConvWeights::weight>());
    row.kind = TensorKind::kConv;
    row.shape = {channels, c_.conv_taps};
  }

  // The row that was added last has its value heads in another order in GGUF files.
  void MovesHeads(std::int64_t rows_of_head) {
    rows_.back().order = TensorOrder::kValueHeads;
    rows_.back().head_rows = rows_of_head;
  }

  void Attention() {
    const std::int64_t q = sizes_.q_features() * (c_.output_gate == OutputGate::kFull ? 2 : 1);
    const std::int64_t kv = sizes_.kv_features();
    const bool bias = c_.qkv_bias;
    const float scale = GgufScoreFactor(c_);
    if (c_.fused_qkv) {
      LayerTensor& row =
          Linear(LinearGroup::kQkv, of_.qkv, "attn_qkv", {sizes_.qkv_features(), d_}, bias);
      row.gguf.push_back({Whole(Block("attn_q"), q)[0], Whole(Block("attn_k"), kv)[0],
                          Whole(Block("attn_v"), kv)[0]});
    } else {
      const std::size_t first = rows_.size();
      LayerTensor& row = Linear(LinearGroup::kQkv, "self_attn.q_proj", "attn_q", {q, d_}, bias);
      if (c_.model_type == "gemma2") row.gguf_factor = scale;
      const bool has_k = sizes_.has_own_kv();
      if (has_k) Linear(LinearGroup::kQkv, "self_attn.k_proj", "attn_k", {kv, d_}, bias);
      if (gguf_.interleaved_rotary) {
        for (std::size_t i = first; i < rows_.size(); ++i) rows_[i].order = TensorOrder::kRotary;
      }
      if (has_k && !sizes_.k_is_v) {
        Linear(LinearGroup::kQkv, "self_attn.v_proj", "attn_v", {kv, d_}, bias);
      }
      Joins(first, "attn_qkv");
    }
    if (c_.output_gate == OutputGate::kHeads) {
      // Checkpoints have a bias in all linears of attention or in none, GGUF files none of a gate.
      const LinearShape shape{sizes_.num_attention_heads, d_};
      Linear(LinearGroup::kQkv, of_.attn_gate, "attn_gate", shape, bias && c_.o_bias);
    }
    if (c_.qk_norm != QkNorm::kNone) {
      Norm(of_.q_norm, "attn_q_norm", c_.q_norm_size(l_), At<&LayerWeights::q_norm>()).gguf_factor =
          scale;
      if (sizes_.has_own_kv()) {
        Norm(of_.k_norm, "attn_k_norm", c_.k_norm_size(l_), At<&LayerWeights::k_norm>());
      }
    }
    Linear(LinearGroup::kO, of_.o, "attn_output", {d_, sizes_.q_features()}, c_.o_bias);
  }

  // A file may have the linears from number `first` on in one tensor.
  void Joins(std::size_t first, std::string_view gguf) {
    std::int64_t all = 0;
    for (std::size_t i = first; i < rows_.size(); ++i) all += rows_[i].shape.out;
    std::int64_t begin = 0;
    for (std::size_t i = first; i < rows_.size(); ++i) {
      const std::int64_t out = rows_[i].shape.out;
      rows_[i].gguf.push_back({{Block(gguf) + ".weight", begin, out, all}});
      begin += out;
    }
  }

  void DeltaRule() {
    const DeltaRuleShape& shape = c_.delta_rule;
    const std::int64_t channels = c_.delta_conv_features();
    const std::int64_t values = c_.delta_value_features();
    if (c_.fused_delta) {
      Linear(LinearGroup::kQkv, "linear_attn.in_proj_qkvz", "attn_qkv", {channels + values, d_})
          .gguf = {PiecesByKeyHead()};
      Linear(LinearGroup::kQkv, "linear_attn.in_proj_ba", "ssm_ba", {2 * shape.heads, d_});
    } else {
      Linear(LinearGroup::kQkv, "linear_attn.in_proj_qkv", "attn_qkv", {channels, d_});
      MovesHeads(shape.value_dim);
      Linear(LinearGroup::kQkv, "linear_attn.in_proj_z", "attn_gate", {values, d_});
      MovesHeads(shape.value_dim);
      Linear(LinearGroup::kQkv, "linear_attn.in_proj_b", "ssm_beta", {shape.heads, d_});
      MovesHeads(1);
      Linear(LinearGroup::kQkv, "linear_attn.in_proj_a", "ssm_alpha", {shape.heads, d_});
      MovesHeads(1);
    }
    Conv("linear_attn.conv1d", "ssm_conv1d", channels);
    MovesHeads(shape.value_dim);
    Vector("linear_attn.dt_bias", "ssm_dt.bias", shape.heads,
           At<&LayerWeights::delta_rule, &DeltaRuleWeights::dt_bias>());
    MovesHeads(1);
    Vector("linear_attn.A_log", "ssm_a", shape.heads,
           At<&LayerWeights::delta_rule, &DeltaRuleWeights::rate>())
        .kind = TensorKind::kRate;
    MovesHeads(1);
    Vector("linear_attn.norm.weight", "ssm_norm.weight", shape.value_dim,
           At<&LayerWeights::delta_rule, &DeltaRuleWeights::norm>());
    LayerTensor& out = Linear(LinearGroup::kO, "linear_attn.out_proj", "ssm_out", {d_, values});
    out.order = TensorOrder::kValueColumns;
    out.head_rows = shape.value_dim;
  }

  // in_proj_qkvz goes from key head to key head, and llama.cpp has all q, all k, all v in one
  // tensor and all z in another. in_proj_ba stays.
  GgufSpelling PiecesByKeyHead() const {
    const DeltaRuleShape& shape = c_.delta_rule;
    const std::int64_t keys = shape.key_heads * shape.key_dim;
    const std::int64_t value = shape.heads / shape.key_heads * shape.value_dim;
    const std::int64_t channels = c_.delta_conv_features();
    const std::string qkv = Block("attn_qkv") + ".weight";
    const std::string gate = Block("attn_gate") + ".weight";
    GgufSpelling pieces;
    for (std::int64_t g = 0; g < shape.key_heads; ++g) {
      pieces.push_back({qkv, g * shape.key_dim, shape.key_dim, channels});
      pieces.push_back({qkv, keys + g * shape.key_dim, shape.key_dim, channels});
      pieces.push_back({qkv, 2 * keys + g * value, value, channels});
      pieces.push_back({gate, g * value, value, c_.delta_value_features()});
    }
    return pieces;
  }

  void ShortConv() {
    Linear(LinearGroup::kQkv, "conv.in_proj", "shortconv.in_proj", {3 * d_, d_}, c_.conv_bias);
    Conv("conv.conv", "shortconv.conv", d_);
    if (c_.conv_bias) {
      Vector("conv.conv.bias", "", d_, At<&LayerWeights::conv, &ConvWeights::bias>());
    }
    Linear(LinearGroup::kO, "conv.out_proj", "shortconv.out_proj", {d_, d_}, c_.conv_bias);
  }

  void DenseMlp() {
    const std::int64_t f = sizes_.intermediate_size;
    const auto mlp = [&](std::string_view name) { return fmt::format("{}.{}", of_.mlp, name); };
    const bool bias = c_.mlp_bias;
    if (!c_.fused_gate_up) {
      Linear(LinearGroup::kGateUp, mlp(of_.gate), "ffn_gate", {f, d_}, bias);
      Linear(LinearGroup::kGateUp, mlp(of_.up), "ffn_up", {f, d_}, bias);
    } else {
      // Gate and up in one matrix are called ffn_up.
      LayerTensor& row =
          Linear(LinearGroup::kGateUp, mlp(of_.gate_up), "ffn_up", {2 * f, d_}, bias);
      if (gguf_.splits_gate_up) {
        row.gguf = {{Whole(Block("ffn_gate"), f)[0], Whole(Block("ffn_up"), f)[0]}};
      }
    }
    Linear(LinearGroup::kDown, mlp(of_.down), "ffn_down", {d_, f}, bias);
  }

  void Router() {
    const std::int64_t experts = c_.moe.num_experts;
    const std::string router = RouterName(c_);
    LayerTensor& row = rows_.emplace_back();
    row.kind = TensorKind::kTable;
    row.name = router + ".weight";
    row.gguf = {Whole(Block("ffn_gate_inp"), experts)};
    row.shape = {experts, d_};
    if (c_.moe.expert_bias) {
      Vector(ExpertBiasName(c_), "exp_probs_b.bias", experts, At<&LayerWeights::expert_bias>());
    }
    if (c_.moe.router_bias) {
      Vector(router + ".bias", "ffn_gate_inp.bias", experts, At<&LayerWeights::router_bias>());
    }
  }

  LayerTensor& Expert(LinearGroup group, std::string_view name, std::string_view gguf,
                      const LinearShape& shape) {
    LayerTensor& row =
        Linear(group, fmt::format("{}.experts.*.{}", of_.mlp, name), gguf, shape, c_.mlp_bias);
    row.experts = c_.moe.num_experts;
    row.may_lack_bias = false;
    return row;
  }

  void Experts() {
    const std::int64_t f = sizes_.intermediate_size;
    const std::size_t first = rows_.size();
    Expert(LinearGroup::kGateUp, of_.gate, "ffn_gate_exps", {f, d_});
    Expert(LinearGroup::kGateUp, of_.up, "ffn_up_exps", {f, d_});
    Joins(first, "ffn_gate_up_exps");
    Expert(LinearGroup::kDown, of_.down, "ffn_down_exps", {d_, f});
    const std::int64_t shared = c_.moe.shared_intermediate_size;
    if (shared == 0) return;
    const std::string module = fmt::format("{}.shared_expert", of_.mlp);
    const auto part = [&](std::string_view name) { return fmt::format("{}.{}", module, name); };
    Linear(LinearGroup::kSharedIn, part(of_.gate), "ffn_gate_shexp", {shared, d_});
    Linear(LinearGroup::kSharedIn, part(of_.up), "ffn_up_shexp", {shared, d_});
    Linear(LinearGroup::kSharedIn, module + "_gate", "ffn_gate_inp_shexp", {1, d_});
    Linear(LinearGroup::kSharedOut, part(of_.down), "ffn_down_shexp", {d_, shared});
  }

  void PerLayer() {
    const std::int64_t p = c_.per_layer_size;
    Linear(LinearGroup::kPerLayerGate, "per_layer_input_gate", "inp_gate", {p, d_});
    Linear(LinearGroup::kPerLayerOut, "per_layer_projection", "proj", {d_, p});
    if (l_ > 0) return;
    const std::int64_t all = c_.per_layer_features();
    LayerTensor& row = Linear(LinearGroup::kPerLayerModel, kPerLayerModel, "", {all, d_});
    row.gguf = {Whole("per_layer_model_proj", all)};
    row.of_decoder = true;
  }

  void SideExperts() {
    const std::int64_t experts = c_.side_moe.num_experts;
    const std::int64_t m = c_.side_intermediate_size;
    LayerTensor& scale = Vector("router.scale", "ffn_gate_inp.scale", d_,
                                At<&LayerWeights::side, &SideWeights::router_norm>());
    scale.load_factor = 1 / std::sqrt(static_cast<double>(d_));
    scale.gguf_factor = std::sqrt(static_cast<float>(d_));
    Vector("router.per_expert_scale", "ffn_down_exps.scale", experts,
           At<&LayerWeights::side, &SideWeights::expert_scale>())
        .shape = {experts, 1};
    Norm("post_feedforward_layernorm_1", "post_ffw_norm_1", d_,
         At<&LayerWeights::side, &SideWeights::dense_norm>());
    Norm("pre_feedforward_layernorm_2", "pre_ffw_norm_2", d_,
         At<&LayerWeights::side, &SideWeights::norm>());
    Norm("post_feedforward_layernorm_2", "post_ffw_norm_2", d_,
         At<&LayerWeights::side, &SideWeights::sum_norm>());
    Linear(LinearGroup::kSideRouter, kSideRouter, "ffn_gate_inp", {experts, d_});
    for (const bool in : {true, false}) {
      LayerTensor& row =
          in ? Linear(LinearGroup::kSideIn, "experts.*.gate_up_proj", "ffn_gate_up_exps",
                      {2 * m, d_})
             : Linear(LinearGroup::kSideOut, "experts.*.down_proj", "ffn_down_exps", {d_, m});
      row.experts = experts;
      row.is_stacked = true;
    }
  }

  void CountPlaces() {
    for (LayerTensor& row : rows_) {
      if (row.kind != TensorKind::kLinear) continue;
      for (LayerTensor& other : rows_) {
        if (other.kind != TensorKind::kLinear || other.group != row.group) continue;
        if (&other < &row) ++row.place;
        ++row.places;
      }
    }
  }

  const DecoderConfig& c_;
  const ModuleNames& of_;
  LayerConfig sizes_;
  std::int64_t l_;
  std::int64_t d_;
  const GgufFamily& gguf_;
  std::vector<LayerTensor> rows_;
};

}  // namespace

std::string LayerTensor::Module(std::int64_t expert) const {
  std::string module = StemOf(name);
  const std::size_t star = module.find('*');
  return star == std::string::npos ? module : module.replace(star, 1, std::to_string(expert));
}

std::string LayerTensor::ModuleIn(std::string_view decoder, std::int64_t layer,
                                  std::int64_t expert) const {
  return Before(decoder, layer) + Module(expert);
}

std::string LayerTensor::TensorIn(std::string_view decoder, std::int64_t layer) const {
  if (!is_stacked) return Before(decoder, layer) + name;
  std::string parameter = StemOf(name);
  return Before(decoder, layer) + parameter.erase(parameter.find("*."), 2);
}

std::string LayerTensor::Before(std::string_view decoder, std::int64_t layer) const {
  return of_decoder ? std::string(decoder) : fmt::format("{}layers.{}.", decoder, layer);
}

std::vector<LayerTensor> LayerTensors(const DecoderConfig& config, std::int64_t layer) {
  return Lister(config, layer, config.layer(layer)).Run();
}

bool IsUnreadKv(const DecoderConfig& config, std::int64_t layer, std::string_view name) {
  if (layer < 0 || layer >= config.num_hidden_layers || config.layers[layer].has_own_kv()) {
    return false;
  }
  const auto is_among = [&](const std::vector<LayerTensor>& rows) {
    return std::ranges::any_of(rows, [&](const LayerTensor& row) {
      return name.starts_with(StemOf(row.name) + ".") ||
             (!row.gguf.empty() && name == row.gguf[0][0].tensor);
    });
  };
  LayerConfig own = config.layer(layer);
  own.kv_layer = -1;
  own.k_is_v = false;
  return is_among(Lister(config, layer, own).Run()) && !is_among(LayerTensors(config, layer));
}

std::vector<DecoderTensor> DecoderTensors(const DecoderConfig& config) {
  std::vector<DecoderTensor> rows;
  const auto add = [&](TensorKind kind, std::string_view name, std::string_view gguf,
                       const LinearShape& shape) -> DecoderTensor& {
    DecoderTensor& row = rows.emplace_back();
    row.kind = kind;
    row.name = fmt::format("{}.weight", name);
    row.gguf = {Whole(std::string(gguf), shape.out)};
    row.shape = shape;
    return row;
  };
  const LinearShape table{config.vocab_size, config.hidden_size};
  const GgufFamily& family = GgufFamilyOf(config.model_type);
  add(TensorKind::kTable, config.names.embedding, StemOf(kGgufEmbedding), table).table =
      &DecoderWeights::embed;
  const auto add_vector = [&](DecoderTensor& row, auto vector, auto scaled, double scale) {
    row.vector = vector;
    row.scaled = scaled;
    row.scale = scale;
  };
  add_vector(
      add(TensorKind::kNorm, config.names.final_norm, family.final_norm, {1, config.hidden_size}),
      &DecoderWeights::final_norm, &DecoderWeights::head_norm, config.logit_scale);
  add(TensorKind::kTable, "lm_head", StemOf(kGgufHead), table).table = &DecoderWeights::head;
  if (config.per_layer_size > 0) {
    add(TensorKind::kTable, "embed_tokens_per_layer", "per_layer_token_embd",
        {config.per_layer_vocab, config.per_layer_features()})
        .table = &DecoderWeights::per_layer_embed;
    add_vector(add(TensorKind::kVector, "per_layer_projection_norm", "per_layer_proj_norm",
                   {1, config.per_layer_size}),
               &DecoderWeights::per_layer_norm, &DecoderWeights::per_layer_half,
               std::numbers::sqrt2 / 2);
  }
  return rows;
}

std::string StemOf(std::string_view tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (tensor.ends_with(kWeight)) tensor.remove_suffix(kWeight.size());
  return std::string(tensor);
}

std::string RateName(const std::string& a_log) {
  return a_log.substr(0, a_log.rfind('.') + 1) + "rate";
}

}  // namespace qlora
