#include "export/gguf/gguf_mix.h"

#include <algorithm>

#include "base/text.h"
#include "config/gguf_names.h"

namespace qlora {
namespace {

using enum BlockFormat;

constexpr GgufFileType kFileTypes[] = {
    {"F32", 0, DType::kF32, false},    {"F16", 1, DType::kF16, false},
    {"BF16", 32, DType::kBF16, false}, {"Q8_0", 7, kQ8_0, false},
    {"Q6_K", 18, kQ6_K, false},        {"Q5_K_M", 17, kQ5_K, false},
    {"Q5_K_S", 16, kQ5_K, false},      {"Q5_1", 9, kQ5_1, false},
    {"Q5_0", 8, kQ5_0, false},         {"Q4_K_M", 15, kQ4_K, false},
    {"Q4_K_S", 14, kQ4_K, false},      {"Q4_1", 3, kQ4_1, false},
    {"Q4_0", 2, kQ4_0, false},         {"IQ4_NL", 25, kIQ4_NL, false},
    {"IQ4_XS", 30, kIQ4_XS, false},    {"MXFP4_MOE", 38, kMXFP4, false},
    {"Q3_K_L", 13, kQ3_K, false},      {"Q3_K_M", 12, kQ3_K, false},
    {"Q3_K_S", 11, kQ3_K, false},      {"Q2_K", 10, kQ2_K, false},
    {"Q2_K_S", 21, kQ2_K, true},
};

// The matrices of a layer that have rules.
enum class Part : std::uint8_t { kValue, kDown, kOutput, kOther };

// The layers i of n, and the models, for which a rule holds.
enum class When : std::uint8_t {
  kAlways,
  kGrouped,             // at least 4 heads read one head of keys and values
  kFirst2,              // i < 2
  kFirst4,              // i < 4
  kFirst16th,           // i < n / 16
  kFirst8th,            // i < n / 8
  kFirst8thUnweighted,  // the same, without an importance matrix
  kFirst8thWeighted,    // the same, with one
  kEndsAndEveryThird,   // the first and last eighth, and every third between
};

struct Rule {
  std::string_view file;  // GgufFileType::name
  Part part;
  When when;
  BlockFormat format;
};

// The first rule that holds wins; without one a matrix gets the base.
constexpr Rule kRules[] = {
    {"Q2_K", Part::kValue, When::kGrouped, kQ4_K},
    {"Q2_K", Part::kValue, When::kAlways, kQ3_K},
    {"Q2_K", Part::kDown, When::kAlways, kQ3_K},
    {"Q2_K", Part::kOutput, When::kAlways, kQ3_K},
    {"Q2_K_S", Part::kValue, When::kGrouped, kQ4_K},
    {"Q2_K_S", Part::kDown, When::kFirst8th, kQ4_K},
    {"Q3_K_M", Part::kValue, When::kFirst2, kQ5_K},
    {"Q3_K_M", Part::kValue, When::kAlways, kQ4_K},
    {"Q3_K_M", Part::kDown, When::kFirst16th, kQ5_K},
    {"Q3_K_M", Part::kDown, When::kAlways, kQ4_K},
    {"Q3_K_M", Part::kOutput, When::kAlways, kQ4_K},
    {"Q3_K_L", Part::kValue, When::kAlways, kQ5_K},
    {"Q3_K_L", Part::kDown, When::kAlways, kQ5_K},
    {"Q3_K_L", Part::kOutput, When::kAlways, kQ5_K},
    {"Q4_K_S", Part::kValue, When::kFirst4, kQ5_K},
    {"Q4_K_S", Part::kDown, When::kFirst8th, kQ5_K},
    {"Q4_K_M", Part::kValue, When::kEndsAndEveryThird, kQ6_K},
    {"Q4_K_M", Part::kDown, When::kEndsAndEveryThird, kQ6_K},
    {"Q5_K_M", Part::kValue, When::kEndsAndEveryThird, kQ6_K},
    {"Q5_K_M", Part::kDown, When::kEndsAndEveryThird, kQ6_K},
    {"IQ4_NL", Part::kValue, When::kGrouped, kQ5_K},
    {"IQ4_NL", Part::kDown, When::kFirst8thUnweighted, kQ5_K},
    {"IQ4_XS", Part::kValue, When::kGrouped, kQ5_K},
    {"IQ4_XS", Part::kDown, When::kFirst8thUnweighted, kQ5_K},
    {"Q4_0", Part::kDown, When::kFirst8thWeighted, kQ4_1},
    {"Q5_0", Part::kDown, When::kFirst8thWeighted, kQ5_1},
};

// Where a model of 8 experts (Mixtral) gets Q5_K for attn_output.
constexpr std::string_view kFinerOutputOf8Experts[] = {"Q2_K",   "Q3_K_S", "Q3_K_M", "Q4_K_S",
                                                       "Q4_K_M", "IQ4_NL", "IQ4_XS"};

// What takes the place of a type whose blocks do not divide the rows.
constexpr std::pair<BlockFormat, BlockFormat> kSmallerBlocks[] = {
    {kQ2_K, kQ4_0}, {kQ3_K, kQ4_0}, {kQ4_K, kQ5_0},
    {kQ5_K, kQ5_1}, {kQ6_K, kQ8_0}, {kIQ4_XS, kIQ4_NL}};

Part PartOf(std::string_view name) {
  const auto has = [&](std::string_view word) { return name.find(word) != name.npos; };
  // attn_qkv holds the values too.
  if (has("attn_v.weight") || has("attn_qkv.weight")) return Part::kValue;
  if (has("ffn_down")) return Part::kDown;
  if (has("attn_output.weight")) return Part::kOutput;
  return Part::kOther;
}

bool IsGrouped(const GgufMixModel& model) {
  return model.kv_heads > 0 && model.heads / model.kv_heads >= 4;
}

// i, n: the place of the layer among those that have the part, and their number.
bool Holds(When when, std::int64_t i, std::int64_t n, const GgufMixModel& model) {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kGrouped:
      return IsGrouped(model);
    case When::kFirst2:
      return i < 2;
    case When::kFirst4:
      return i < 4;
    case When::kFirst16th:
      return i < n / 16;
    case When::kFirst8th:
      return i < n / 8;
    case When::kFirst8thUnweighted:
      return i < n / 8 && !model.has_importance;
    case When::kFirst8thWeighted:
      return i < n / 8 && model.has_importance;
    case When::kEndsAndEveryThird:
      return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
  }
  return false;
}

// llama.cpp knows models of 70B by these.
bool Is70B(const GgufMixModel& model) {
  if (model.layers != 80) return false;
  return model.architecture == "qwen2" ||
         (model.architecture == "llama" && model.heads != model.kv_heads);
}

BlockFormat MixOfLayer(const GgufFileType& file, const GgufMixModel& model, std::string_view name) {
  const Part part = PartOf(name);
  BlockFormat format = file.base.format;
  std::int64_t place = GgufBlockOf(name);
  std::int64_t count = model.layers;
  if (part == Part::kValue && !model.value_layers.empty()) {
    place = std::ranges::find(model.value_layers, place) - model.value_layers.begin();
    count = std::ssize(model.value_layers);
  }
  // Models of 8 experts have rules of their own for attention, which is a small part of them.
  const bool is_8_experts = model.experts == 8;
  const bool is_key = name.find("attn_k.weight") != name.npos;
  if (is_8_experts && (part == Part::kValue || is_key)) return kQ8_0;
  if (is_8_experts && part == Part::kOutput) {
    return std::ranges::count(kFinerOutputOf8Experts, file.name) > 0 ? kQ5_K : format;
  }
  const auto rule = std::ranges::find_if(kRules, [&](const Rule& r) {
    return r.file == file.name && r.part == part && Holds(r.when, place, count, model);
  });
  if (rule != std::end(kRules)) format = rule->format;
  if (part == Part::kValue && Is70B(model) && (format == kQ3_K || format == kQ4_K)) return kQ5_K;
  return format;
}

BlockFormat MixOf(const GgufFileType& file, const GgufMixModel& model, std::string_view name,
                  std::int64_t cols) {
  const BlockFormat base = file.base.format;
  const bool is_mxfp4 = base == kMXFP4;
  if (name == kGgufHead || (model.tied && name == kGgufEmbedding)) {
    // Its errors go straight into the logits.
    const bool divides = cols % InfoOf(base).values == 0;
    return base == kQ8_0 || is_mxfp4 || !divides ? kQ8_0 : kQ6_K;
  }
  if (is_mxfp4) return name.find("_exps.") != name.npos ? kMXFP4 : kQ8_0;
  if (base == kQ8_0 || name == kGgufEmbedding || name == "per_layer_token_embd.weight") {
    return base;
  }
  return MixOfLayer(file, model, name);
}

}  // namespace

