// Small decoders, one for each thing that families compute otherwise.
#ifndef TESTS_PASS_DECODER_FAMILIES_H_
#define TESTS_PASS_DECODER_FAMILIES_H_

#include <string>
#include <vector>

#include "pass/random_decoder.h"

namespace qlora {

struct TestedFamily {
  std::string name;
  DecoderConfig config;
};

inline std::vector<TestedFamily> Families() {
  std::vector<TestedFamily> families;
  const auto add = [&](const std::string& name, auto&& change) {
    DecoderConfig c = TinyConfig();
    change(c);
    families.push_back({name, c});
  };
  add("Llama", [](DecoderConfig&) {});
  add("TiedMqa", [](DecoderConfig& c) {
    c.tie_word_embeddings = true;
    c.num_key_value_heads = 1;
  });
  add("Mistral", [](DecoderConfig& c) {
    for (LayerConfig& layer : c.layers) layer.window = 3;
  });
  add("Qwen2", [](DecoderConfig& c) { c.qkv_bias = true; });
  add("Qwen3", [](DecoderConfig& c) { c.qk_norm = QkNorm::kHeads; });
  add("AllBiases", [](DecoderConfig& c) { c.qkv_bias = c.o_bias = c.mlp_bias = true; });
  add("Gemma2", [](DecoderConfig& c) {
    c.post_norms = true;
    c.hidden_act = Activation::kGeluTanh;
    c.embed_scale = 4;
    c.attention_softcap = 2;
    c.final_softcap = 3;
    c.layers[0].window = 4;
  });
  add("Gemma3", [](DecoderConfig& c) {
    c.post_norms = true;
    c.qk_norm = QkNorm::kHeads;
    c.hidden_act = Activation::kGeluTanh;
    c.ropes.push_back(c.ropes[0]);
    c.ropes[1].rope_theta = 100;
    c.layers[0] = {4, 1};
  });
  add("Phi3", [](DecoderConfig& c) {
    c.fused_qkv = c.fused_gate_up = true;
    c.ropes[0].rotary_dim = 4;
  });
  add("SmolLM3", [](DecoderConfig& c) { c.layers[1].rope = -1; });
  add("Qwen3Moe", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.moe = {5, 2, false};
  });
  add("Mixtral", [](DecoderConfig& c) { c.moe = {4, 2, true}; });
  const auto gpt_oss = [](DecoderConfig& c) {
    c.qkv_bias = c.o_bias = c.mlp_bias = c.sinks = true;
    c.hidden_act = Activation::kClampedSwiglu;
    c.moe = {
        .num_experts = 4, .num_experts_per_tok = 2, .norm_topk_prob = true, .router_bias = true};
    c.layers[0].window = 3;
  };
  add("GptOss", gpt_oss);
  add("GptOssWithOneAOfGateAndUp", [=](DecoderConfig& c) {
    gpt_oss(c);
    c.moe.is_joined = true;
  });
  add("Granite", [](DecoderConfig& c) {
    c.qkv_bias = c.o_bias = c.mlp_bias = true;
    c.embed_scale = 3;
    c.residual_scale = 0.3f;
  });
  add("Ministral3", [](DecoderConfig& c) {
    c.ropes.push_back(c.ropes[0]);
    c.ropes[1].query_scale_beta = 0.5;
    c.ropes[1].original_max_position_embeddings = 3;
    for (LayerConfig& layer : c.layers) layer.query_rope = 1;
  });
  add("Olmo2", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kProjection;
    c.input_norms = false;
    c.post_norms = true;
  });
  add("Hunyuan", [](DecoderConfig& c) { c.qk_norm = QkNorm::kRotatedHeads; });
  add("Glm4", [](DecoderConfig& c) {
    c.post_norms = c.fused_gate_up = true;
    c.ropes[0].interleaved = true;
    c.ropes[0].rotary_dim = 4;
  });
  add("GatedHeads", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.output_gate = OutputGate::kHeads;
    c.post_norms = true;
  });
  // As Spark: layers with a window rotate whole heads, the others a part of them.
  add("GatedHeadsBesidePackedRows", [](DecoderConfig& c) {
    c.fused_qkv = true;
    c.qkv_bias = true;
    c.output_gate = OutputGate::kHeads;
    c.hidden_act = Activation::kGelu;
    c.ropes.push_back(c.ropes[0]);
    c.ropes[0].rotary_dim = 4;
    c.ropes[1].rope_theta = 100;
    c.layers[0] = {4, 1};
  });
  // As LFM3: of a head that sees everything, only the first pairs turn.
  add("GatedHeadsAndConvolutions", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.output_gate = OutputGate::kHeads;
    c.post_norms = true;
    c.conv_taps = 7;
    c.num_hidden_layers = 3;
    c.ropes.push_back(c.ropes[0]);
    c.ropes[0].divisors = {1, HUGE_VAL, HUGE_VAL};
    c.ropes[1].rope_theta = 100;
    c.layers = {{.rope = -1, .mixer = Mixer::kShortConv}, {}, {.window = 4, .rope = 1}};
  });
  const auto delta_rule = [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.output_gate = OutputGate::kFull;
    c.ropes[0].rotary_dim = 2;
    c.layers[0] = {.rope = -1, .mixer = Mixer::kDeltaRule};
    c.conv_taps = 4;
    c.delta_rule = {.heads = 4, .key_heads = 2, .key_dim = 3, .value_dim = 5};
  };
  add("Qwen3_5", delta_rule);
  add("Qwen3_5OfGguf", [=](DecoderConfig& c) {
    delta_rule(c);
    c.delta_rule.tiled = true;
  });
  add("Qwen3_5Moe", [=](DecoderConfig& c) {
    delta_rule(c);
    c.moe = {.num_experts = 5,
             .num_experts_per_tok = 2,
             .norm_topk_prob = true,
             .shared_intermediate_size = 9};
  });
  add("Qwen3Next", [=](DecoderConfig& c) {
    delta_rule(c);
    c.fused_delta = true;
    c.moe = {.num_experts = 4,
             .num_experts_per_tok = 3,
             .norm_topk_prob = true,
             .shared_intermediate_size = 7};
  });
  add("Lfm2Moe", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.layers[0] = {
        .rope = -1, .intermediate_size = 26, .mixer = Mixer::kShortConv, .is_dense = true};
    c.conv_taps = 3;
    c.moe = {.num_experts = 5,
             .num_experts_per_tok = 2,
             .norm_topk_prob = true,
             .score = RouterScore::kSigmoid,
             .expert_bias = true,
             .routed_scaling_factor = 1.5f};
  });
  add("Lfm2", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.layers[0] = {.rope = -1, .mixer = Mixer::kShortConv};
    c.conv_taps = 3;
    c.conv_bias = true;
  });
  add("Gemma4", [](DecoderConfig& c) { c = TinyGemma4(false); });
  add("Gemma4E", [](DecoderConfig& c) { c = TinyGemma4(true); });
  for (const bool shared : {false, true}) {
    add(shared ? "Gemma4EExperts" : "Gemma4Experts", [=](DecoderConfig& c) {
      c = TinyGemma4(shared);
      c.side_moe = {5, 2, true};
      c.side_intermediate_size = 7;
    });
  }
  add("LayersOfTheirOwnSizes", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.layers[0] = {.num_key_value_heads = 1, .intermediate_size = 12};
    c.layers[1] = {.num_attention_heads = 2, .head_dim = 10};
  });
  return families;
}

}  // namespace qlora

#endif  // TESTS_PASS_DECODER_FAMILIES_H_
