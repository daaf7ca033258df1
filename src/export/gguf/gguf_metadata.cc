#include "export/gguf/gguf_metadata.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "config/families.h"
#include "config/gguf_config_gemma4.h"
#include "config/gguf_config_layers.h"
#include "config/gguf_config_rope.h"
#include "config/gguf_keys.h"
#include "config/gguf_names.h"
#include "config/gguf_numbers.h"
#include "pass/rope.h"

namespace qlora {
namespace {

std::uint32_t U32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

const Family& FamilyOf(const DecoderConfig& config) {
  return qlora::FamilyOf(config.model_type, "");
}

// Granite's multipliers. Its graph rotates unless a key denies it.
void AddMultipliers(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  for (const GgufMultiplier& row : GgufMultipliers()) {
    out.Add(prefix + row.gguf, row.value(config));
  }
  if (!FamilyOf(config).gguf.may_not_rotate) return;
  out.Add(prefix + gguf_key::kFinetuned, config.layers[0].rope >= 0);
}

}  // namespace

std::string GgufArchitectureOf(const DecoderConfig& config) {
  if (config.moe.num_experts > 0 && !config.moe.norm_topk_prob) {
    ThrowInvalidInput(
        "GGUF export of {} needs norm_topk_prob true in config.json: llama.cpp always divides the "
        "weights of a token's experts by their sum",
        config.model_type);
  }
  const std::string_view architecture = GgufFamilyOf(config.model_type).architecture;
  if (architecture.empty()) {
    ThrowInvalidInput("GGUF export of model_type '{}' is not supported", config.model_type);
  }
  return std::string(architecture);
}

void AddModelMetadata(const DecoderConfig& config, const std::string& name, std::uint32_t file_type,
                      GgufMetadata& out) {
  const std::string architecture = GgufArchitectureOf(config);
  const std::string prefix = architecture + ".";
  const Family& family = FamilyOf(config);
  out.Add(kGgufArchitecture, architecture);
  out.Add(kGgufType, std::string("model"));
  out.Add(kGgufName, name);
  out.Add("general.file_type", file_type);
  // GGML_QNT_VERSION, the version of the layouts of block types.
  out.Add("general.quantization_version", std::uint32_t{2});
  const auto add = [&](const char* key, GgufValue value) {
    out.Add(prefix + key, std::move(value));
  };
  add(gguf_key::kBlocks, U32(config.num_hidden_layers));
  for (const GgufNumber& row : GgufNumbers()) {
    if (row.value != nullptr && row.counts(family)) add(row.gguf, U32(row.value(config)));
  }
  if (family.gemma4) {
    WriteGgufGemma4(config, prefix, out);
  } else {
    WriteGgufHeads(config, prefix, out);
  }
  add(gguf_key::kEpsilon, config.rms_norm_eps);
  add(gguf_key::kVocabulary, U32(config.vocab_size));
  WriteGgufWindows(config, prefix, out);
  if (config.attention_softcap > 0) add("attn_logit_softcapping", config.attention_softcap);
  if (config.final_softcap > 0) add("final_logit_softcapping", config.final_softcap);
  if (config.model_type == "gemma2" && GgufScoreFactor(config) != 1) {
    const double scale = config.attention_scale;
    out.Add(kGgufQueryScalar, static_cast<float>(1 / (scale * scale)));
  }
  if (family.multipliers) AddMultipliers(config, prefix, out);
  if (config.delta_rule.heads > 0) add(gguf_key::kInnerSize, U32(config.delta_value_features()));
  WriteGgufRope(config, prefix, out);
}

std::vector<RopeFactors> GgufRopeFactors(const DecoderConfig& config) {
  const RopeConfig& rope = config.ropes[0];
  const auto narrow = [](const std::vector<double>& values) {
    std::vector<float> out;
    for (const double value : values) {
      out.push_back(std::isinf(value) ? kGgufStays : static_cast<float>(value));
    }
    return out;
  };
  if (rope.type == RopeType::kLongrope) {
    // Both lists: llama.cpp chooses by the length of the context that it is started with.
    return {{kGgufLongFactors, narrow(rope.long_factor)},
            {kGgufShortFactors, narrow(rope.short_factor)}};
  }
  std::vector<double> divisors = rope.divisors;
  const Family& family = FamilyOf(config);
  if (rope.type == RopeType::kLlama3 || WritesYarnAsFactors(rope, family)) {
    RopeConfig plain = rope;
    plain.type = RopeType::kDefault;
    plain.divisors.clear();
    const std::vector<double> unscaled = RopeFrequencies(plain, false);
    const std::vector<double> scaled = RopeFrequencies(rope, false);
    // Llama 3.1 and YaRN scale each frequency by another factor; llama.cpp divides frequency i by
    // rope_freqs[i].
    divisors.resize(scaled.size());
    for (std::size_t i = 0; i < scaled.size(); ++i) divisors[i] = unscaled[i] / scaled[i];
  }
  if (divisors.empty() && family.gguf.divisors == GgufDivisors::kNeeded) {
    divisors.assign(rope.rotary_dim / 2, 1);
  }
  if (divisors.empty()) return {};
  return {{kGgufDivisors, narrow(divisors)}};
}

}  // namespace qlora
