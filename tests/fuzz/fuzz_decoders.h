// Models that fuzzers read adapters for: a dense one, whose rows llama.cpp reorders, and one with
// experts. Their tables are not tied.
#ifndef QLORA_TESTS_FUZZ_FUZZ_DECODERS_H_
#define QLORA_TESTS_FUZZ_FUZZ_DECODERS_H_

#include <cstdlib>
#include <vector>

#include "adapter/lora_values.h"
#include "config/config.h"
#include "io/json.h"

namespace qlora {

inline std::vector<DecoderConfig> FuzzDecoders() {
  Json json = {{"model_type", "llama"},
               {"architectures", {"LlamaForCausalLM"}},
               {"hidden_size", 4},
               {"intermediate_size", 6},
               {"num_hidden_layers", 1},
               {"num_attention_heads", 2},
               {"num_key_value_heads", 1},
               {"head_dim", 2},
               {"vocab_size", 5},
               {"max_position_embeddings", 64},
               {"rms_norm_eps", 1e-6},
               {"rope_theta", 1e4},
               {"tie_word_embeddings", false}};
  std::vector<DecoderConfig> decoders = {ParseDecoderConfig(json, "llama")};
  json.update({{"model_type", "qwen3_moe"},
               {"architectures", {"Qwen3MoeForCausalLM"}},
               {"num_experts", 2},
               {"num_experts_per_tok", 1},
               {"moe_intermediate_size", 3},
               {"norm_topk_prob", true}});
  decoders.push_back(ParseDecoderConfig(json, "qwen3_moe"));
  return decoders;
}

// What all readers of adapters promise.
inline void CheckValues(const AdapterValues& values) {
  for (const LoraValues& module : values.modules) {
    const bool fits = module.rank > 0 && std::ssize(module.a) == module.rank * module.in &&
                      std::ssize(module.b) == module.out * module.rank;
    if (!fits) std::abort();
  }
}

}  // namespace qlora

#endif  // QLORA_TESTS_FUZZ_FUZZ_DECODERS_H_