std::span<const GgufFileType> GgufFileTypes() { return kFileTypes; }

const GgufFileType* FindGgufFileType(std::string_view name) {
  // Of the two names, the types of tensors have the short one.
  const std::string wanted = LowerCase(name) == "mxfp4" ? "mxfp4_moe" : LowerCase(name);
  const auto found = std::ranges::find_if(
      kFileTypes, [&](const GgufFileType& file) { return LowerCase(file.name) == wanted; });
  return found == std::end(kFileTypes) ? nullptr : &*found;
}

double BitsOf(const GgufFileType& file) {
  const std::int64_t values = file.base.block_values();
  return 8.0 * static_cast<double>(BytesOf(file.base, values)) / static_cast<double>(values);
}

TensorType GgufTensorType(const GgufFileType& file, const GgufMixModel& model,
                          std::string_view name, std::int64_t cols) {
  if (!file.base.is_blocks()) return file.base;
  // llama-quantize leaves it as it is.
  if (name == "per_layer_model_proj.weight") return DType::kF32;
  BlockFormat format = MixOf(file, model, name, cols);
  if (cols % InfoOf(format).values == 0) return format;
  const auto smaller =
      std::ranges::find(kSmallerBlocks, format, [](const auto& p) { return p.first; });
  if (smaller != std::end(kSmallerBlocks)) format = smaller->second;
  return cols % InfoOf(format).values == 0 ? TensorType(format) : TensorType(DType::kF16);
}

}  // namespace qlora
