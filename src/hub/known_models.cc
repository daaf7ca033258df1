#include "hub/known_models.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "base/spelling.h"
#include "base/text.h"

namespace qlora {
namespace {

constexpr std::int64_t k128K = 131072;
constexpr std::int64_t k256K = 262144;
constexpr std::int64_t k1M = 1048576;

// The keys of config.json that differ inside a family; family_table.cc has the others.
struct KnownShape {
  std::int64_t V = 0;       // vocab_size
  std::int64_t D = 0;       // hidden_size
  std::int64_t F = 0;       // intermediate_size, of one expert in a mixture
  std::int64_t L = 0;       // num_hidden_layers
  std::int64_t H = 0;       // num_attention_heads
  std::int64_t G = 0;       // num_key_value_heads
  std::int64_t K = 0;       // head_dim
  std::int64_t T = 0;       // max_position_embeddings
  bool tied = false;        // tie_word_embeddings
  std::int64_t E = 0;       // num_experts
  std::int64_t top_k = 0;   // num_experts_per_tok
  std::int64_t Hv = 0;      // linear_num_value_heads (Qwen3.5)
  std::int64_t period = 0;  // every so many layers, one sees everything; 0: all do
  // Gemma 4.
  std::int64_t shared = 0;  // num_kv_shared_layers
  std::int64_t P = 0;       // hidden_size_per_layer_input
  std::int64_t Gg = 0;      // num_global_key_value_heads; 0: values are not keys
  bool wide = false;        // use_double_wide_mlp
};
struct KnownModel {
  const char* name;
  const char* repository;  // of the hub; of several, the base model's
  const char* model_type;
  KnownShape shape;
};

// Source: the config.json that the publishers keep next to the weights.
// A row has its names on one line and its shape on the next.
// clang-format off
constexpr auto kKnownModels = std::to_array<KnownModel>({
    {"Llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama",
     {.V = 32000, .D = 4096, .F = 11008, .L = 32, .H = 32, .G = 32, .K = 128, .T = 4096}},
    {"Llama-2-13b", "meta-llama/Llama-2-13b-hf", "llama",
     {.V = 32000, .D = 5120, .F = 13824, .L = 40, .H = 40, .G = 40, .K = 128, .T = 4096}},
    {"Llama-2-70b", "meta-llama/Llama-2-70b-hf", "llama",
     {.V = 32000, .D = 8192, .F = 28672, .L = 80, .H = 64, .G = 8, .K = 128, .T = 4096}},
    {"Llama-3-8B", "meta-llama/Meta-Llama-3-8B", "llama",
     {.V = 128256, .D = 4096, .F = 14336, .L = 32, .H = 32, .G = 8, .K = 128, .T = 8192}},
    {"Llama-3-70B", "meta-llama/Meta-Llama-3-70B", "llama",
     {.V = 128256, .D = 8192, .F = 28672, .L = 80, .H = 64, .G = 8, .K = 128, .T = 8192}},
    {"Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "llama",
     {.V = 128256, .D = 4096, .F = 14336, .L = 32, .H = 32, .G = 8, .K = 128, .T = k128K}},
    {"Llama-3.1-70B", "meta-llama/Llama-3.1-70B", "llama",
     {.V = 128256, .D = 8192, .F = 28672, .L = 80, .H = 64, .G = 8, .K = 128, .T = k128K}},
    {"Llama-3.1-405B", "meta-llama/Llama-3.1-405B", "llama",
     {.V = 128256, .D = 16384, .F = 53248, .L = 126, .H = 128, .G = 8, .K = 128, .T = k128K}},
    {"Llama-3.2-1B", "meta-llama/Llama-3.2-1B", "llama",
     {.V = 128256, .D = 2048, .F = 8192, .L = 16, .H = 32, .G = 8, .K = 64, .T = k128K, .tied = true}},
    {"Llama-3.2-3B", "meta-llama/Llama-3.2-3B", "llama",
     {.V = 128256, .D = 3072, .F = 8192, .L = 28, .H = 24, .G = 8, .K = 128, .T = k128K, .tied = true}},
    {"Llama-3.3-70B", "meta-llama/Llama-3.3-70B-Instruct", "llama",
     {.V = 128256, .D = 8192, .F = 28672, .L = 80, .H = 64, .G = 8, .K = 128, .T = k128K}},
    {"TinyLlama-1.1B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "llama",
     {.V = 32000, .D = 2048, .F = 5632, .L = 22, .H = 32, .G = 4, .K = 64, .T = 2048}},
    {"Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.1", "mistral",
     {.V = 32000, .D = 4096, .F = 14336, .L = 32, .H = 32, .G = 8, .K = 128, .T = 32768}},
    {"Mistral-7B-v0.3", "mistralai/Mistral-7B-v0.3", "mistral",
     {.V = 32768, .D = 4096, .F = 14336, .L = 32, .H = 32, .G = 8, .K = 128, .T = 32768}},
    {"Mistral-Nemo-2407", "mistralai/Mistral-Nemo-Base-2407", "mistral",
     {.V = 131072, .D = 5120, .F = 14336, .L = 40, .H = 32, .G = 8, .K = 128, .T = k128K}},
    {"Mistral-Small-24B", "mistralai/Mistral-Small-24B-Base-2501", "mistral",
     {.V = 131072, .D = 5120, .F = 32768, .L = 40, .H = 32, .G = 8, .K = 128, .T = 32768}},
    {"Mixtral-8x7B", "mistralai/Mixtral-8x7B-v0.1", "mixtral",
     {.V = 32000, .D = 4096, .F = 14336, .L = 32, .H = 32, .G = 8, .K = 128, .T = 32768,
      .E = 8, .top_k = 2}},
    {"Mixtral-8x22B", "mistralai/Mixtral-8x22B-v0.1", "mixtral",
     {.V = 32768, .D = 6144, .F = 16384, .L = 56, .H = 48, .G = 8, .K = 128, .T = 65536,
      .E = 8, .top_k = 2}},
    {"Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", "qwen2",
     {.V = 151936, .D = 896, .F = 4864, .L = 24, .H = 14, .G = 2, .K = 64, .T = 32768, .tied = true}},
    {"Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B", "qwen2",
     {.V = 151936, .D = 1536, .F = 8960, .L = 28, .H = 12, .G = 2, .K = 128, .T = k128K, .tied = true}},
    {"Qwen2.5-3B", "Qwen/Qwen2.5-3B", "qwen2",
     {.V = 151936, .D = 2048, .F = 11008, .L = 36, .H = 16, .G = 2, .K = 128, .T = 32768, .tied = true}},
    {"Qwen2.5-7B", "Qwen/Qwen2.5-7B", "qwen2",
     {.V = 152064, .D = 3584, .F = 18944, .L = 28, .H = 28, .G = 4, .K = 128, .T = k128K}},
    {"Qwen2.5-14B", "Qwen/Qwen2.5-14B", "qwen2",
     {.V = 152064, .D = 5120, .F = 13824, .L = 48, .H = 40, .G = 8, .K = 128, .T = k128K}},
    {"Qwen2.5-32B", "Qwen/Qwen2.5-32B", "qwen2",
     {.V = 152064, .D = 5120, .F = 27648, .L = 64, .H = 40, .G = 8, .K = 128, .T = k128K}},
    {"Qwen2.5-72B", "Qwen/Qwen2.5-72B", "qwen2",
     {.V = 152064, .D = 8192, .F = 29568, .L = 80, .H = 64, .G = 8, .K = 128, .T = k128K}},
    {"Qwen2.5-Coder-0.5B", "Qwen/Qwen2.5-Coder-0.5B", "qwen2",
     {.V = 151936, .D = 896, .F = 4864, .L = 24, .H = 14, .G = 2, .K = 64, .T = 32768, .tied = true}},
    {"Qwen2.5-Coder-1.5B", "Qwen/Qwen2.5-Coder-1.5B", "qwen2",
     {.V = 151936, .D = 1536, .F = 8960, .L = 28, .H = 12, .G = 2, .K = 128, .T = 32768, .tied = true}},
    {"Qwen2.5-Coder-3B", "Qwen/Qwen2.5-Coder-3B", "qwen2",
     {.V = 151936, .D = 2048, .F = 11008, .L = 36, .H = 16, .G = 2, .K = 128, .T = 32768, .tied = true}},
    {"Qwen2.5-Coder-7B", "Qwen/Qwen2.5-Coder-7B", "qwen2",
     {.V = 152064, .D = 3584, .F = 18944, .L = 28, .H = 28, .G = 4, .K = 128, .T = 32768}},
    {"Qwen2.5-Coder-14B", "Qwen/Qwen2.5-Coder-14B", "qwen2",
     {.V = 152064, .D = 5120, .F = 13824, .L = 48, .H = 40, .G = 8, .K = 128, .T = 32768}},
    {"Qwen2.5-Coder-32B", "Qwen/Qwen2.5-Coder-32B", "qwen2",
     {.V = 152064, .D = 5120, .F = 27648, .L = 64, .H = 40, .G = 8, .K = 128, .T = 32768}},
    {"DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "qwen2",
     {.V = 151936, .D = 1536, .F = 8960, .L = 28, .H = 12, .G = 2, .K = 128, .T = k128K}},
    {"DeepSeek-R1-Distill-Qwen-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2",
     {.V = 152064, .D = 3584, .F = 18944, .L = 28, .H = 28, .G = 4, .K = 128, .T = k128K}},
    {"DeepSeek-R1-Distill-Llama-8B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama",
     {.V = 128256, .D = 4096, .F = 14336, .L = 32, .H = 32, .G = 8, .K = 128, .T = k128K}},
    {"DeepSeek-R1-Distill-Qwen-14B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen2",
     {.V = 152064, .D = 5120, .F = 13824, .L = 48, .H = 40, .G = 8, .K = 128, .T = k128K}},
    {"DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2",
     {.V = 152064, .D = 5120, .F = 27648, .L = 64, .H = 40, .G = 8, .K = 128, .T = k128K}},
    {"DeepSeek-R1-Distill-Llama-70B", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama",
     {.V = 128256, .D = 8192, .F = 28672, .L = 80, .H = 64, .G = 8, .K = 128, .T = k128K}},
    {"Qwen3-0.6B", "Qwen/Qwen3-0.6B", "qwen3",
     {.V = 151936, .D = 1024, .F = 3072, .L = 28, .H = 16, .G = 8, .K = 128, .T = 40960, .tied = true}},
    {"Qwen3-1.7B", "Qwen/Qwen3-1.7B", "qwen3",
     {.V = 151936, .D = 2048, .F = 6144, .L = 28, .H = 16, .G = 8, .K = 128, .T = 40960, .tied = true}},
    {"Qwen3-4B", "Qwen/Qwen3-4B", "qwen3",
     {.V = 151936, .D = 2560, .F = 9728, .L = 36, .H = 32, .G = 8, .K = 128, .T = 40960, .tied = true}},
    {"Qwen3-Embedding-0.6B", "Qwen/Qwen3-Embedding-0.6B", "qwen3",
     {.V = 151669, .D = 1024, .F = 3072, .L = 28, .H = 16, .G = 8, .K = 128, .T = 32768, .tied = true}},
    {"Qwen3-Embedding-4B", "Qwen/Qwen3-Embedding-4B", "qwen3",
     {.V = 151665, .D = 2560, .F = 9728, .L = 36, .H = 32, .G = 8, .K = 128, .T = 40960, .tied = true}},
    {"Qwen3-8B", "Qwen/Qwen3-8B", "qwen3",
     {.V = 151936, .D = 4096, .F = 12288, .L = 36, .H = 32, .G = 8, .K = 128, .T = 40960}},
    {"Qwen3-14B", "Qwen/Qwen3-14B", "qwen3",
     {.V = 151936, .D = 5120, .F = 17408, .L = 40, .H = 40, .G = 8, .K = 128, .T = 40960}},
    {"Qwen3-32B", "Qwen/Qwen3-32B", "qwen3",
     {.V = 151936, .D = 5120, .F = 25600, .L = 64, .H = 64, .G = 8, .K = 128, .T = 40960}},
    {"Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", "qwen3_moe",
     {.V = 151936, .D = 2048, .F = 768, .L = 48, .H = 32, .G = 4, .K = 128, .T = 40960,
      .E = 128, .top_k = 8}},
    {"Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B", "qwen3_moe",
     {.V = 151936, .D = 4096, .F = 1536, .L = 94, .H = 64, .G = 4, .K = 128, .T = 40960,
      .E = 128, .top_k = 8}},
    {"gemma-2-2b", "google/gemma-2-2b", "gemma2",
     {.V = 256000, .D = 2304, .F = 9216, .L = 26, .H = 8, .G = 4, .K = 256, .T = 8192, .tied = true}},
    {"gemma-2-9b", "google/gemma-2-9b", "gemma2",
     {.V = 256000, .D = 3584, .F = 14336, .L = 42, .H = 16, .G = 8, .K = 256, .T = 8192, .tied = true}},
    {"gemma-2-27b", "google/gemma-2-27b", "gemma2",
     {.V = 256000, .D = 4608, .F = 36864, .L = 46, .H = 32, .G = 16, .K = 128, .T = 8192, .tied = true}},
    {"gemma-3-270m", "google/gemma-3-270m", "gemma3_text",
     {.V = 262144, .D = 640, .F = 2048, .L = 18, .H = 4, .G = 1, .K = 256, .T = 32768, .tied = true}},
    {"gemma-3-1b", "google/gemma-3-1b-pt", "gemma3_text",
     {.V = 262144, .D = 1152, .F = 6912, .L = 26, .H = 4, .G = 1, .K = 256, .T = 32768, .tied = true}},
    {"gemma-3-4b", "google/gemma-3-4b-pt", "gemma3_text",
     {.V = 262208, .D = 2560, .F = 10240, .L = 34, .H = 8, .G = 4, .K = 256, .T = k128K, .tied = true}},
    {"gemma-3-12b", "google/gemma-3-12b-pt", "gemma3_text",
     {.V = 262208, .D = 3840, .F = 15360, .L = 48, .H = 16, .G = 8, .K = 256, .T = k128K, .tied = true}},
    {"gemma-3-27b", "google/gemma-3-27b-pt", "gemma3_text",
     {.V = 262208, .D = 5376, .F = 21504, .L = 62, .H = 32, .G = 16, .K = 128, .T = k128K, .tied = true}},
    {"gemma-4-E2B", "google/gemma-4-E2B", "gemma4_text",
     {.V = 262144, .D = 1536, .F = 6144, .L = 35, .H = 8, .G = 1, .K = 256, .T = k128K, .tied = true,
      .period = 5, .shared = 20, .P = 256, .wide = true}},
    {"gemma-4-E4B", "google/gemma-4-E4B", "gemma4_text",
     {.V = 262144, .D = 2560, .F = 10240, .L = 42, .H = 8, .G = 2, .K = 256, .T = k128K, .tied = true,
      .period = 6, .shared = 18, .P = 256}},
    {"gemma-4-12B", "google/gemma-4-12B", "gemma4_unified_text",
     {.V = 262144, .D = 3840, .F = 15360, .L = 48, .H = 16, .G = 8, .K = 256, .T = k256K, .tied = true,
      .period = 6, .Gg = 1}},
    {"gemma-4-31B", "google/gemma-4-31B", "gemma4_text",
     {.V = 262144, .D = 5376, .F = 21504, .L = 60, .H = 32, .G = 16, .K = 256, .T = k256K, .tied = true,
      .period = 6, .Gg = 4}},
    {"gemma-4-26B-A4B", "google/gemma-4-26B-A4B", "gemma4_text",
     {.V = 262144, .D = 2816, .F = 2112, .L = 30, .H = 16, .G = 8, .K = 256, .T = k256K, .tied = true,
      .E = 128, .top_k = 8, .period = 6, .Gg = 2}},
    {"Phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", "phi3",
     {.V = 32064, .D = 3072, .F = 8192, .L = 32, .H = 32, .G = 32, .K = 96, .T = 4096}},
    {"Phi-3-medium", "microsoft/Phi-3-medium-4k-instruct", "phi3",
     {.V = 32064, .D = 5120, .F = 17920, .L = 40, .H = 40, .G = 10, .K = 128, .T = 4096}},
    {"Phi-3.5-mini", "microsoft/Phi-3.5-mini-instruct", "phi3",
     {.V = 32064, .D = 3072, .F = 8192, .L = 32, .H = 32, .G = 32, .K = 96, .T = k128K}},
    {"phi-4", "microsoft/phi-4", "phi3",
     {.V = 100352, .D = 5120, .F = 17920, .L = 40, .H = 40, .G = 10, .K = 128, .T = 16384}},
    {"Phi-4-mini", "microsoft/Phi-4-mini-instruct", "phi3",
     {.V = 200064, .D = 3072, .F = 8192, .L = 32, .H = 24, .G = 8, .K = 128, .T = k128K, .tied = true}},
    {"SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", "llama",
     {.V = 49152, .D = 576, .F = 1536, .L = 30, .H = 9, .G = 3, .K = 64, .T = 8192, .tied = true}},
    {"SmolLM2-360M", "HuggingFaceTB/SmolLM2-360M", "llama",
     {.V = 49152, .D = 960, .F = 2560, .L = 32, .H = 15, .G = 5, .K = 64, .T = 8192, .tied = true}},
    {"SmolLM2-1.7B", "HuggingFaceTB/SmolLM2-1.7B", "llama",
     {.V = 49152, .D = 2048, .F = 8192, .L = 24, .H = 32, .G = 32, .K = 64, .T = 8192, .tied = true}},
    {"SmolLM3-3B", "HuggingFaceTB/SmolLM3-3B", "smollm3",
     {.V = 128256, .D = 2048, .F = 11008, .L = 36, .H = 16, .G = 4, .K = 128, .T = 65536, .tied = true}},
    {"MiniCPM5-1B", "openbmb/MiniCPM5-1B", "llama",
     {.V = 130560, .D = 1536, .F = 4608, .L = 24, .H = 16, .G = 2, .K = 128, .T = k128K}},
    {"MiniCPM5-2B", "openbmb/MiniCPM5-2B", "llama",
     {.V = 130560, .D = 2048, .F = 6144, .L = 42, .H = 16, .G = 2, .K = 128, .T = k128K}},
    {"Ministral-3-3B", "mistralai/Ministral-3-3B-Base-2512", "ministral3",
     {.V = 131072, .D = 3072, .F = 9216, .L = 26, .H = 32, .G = 8, .K = 128, .T = k256K, .tied = true}},
    {"Ministral-3-8B", "mistralai/Ministral-3-8B-Base-2512", "ministral3",
     {.V = 131072, .D = 4096, .F = 14336, .L = 34, .H = 32, .G = 8, .K = 128, .T = k256K}},
    {"Ministral-3-14B", "mistralai/Ministral-3-14B-Base-2512", "ministral3",
     {.V = 131072, .D = 5120, .F = 16384, .L = 40, .H = 32, .G = 8, .K = 128, .T = k256K}},
    {"Olmo-3-7B", "allenai/Olmo-3-1025-7B", "olmo3",
     {.V = 100278, .D = 4096, .F = 11008, .L = 32, .H = 32, .G = 32, .K = 128, .T = 65536}},
    {"Olmo-3-32B", "allenai/Olmo-3-1125-32B", "olmo3",
     {.V = 100278, .D = 5120, .F = 27648, .L = 64, .H = 40, .G = 8, .K = 128, .T = 65536}},
    {"Hunyuan-7B", "tencent/Hunyuan-7B-Instruct", "hunyuan_v1_dense",
     {.V = 128167, .D = 4096, .F = 14336, .L = 32, .H = 32, .G = 8, .K = 128, .T = 32768, .tied = true}},
    {"ERNIE-4.5-0.3B", "baidu/ERNIE-4.5-0.3B-PT", "ernie4_5",
     {.V = 103424, .D = 1024, .F = 3072, .L = 18, .H = 16, .G = 2, .K = 128, .T = k128K, .tied = true}},
    {"Seed-OSS-36B", "ByteDance-Seed/Seed-OSS-36B-Instruct", "seed_oss",
     {.V = 155136, .D = 5120, .F = 27648, .L = 64, .H = 80, .G = 8, .K = 128, .T = 524288}},
    {"GLM-4-9B-0414", "zai-org/GLM-4-9B-0414", "glm4",
     {.V = 151552, .D = 4096, .F = 13696, .L = 40, .H = 32, .G = 2, .K = 128, .T = 32768}},
    {"GLM-4-32B-0414", "zai-org/GLM-4-32B-0414", "glm4",
     {.V = 151552, .D = 6144, .F = 23040, .L = 61, .H = 48, .G = 2, .K = 128, .T = 32768}},
    {"granite-3.1-2b", "ibm-granite/granite-3.1-2b-base", "granite",
     {.V = 49155, .D = 2048, .F = 8192, .L = 40, .H = 32, .G = 8, .K = 64, .T = k128K, .tied = true}},
    {"granite-3.1-8b", "ibm-granite/granite-3.1-8b-base", "granite",
     {.V = 49155, .D = 4096, .F = 12800, .L = 40, .H = 32, .G = 8, .K = 128, .T = k128K, .tied = true}},
    {"Qwen2.5-VL-3B", "Qwen/Qwen2.5-VL-3B-Instruct", "qwen2_5_vl_text",
     {.V = 151936, .D = 2048, .F = 11008, .L = 36, .H = 16, .G = 2, .K = 128, .T = 128000, .tied = true}},
    {"Qwen2.5-VL-7B", "Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl_text",
     {.V = 152064, .D = 3584, .F = 18944, .L = 28, .H = 28, .G = 4, .K = 128, .T = 128000}},
    {"Qwen3.5-0.8B", "Qwen/Qwen3.5-0.8B", "qwen3_5_text",
     {.V = 248320, .D = 1024, .F = 3584, .L = 24, .H = 8, .G = 2, .K = 256, .T = k256K, .tied = true, .Hv = 16}},
    {"Qwen3.5-4B", "Qwen/Qwen3.5-4B", "qwen3_5_text",
     {.V = 248320, .D = 2560, .F = 9216, .L = 32, .H = 16, .G = 4, .K = 256, .T = k256K, .tied = true, .Hv = 32}},
    {"Qwen3.5-9B", "Qwen/Qwen3.5-9B", "qwen3_5_text",
     {.V = 248320, .D = 4096, .F = 12288, .L = 32, .H = 16, .G = 4, .K = 256, .T = k256K, .Hv = 32}},
    {"Qwen3.5-27B", "Qwen/Qwen3.5-27B", "qwen3_5_text",
     {.V = 248320, .D = 5120, .F = 17408, .L = 64, .H = 24, .G = 4, .K = 256, .T = k256K, .Hv = 48}},
    {"Qwen3.5-35B-A3B", "Qwen/Qwen3.5-35B-A3B", "qwen3_5_moe_text",
     {.V = 248320, .D = 2048, .F = 512, .L = 40, .H = 16, .G = 2, .K = 256, .T = k256K,
      .E = 256, .top_k = 8, .Hv = 32}},
    {"Qwen3.6-35B-A3B", "Qwen/Qwen3.6-35B-A3B", "qwen3_5_moe_text",
     {.V = 248320, .D = 2048, .F = 512, .L = 40, .H = 16, .G = 2, .K = 256, .T = k256K,
      .E = 256, .top_k = 8, .Hv = 32}},
    {"Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next",
     {.V = 151936, .D = 2048, .F = 512, .L = 48, .H = 16, .G = 2, .K = 256, .T = k256K,
      .E = 512, .top_k = 10, .Hv = 32}},
    {"LFM2-350M", "LiquidAI/LFM2-350M", "lfm2",
     {.V = 65536, .D = 1024, .F = 4608, .L = 16, .H = 16, .G = 8, .K = 64, .T = 128000, .tied = true}},
    {"LFM2-700M", "LiquidAI/LFM2-700M", "lfm2",
     {.V = 65536, .D = 1536, .F = 6912, .L = 16, .H = 24, .G = 8, .K = 64, .T = 128000, .tied = true}},
    {"LFM2-1.2B", "LiquidAI/LFM2-1.2B", "lfm2",
     {.V = 65536, .D = 2048, .F = 8192, .L = 16, .H = 32, .G = 8, .K = 64, .T = 128000, .tied = true}},
    {"LFM2-8B-A1B", "LiquidAI/LFM2-8B-A1B", "lfm2_moe",
     {.V = 65536, .D = 2048, .F = 1792, .L = 24, .H = 32, .G = 8, .K = 64, .T = 128000, .tied = true,
      .E = 32, .top_k = 4}},
    // Its vocabulary is the last id that it names, 124900, filled up to a multiple of 128.
    {"LFM3-1.7B", "LiquidAI/LFM3-1.7B", "lfm3",
     {.V = 124928, .D = 2048, .F = 7680, .L = 24, .H = 16, .G = 4, .K = 128, .T = k256K, .tied = true}},
    {"Spark-X2.5-1.7B", "XHToken/Spark-X2.5-1.7B", "spark2_5",
     {.V = 131072, .D = 2048, .F = 6656, .L = 28, .H = 8, .G = 2, .K = 256, .T = k1M, .tied = true,
      .period = 4}},
    {"Spark-X2.5-4B", "XHToken/Spark-X2.5-4B", "spark2_5",
     {.V = 131072, .D = 2560, .F = 10240, .L = 36, .H = 16, .G = 4, .K = 256, .T = k1M, .tied = true,
      .period = 4}},
    {"EXAONE-4.0-1.2B", "LGAI-EXAONE/EXAONE-4.0-1.2B", "exaone4",
     {.V = 102400, .D = 2048, .F = 4096, .L = 30, .H = 32, .G = 8, .K = 64, .T = 65536, .tied = true}},
    {"EXAONE-4.0-32B", "LGAI-EXAONE/EXAONE-4.0-32B", "exaone4",
     {.V = 102400, .D = 5120, .F = 27392, .L = 64, .H = 40, .G = 8, .K = 128, .T = k128K,
      .period = 4}},
    {"Qwen3-VL-2B", "Qwen/Qwen3-VL-2B-Instruct", "qwen3_vl_text",
     {.V = 151936, .D = 2048, .F = 6144, .L = 28, .H = 16, .G = 8, .K = 128, .T = k256K, .tied = true}},
    {"Qwen3-VL-4B", "Qwen/Qwen3-VL-4B-Instruct", "qwen3_vl_text",
     {.V = 151936, .D = 2560, .F = 9728, .L = 36, .H = 32, .G = 8, .K = 128, .T = k256K, .tied = true}},
    {"Qwen3-VL-8B", "Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl_text",
     {.V = 151936, .D = 4096, .F = 12288, .L = 36, .H = 32, .G = 8, .K = 128, .T = k256K}},
    {"Qwen3-VL-32B", "Qwen/Qwen3-VL-32B-Instruct", "qwen3_vl_text",
     {.V = 151936, .D = 5120, .F = 25600, .L = 64, .H = 64, .G = 8, .K = 128, .T = k256K}},
    {"Olmo-2-1B", "allenai/OLMo-2-0425-1B", "olmo2",
     {.V = 100352, .D = 2048, .F = 8192, .L = 16, .H = 16, .G = 16, .K = 128, .T = 4096}},
    {"Olmo-2-7B", "allenai/OLMo-2-1124-7B", "olmo2",
     {.V = 100352, .D = 4096, .F = 11008, .L = 32, .H = 32, .G = 32, .K = 128, .T = 4096}},
    {"Olmo-2-13B", "allenai/OLMo-2-1124-13B", "olmo2",
     {.V = 100352, .D = 5120, .F = 13824, .L = 40, .H = 40, .G = 40, .K = 128, .T = 4096}},
    {"Olmo-2-32B", "allenai/OLMo-2-0325-32B", "olmo2",
     {.V = 100352, .D = 5120, .F = 27648, .L = 64, .H = 40, .G = 8, .K = 128, .T = 4096}},
    {"Falcon3-1B", "tiiuae/Falcon3-1B-Base", "llama",
     {.V = 131072, .D = 2048, .F = 8192, .L = 18, .H = 8, .G = 4, .K = 256, .T = 4096}},
    {"Falcon3-3B", "tiiuae/Falcon3-3B-Base", "llama",
     {.V = 131072, .D = 3072, .F = 9216, .L = 22, .H = 12, .G = 4, .K = 256, .T = 32768}},
    {"Falcon3-7B", "tiiuae/Falcon3-7B-Base", "llama",
     {.V = 131072, .D = 3072, .F = 23040, .L = 28, .H = 12, .G = 4, .K = 256, .T = 32768}},
    {"Falcon3-10B", "tiiuae/Falcon3-10B-Base", "llama",
     {.V = 131072, .D = 3072, .F = 23040, .L = 40, .H = 12, .G = 4, .K = 256, .T = 32768}},
    {"granite-3.3-2b", "ibm-granite/granite-3.3-2b-instruct", "granite",
     {.V = 49159, .D = 2048, .F = 8192, .L = 40, .H = 32, .G = 8, .K = 64, .T = k128K, .tied = true}},
    {"granite-3.3-8b", "ibm-granite/granite-3.3-8b-instruct", "granite",
     {.V = 49159, .D = 4096, .F = 12800, .L = 40, .H = 32, .G = 8, .K = 128, .T = k128K, .tied = true}},
    {"granite-4.0-350m", "ibm-granite/granite-4.0-350m", "granitemoehybrid",
     {.V = 100352, .D = 1024, .F = 2048, .L = 28, .H = 16, .G = 4, .K = 64, .T = 32768, .tied = true}},
    {"granite-4.0-1b", "ibm-granite/granite-4.0-1b", "granitemoehybrid",
     {.V = 100352, .D = 2048, .F = 4096, .L = 40, .H = 16, .G = 4, .K = 128, .T = k128K, .tied = true}},
    {"granite-swash-2b", "ibm-granite/granite-swash-2b", "granite_swa",
     {.V = 100352, .D = 2560, .F = 8192, .L = 24, .H = 20, .G = 4, .K = 128, .T = 8192, .tied = true}},
    {"granite-4.0-micro", "ibm-granite/granite-4.0-micro", "granitemoehybrid",
     {.V = 100352, .D = 2560, .F = 8192, .L = 40, .H = 40, .G = 8, .K = 64, .T = k128K, .tied = true}},
    {"Mistral-Small-3.1-24B", "mistralai/Mistral-Small-3.1-24B-Base-2503", "mistral",
     {.V = 131072, .D = 5120, .F = 32768, .L = 40, .H = 32, .G = 8, .K = 128, .T = k128K}},
    {"Mistral-Small-3.2-24B", "mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral",
     {.V = 131072, .D = 5120, .F = 32768, .L = 40, .H = 32, .G = 8, .K = 128, .T = k128K}},
    {"gpt-oss-20b", "openai/gpt-oss-20b", "gpt_oss",
     {.V = 201088, .D = 2880, .F = 2880, .L = 24, .H = 64, .G = 8, .K = 64, .T = k128K,
      .E = 32, .top_k = 4}},
    {"gpt-oss-120b", "openai/gpt-oss-120b", "gpt_oss",
     {.V = 201088, .D = 2880, .F = 2880, .L = 36, .H = 64, .G = 8, .K = 64, .T = k128K,
      .E = 128, .top_k = 4}},
    {"Qwen2.5-VL-72B", "Qwen/Qwen2.5-VL-72B-Instruct", "qwen2_5_vl_text",
     {.V = 152064, .D = 8192, .F = 29568, .L = 80, .H = 64, .G = 8, .K = 128, .T = 128000}},
});
// clang-format on

// Words of a name that do not change the shape.
constexpr auto kSilentWords = std::to_array<std::string_view>(
    {"meta", "unsloth", "instruct", "it",   "pt",   "chat", "base",     "hf",    "bnb",
     "4bit", "v0.1",    "v0.2",     "v1.0", "2407", "2501", "2503",     "2506",  "2507",
     "2512", "0325",    "0425",     "1025", "1124", "1125", "thinking", "think", "reasoning",
     "fp8",  "4k",      "8k",       "128k", "bf16", "text"});

// Returns the name in lower case, without the organisation, the revision after '@' and the silent
// words: "meta-llama/Meta-Llama-3.1-8B-Instruct@main" -> "llama-3.1-8b".
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
    if (std::ranges::find(kSilentWords, word) != kSilentWords.end()) continue;
    plain += plain.empty() ? "" : "-";
    plain += word;
  }
  return plain;
}

