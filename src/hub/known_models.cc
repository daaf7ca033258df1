#include "hub/known_models.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace qlora {
namespace {

constexpr std::int64_t k128K = 131072;

// The keys of config.json that differ inside a family; families.cc has the others.
struct KnownModel {
  const char* name;
  const char* repository;  // of the hub; of several, that of the base model
  const char* model_type;
  std::int64_t vocab_size;
  std::int64_t hidden_size;
  std::int64_t intermediate_size;  // of one expert in a mixture
  std::int64_t num_hidden_layers;
  std::int64_t num_attention_heads;
  std::int64_t num_key_value_heads;
  std::int64_t head_dim;
  std::int64_t max_position_embeddings;
  bool tie_word_embeddings = false;
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
};

// Source: the config.json that the publishers keep next to the weights. The columns are the fields
// of KnownModel in their order:
//
//   name, repository, type,  V, D, F, L,  H, G, K, positions,  tied, experts, experts per token
constexpr auto kKnownModels = std::to_array<KnownModel>({
    {"Llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama", 32000, 4096, 11008, 32, 32, 32, 128, 4096},
    {"Llama-2-13b", "meta-llama/Llama-2-13b-hf", "llama", 32000, 5120, 13824, 40, 40, 40, 128,
     4096},
    {"Llama-2-70b", "meta-llama/Llama-2-70b-hf", "llama", 32000, 8192, 28672, 80, 64, 8, 128, 4096},
    {"Llama-3-8B", "meta-llama/Meta-Llama-3-8B", "llama", 128256, 4096, 14336, 32, 32, 8, 128,
     8192},
    {"Llama-3-70B", "meta-llama/Meta-Llama-3-70B", "llama", 128256, 8192, 28672, 80, 64, 8, 128,
     8192},
    {"Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "llama", 128256, 4096, 14336, 32, 32, 8, 128,
     k128K},
    {"Llama-3.1-70B", "meta-llama/Llama-3.1-70B", "llama", 128256, 8192, 28672, 80, 64, 8, 128,
     k128K},
    {"Llama-3.1-405B", "meta-llama/Llama-3.1-405B", "llama", 128256, 16384, 53248, 126, 128, 8, 128,
     k128K},
    {"Llama-3.2-1B", "meta-llama/Llama-3.2-1B", "llama", 128256, 2048, 8192, 16, 32, 8, 64, k128K,
     true},
    {"Llama-3.2-3B", "meta-llama/Llama-3.2-3B", "llama", 128256, 3072, 8192, 28, 24, 8, 128, k128K,
     true},
    {"Llama-3.3-70B", "meta-llama/Llama-3.3-70B-Instruct", "llama", 128256, 8192, 28672, 80, 64, 8,
     128, k128K},
    {"TinyLlama-1.1B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "llama", 32000, 2048, 5632, 22, 32, 4,
     64, 2048},
    {"Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.1", "mistral", 32000, 4096, 14336, 32, 32, 8, 128,
     32768},
    {"Mistral-7B-v0.3", "mistralai/Mistral-7B-v0.3", "mistral", 32768, 4096, 14336, 32, 32, 8, 128,
     32768},
    {"Mistral-Nemo-2407", "mistralai/Mistral-Nemo-Base-2407", "mistral", 131072, 5120, 14336, 40,
     32, 8, 128, k128K},
    {"Mistral-Small-24B", "mistralai/Mistral-Small-24B-Base-2501", "mistral", 131072, 5120, 32768,
     40, 32, 8, 128, 32768},
    {"Mixtral-8x7B", "mistralai/Mixtral-8x7B-v0.1", "mixtral", 32000, 4096, 14336, 32, 32, 8, 128,
     32768, false, 8, 2},
    {"Mixtral-8x22B", "mistralai/Mixtral-8x22B-v0.1", "mixtral", 32768, 6144, 16384, 56, 48, 8, 128,
     65536, false, 8, 2},
    {"Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", "qwen2", 151936, 896, 4864, 24, 14, 2, 64, 32768, true},
    {"Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B", "qwen2", 151936, 1536, 8960, 28, 12, 2, 128, k128K, true},
    {"Qwen2.5-3B", "Qwen/Qwen2.5-3B", "qwen2", 151936, 2048, 11008, 36, 16, 2, 128, 32768, true},
    {"Qwen2.5-7B", "Qwen/Qwen2.5-7B", "qwen2", 152064, 3584, 18944, 28, 28, 4, 128, k128K},
    {"Qwen2.5-14B", "Qwen/Qwen2.5-14B", "qwen2", 152064, 5120, 13824, 48, 40, 8, 128, k128K},
    {"Qwen2.5-32B", "Qwen/Qwen2.5-32B", "qwen2", 152064, 5120, 27648, 64, 40, 8, 128, k128K},
    {"Qwen2.5-72B", "Qwen/Qwen2.5-72B", "qwen2", 152064, 8192, 29568, 80, 64, 8, 128, k128K},
    {"Qwen2.5-Coder-0.5B", "Qwen/Qwen2.5-Coder-0.5B", "qwen2", 151936, 896, 4864, 24, 14, 2, 64,
     32768, true},
    {"Qwen2.5-Coder-1.5B", "Qwen/Qwen2.5-Coder-1.5B", "qwen2", 151936, 1536, 8960, 28, 12, 2, 128,
     32768, true},
    {"Qwen2.5-Coder-3B", "Qwen/Qwen2.5-Coder-3B", "qwen2", 151936, 2048, 11008, 36, 16, 2, 128,
     32768, true},
    {"Qwen2.5-Coder-7B", "Qwen/Qwen2.5-Coder-7B", "qwen2", 152064, 3584, 18944, 28, 28, 4, 128,
     32768},
    {"Qwen2.5-Coder-14B", "Qwen/Qwen2.5-Coder-14B", "qwen2", 152064, 5120, 13824, 48, 40, 8, 128,
     32768},
    {"Qwen2.5-Coder-32B", "Qwen/Qwen2.5-Coder-32B", "qwen2", 152064, 5120, 27648, 64, 40, 8, 128,
     32768},
    {"DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "qwen2", 151936,
     1536, 8960, 28, 12, 2, 128, k128K},
    {"DeepSeek-R1-Distill-Qwen-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2", 152064,
     3584, 18944, 28, 28, 4, 128, k128K},
    {"DeepSeek-R1-Distill-Llama-8B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama", 128256,
     4096, 14336, 32, 32, 8, 128, k128K},
    {"DeepSeek-R1-Distill-Qwen-14B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen2", 152064,
     5120, 13824, 48, 40, 8, 128, k128K},
    {"DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2", 152064,
     5120, 27648, 64, 40, 8, 128, k128K},
    {"DeepSeek-R1-Distill-Llama-70B", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama", 128256,
     8192, 28672, 80, 64, 8, 128, k128K},
    {"Qwen3-0.6B", "Qwen/Qwen3-0.6B", "qwen3", 151936, 1024, 3072, 28, 16, 8, 128, 40960, true},
    {"Qwen3-1.7B", "Qwen/Qwen3-1.7B", "qwen3", 151936, 2048, 6144, 28, 16, 8, 128, 40960, true},
    {"Qwen3-4B", "Qwen/Qwen3-4B", "qwen3", 151936, 2560, 9728, 36, 32, 8, 128, 40960, true},
    {"Qwen3-8B", "Qwen/Qwen3-8B", "qwen3", 151936, 4096, 12288, 36, 32, 8, 128, 40960},
    {"Qwen3-14B", "Qwen/Qwen3-14B", "qwen3", 151936, 5120, 17408, 40, 40, 8, 128, 40960},
    {"Qwen3-32B", "Qwen/Qwen3-32B", "qwen3", 151936, 5120, 25600, 64, 64, 8, 128, 40960},
    {"Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", "qwen3_moe", 151936, 2048, 768, 48, 32, 4, 128, 40960,
     false, 128, 8},
    {"Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B", "qwen3_moe", 151936, 4096, 1536, 94, 64, 4, 128,
     40960, false, 128, 8},
    {"gemma-2-2b", "google/gemma-2-2b", "gemma2", 256000, 2304, 9216, 26, 8, 4, 256, 8192, true},
    {"gemma-2-9b", "google/gemma-2-9b", "gemma2", 256000, 3584, 14336, 42, 16, 8, 256, 8192, true},
    {"gemma-2-27b", "google/gemma-2-27b", "gemma2", 256000, 4608, 36864, 46, 32, 16, 128, 8192,
     true},
    {"gemma-3-270m", "google/gemma-3-270m", "gemma3_text", 262144, 640, 2048, 18, 4, 1, 256, 32768,
     true},
    {"gemma-3-1b", "google/gemma-3-1b-pt", "gemma3_text", 262144, 1152, 6912, 26, 4, 1, 256, 32768,
     true},
    {"gemma-3-4b", "google/gemma-3-4b-pt", "gemma3_text", 262208, 2560, 10240, 34, 8, 4, 256, k128K,
     true},
    {"gemma-3-12b", "google/gemma-3-12b-pt", "gemma3_text", 262208, 3840, 15360, 48, 16, 8, 256,
     k128K, true},
    {"gemma-3-27b", "google/gemma-3-27b-pt", "gemma3_text", 262208, 5376, 21504, 62, 32, 16, 128,
     k128K, true},
    {"Phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", "phi3", 32064, 3072, 8192, 32, 32, 32, 96,
     4096},
    {"Phi-3-medium", "microsoft/Phi-3-medium-4k-instruct", "phi3", 32064, 5120, 17920, 40, 40, 10,
     128, 4096},
    {"Phi-3.5-mini", "microsoft/Phi-3.5-mini-instruct", "phi3", 32064, 3072, 8192, 32, 32, 32, 96,
     k128K},
    {"phi-4", "microsoft/phi-4", "phi3", 100352, 5120, 17920, 40, 40, 10, 128, 16384},
    {"Phi-4-mini", "microsoft/Phi-4-mini-instruct", "phi3", 200064, 3072, 8192, 32, 24, 8, 128,
     k128K, true},
    {"SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", "llama", 49152, 576, 1536, 30, 9, 3, 64, 8192,
     true},
    {"SmolLM2-360M", "HuggingFaceTB/SmolLM2-360M", "llama", 49152, 960, 2560, 32, 15, 5, 64, 8192,
     true},
    {"SmolLM2-1.7B", "HuggingFaceTB/SmolLM2-1.7B", "llama", 49152, 2048, 8192, 24, 32, 32, 64, 8192,
     true},
    {"SmolLM3-3B", "HuggingFaceTB/SmolLM3-3B", "smollm3", 128256, 2048, 11008, 36, 16, 4, 128,
     65536, true},
});

// Words of a name that do not change the shape.
constexpr std::array<std::string_view, 22> kSilentWords = {
    "meta",     "unsloth", "instruct", "it",   "pt",   "chat", "base", "hf",
    "bnb",      "4bit",    "v0.1",     "v0.2", "v1.0", "2407", "2501", "2507",
    "thinking", "4k",      "8k",       "128k", "bf16", "text"};

// The name in lower case, without the organisation, the revision after '@' and the silent words:
// "meta-llama/Meta-Llama-3.1-8B-Instruct@main" -> "llama-3.1-8b".
std::string PlainName(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);  // npos + 1 is 0
  name = name.substr(0, name.find('@'));
  const std::string lower = LowerCase(name);
  std::string plain;
  std::string_view rest = lower;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find('-'));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    // Whole words between dashes: "it" is silent in gemma-2-2b-it, but not in a name that contains
    // it.
    if (std::find(kSilentWords.begin(), kSilentWords.end(), word) != kSilentWords.end()) continue;
    plain += plain.empty() ? "" : "-";
    plain += word;
  }
  return plain;
}

