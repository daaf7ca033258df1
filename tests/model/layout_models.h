// Configurations of small models whose weights and adapters are stored in many layouts.
#ifndef QLORA_TESTS_MODEL_LAYOUT_MODELS_H_
#define QLORA_TESTS_MODEL_LAYOUT_MODELS_H_

#include <string>

#include "io/json.h"

namespace qlora {

inline Json LayoutModel(const std::string& model_type, const Json& more) {
  Json json = {{"model_type", model_type},
               {"hidden_size", 16},
               {"intermediate_size", 24},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"head_dim", 4},
               {"vocab_size", 20},
               {"rms_norm_eps", 1e-5},
               {"max_position_embeddings", 64}};
  json.update(more);
  return json;
}

// The keys of some kinds of layers.
struct LayoutParts {
  LayoutParts() {
    delta_rule.update({{"shared_expert_intermediate_size", 8},
                       {"partial_rotary_factor", 0.5},
                       {"layer_types", {"linear_attention", "full_attention"}},
                       {"linear_num_key_heads", 2},
                       {"linear_num_value_heads", 4},
                       {"linear_key_head_dim", 4},
                       {"linear_value_head_dim", 4},
                       {"linear_conv_kernel_dim", 3}});
    convolutions.update({{"layer_types", {"conv", "full_attention"}}, {"num_dense_layers", 1}});
  }

  Json experts = {{"num_experts", 3}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 12}};
  Json delta_rule = experts;    // beside experts
  Json convolutions = experts;  // likewise
};

}  // namespace qlora

#endif  // QLORA_TESTS_MODEL_LAYOUT_MODELS_H_