const KnownModel* FindKnown(std::string_view name) {
  const std::string plain = PlainName(name);
  // Both sides are stripped, because names of the table have silent words too (v0.1, 2407).
  const auto* known = std::ranges::find_if(
      kKnownModels, [&](const auto& model) { return PlainName(model.name) == plain; });
  return known == kKnownModels.end() ? nullptr : known;
}

// Layers of which those that are named have attention, and the others a short convolution.
std::vector<std::string> ConvAndAttention(std::int64_t layers,
                                          std::span<const std::int64_t> attention) {
  std::vector<std::string> types(layers, "conv");
  for (const std::int64_t l : attention) types[l] = "full_attention";
  return types;
}

void AddGemma4(const KnownShape& shape, Json& config) {
  config["sliding_window"] = shape.P > 0 ? 512 : 1024;
  config["num_kv_shared_layers"] = shape.shared;
  config["hidden_size_per_layer_input"] = shape.P;
  config["use_double_wide_mlp"] = shape.wide;
  config["attention_k_eq_v"] = shape.Gg > 0;
  if (shape.Gg > 0) config["num_global_key_value_heads"] = shape.Gg;
  config["final_logit_softcapping"] = 30.0;
  if (shape.E == 0) return;
  // Beside an MLP of F.
  config["enable_moe_block"] = true;
  config["top_k_experts"] = shape.top_k;
  config["moe_intermediate_size"] = 704;
}