const KnownModel* FindKnown(std::string_view name) {
  const std::string plain = PlainName(name);
  const auto* known =
      std::find_if(kKnownModels.begin(), kKnownModels.end(),
                   // Both sides are stripped, because names of the table have silent words too
                   // (v0.1, 2407).
                   [&](const auto& model) { return PlainName(model.name) == plain; });
  return known == kKnownModels.end() ? nullptr : known;
}

// A config.json, so that a name and a downloaded model give the same plan. Both spellings of the
// number of experts are given; each family reads its own.
Json ConfigOf(const KnownModel& model) {
  Json config = {{"model_type", model.model_type},
                 {"vocab_size", model.vocab_size},
                 {"hidden_size", model.hidden_size},
                 {"intermediate_size", model.intermediate_size},
                 {"num_hidden_layers", model.num_hidden_layers},
                 {"num_attention_heads", model.num_attention_heads},
                 {"num_key_value_heads", model.num_key_value_heads},
                 // Given even where D / H is the same, since not all families have that default.
                 {"head_dim", model.head_dim},
                 {"max_position_embeddings", model.max_position_embeddings},
                 {"tie_word_embeddings", model.tie_word_embeddings}};
  if (model.num_experts > 0) {
    // Mixtral has num_local_experts, Qwen num_experts and moe_intermediate_size.
    config["num_local_experts"] = config["num_experts"] = model.num_experts;
    config["num_experts_per_tok"] = model.num_experts_per_tok;
    config["moe_intermediate_size"] = model.intermediate_size;
  }
  return config;
}

}  // namespace

std::optional<Json> KnownModelConfig(std::string_view name) {
  const KnownModel* known = FindKnown(name);
  return known == nullptr ? std::nullopt : std::optional(ConfigOf(*known));
}

// The organisation has the other versions of the shape as well, such as -Instruct.
std::string KnownRepository(std::string_view name) {
  const KnownModel* known = FindKnown(name);
  // Without a guess: a wrong repository would be gigabytes of download.
  if (known == nullptr) return {};
  // The name of the table itself: the repository may be called otherwise (Meta-Llama-3-8B).
  if (LowerCase(name) == LowerCase(known->name)) return known->repository;
  const std::string_view repository = known->repository;
  return std::string(repository.substr(0, repository.find('/') + 1)).append(name);
}

std::vector<std::string> KnownModelNames() {
  std::vector<std::string> names;
  for (const KnownModel& model : kKnownModels) names.emplace_back(model.name);
  return names;
}

}  // namespace qlora