// Models that are known have the same layers of attention wherever they have as many layers.
void AddLfm(std::string_view type, const KnownShape& shape, Json& config) {
  constexpr std::array<std::int64_t, 6> kOfLfm3 = {2, 6, 10, 14, 18, 22};
  constexpr std::array<std::int64_t, 6> kOfLfm2Moe = {2, 6, 10, 14, 18, 21};
  if (type == "lfm2") {
    config["full_attn_idxs"] = {2, 5, 8, 10, 12, 14};
    // F is the width that is used.
    config["block_auto_adjust_ff_dim"] = false;
  } else if (type == "lfm2_moe") {
    config["layer_types"] = ConvAndAttention(shape.L, kOfLfm2Moe);
    config["intermediate_size"] = 7168;  // of the two first layers, which have an MLP
  } else {
    std::vector<std::string> types = ConvAndAttention(shape.L, kOfLfm3);
    for (std::int64_t l = 4; l + 2 < shape.L; l += 4) types[l] = "sliding_attention";
    config["layer_types"] = types;
  }
}

// What single families need beyond the sizes that all have.
void AddFamilyKeys(std::string_view type, const KnownShape& shape, Json& config) {
  if (type.starts_with("gemma4")) AddGemma4(shape, config);
  if (type.starts_with("lfm")) AddLfm(type, shape, config);
  if (type == "spark2_5") config["headwise_attn_output_gate"] = true;
  // Without a period, the default of the key would still be a window.
  if (type == "exaone4" && shape.period == 0) config["sliding_window"] = nullptr;
  // One more than the default of the key has; which one is not known, and no plan asks.
  for (std::int64_t l = 0; type == "granite_swa" && l < shape.L; ++l) {
    const bool full = l % 4 == 0 || l + 1 == shape.L;
    config["layer_types"].push_back(full ? "full_attention" : "sliding_attention");
  }
  if (type == "granitemoehybrid") {
    // The files of Granite 4, which is dense here.
    config["layer_types"] = std::vector<std::string>(shape.L, "attention");
    config["num_local_experts"] = 0;
    config["shared_intermediate_size"] = shape.F;
    config["position_embedding_type"] = "rope";
  }
}

// Returns a config.json, so that a name and a downloaded model give the same plan. Both spellings
// of the number of experts are given; each family reads its own.
Json ConfigOf(const KnownModel& model) {
  const KnownShape& shape = model.shape;
  // head_dim is given even where D / H is the same, since not all families have that default.
  Json config = {{"model_type", model.model_type},
                 {"vocab_size", shape.V},
                 {"hidden_size", shape.D},
                 {"intermediate_size", shape.F},
                 {"num_hidden_layers", shape.L},
                 {"num_attention_heads", shape.H},
                 {"num_key_value_heads", shape.G},
                 {"head_dim", shape.K},
                 {"max_position_embeddings", shape.T},
                 {"tie_word_embeddings", shape.tied}};
  if (shape.E > 0) {
    // Mixtral has num_local_experts, Qwen num_experts and moe_intermediate_size.
    config["num_local_experts"] = config["num_experts"] = shape.E;
    config["num_experts_per_tok"] = shape.top_k;
    config["moe_intermediate_size"] = shape.F;
  }
  if (shape.Hv > 0) config["linear_num_value_heads"] = shape.Hv;
  for (std::int64_t l = 1; shape.period > 0 && l <= shape.L; ++l) {
    const bool full = l % shape.period == 0;
    config["layer_types"].push_back(full ? "full_attention" : "sliding_attention");
  }
  AddFamilyKeys(model.model_type, shape, config);
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

std::vector<std::string> NearKnownModels(std::string_view name) {
  const auto letters = [](std::string text) {
    std::erase_if(text, [](char c) { return c == '-' || c == '_' || c == ' '; });
    return text;
  };
  // A family without a size, gpt-oss or llama3.
  const std::string begin = letters(PlainName(name));
  std::vector<std::string> plain;
  std::vector<std::string> names;
  for (const KnownModel& model : kKnownModels) {
    plain.push_back(PlainName(model.name));
    const bool begins = begin.size() > 2 && letters(plain.back()).starts_with(begin);
    if (begins) names.emplace_back(model.name);
  }
  if (!names.empty()) return names;
  for (const std::string& near : AllNearest(PlainName(name), plain)) {
    names.emplace_back(FindKnown(near)->name);
  }
  return names;
}

}  // namespace qlora
