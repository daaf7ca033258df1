// Random adapters of the tiny models, their conversions and their tensors.
#ifndef QLORA_TESTS_EXPORT_ADAPTER_FIXTURE_H_
#define QLORA_TESTS_EXPORT_ADAPTER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "adapter/expert_stack.h"
#include "adapter/lora_values.h"
#include "base/matrix.h"
#include "base/random.h"
#include "convert/convert_fixture.h"
#include "io/float_encoding.h"
#include "io/peft/peft.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"

namespace qlora {

using Tensors = std::map<std::string, std::vector<float>>;

inline Tensors ReadAll(const fs::path& file) {
  const std::unique_ptr<TensorReader> reader = OpenSafetensors(file);
  Tensors tensors;
  for (const TensorInfo& tensor : reader->tensors()) {
    std::vector<float>& values = tensors[tensor.name];
    values.resize(tensor.elements());
    DecodeFloats(tensor.dtype, reader->Bytes(tensor), values);
  }
  return tensors;
}

// relative: what values may differ by; 0: the same bits.
inline void ExpectSame(const Tensors& found, const Tensors& expected, double relative = 0) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    const std::vector<float>& other = found.at(name);
    ASSERT_EQ(other.size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(other[i], values[i], relative * std::abs(values[i])) << name << " at " << i;
    }
  }
}

class AdapterFormatsTest : public ConvertTest {
 protected:
  fs::path Convert(const std::string& model, const std::vector<std::string>& adapters,
                   const std::string& to, const std::string& format) {
    ExportOptions options;
    options.model_name_or_path = kGolden / model;
    options.adapter = adapters;
    options.output = root_ / to;
    options.format = format + "-adapter";
    options.outtype = "f32";
    options.verify = "true";
    const ExportReport report = Export(context_, options);
    EXPECT_TRUE(report.verified);
    // Another order of the same products, and B with a scale in it.
    EXPECT_LT(report.max_logprob_difference, 3e-5) << model << " " << format;
    return root_ / to;
  }

  // An adapter with random A and B, of the tables too where they are named in `config`.
  fs::path WriteRandom(const std::string& model, const AdapterConfig& config, const std::string& to,
                       std::uint64_t seed) {
    const DecoderConfig decoder = LoadDecoderConfig(kGolden / model);
    AdapterConfig linears = config;
    AdapterValues values;
    std::uint64_t number = 0;
    const auto random = [&](std::int64_t rows, std::int64_t cols) {
      return KaimingUniform(MakeKey(seed, RandomPlace::kLoraInit, number++), rows, cols);
    };
    const auto add = [&](const std::string& path, std::int64_t out, std::int64_t in) {
      if (!IsTargetModule(config, path)) return;
      LoraValues module{path, in, out, RankOf(config, path), ScaleOf(config, path)};
      module.a = random(module.rank, in);
      // PEFT has one parameter for gate and up.
      if (IsJoinedExpert(decoder, path) && path.ends_with(".up_proj")) {
        module.a = values.modules.back().a;
      }
      module.b = random(out, module.rank);
      if (config.use_dora) module.magnitude = std::vector<float>(out, 1.5f);
      values.modules.push_back(std::move(module));
    };
    for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
      ForEachPair(LinearPaths(decoder, l), ShapeLinears(decoder, l),
                  [&](const std::string& path, const LinearShape& s) { add(path, s.out, s.in); });
    }
    add("lm_head", decoder.vocab_size, decoder.hidden_size);
    add("model.embed_tokens", decoder.hidden_size, decoder.vocab_size);
    std::vector<AdapterWeights> weights;
    const std::vector<StackedLora> stacks = StackExperts(values.modules, decoder);
    for (const StackedLora& s : stacks) {
      const std::int64_t ranks = s.experts * s.rank;
      weights.push_back({s.path,
                         MakeView(s.a.data(), ranks, s.in),
                         MakeView(s.b.data(), s.out, ranks),
                         {},
                         s.wrapper,
                         s.experts});
    }
    for (const LoraValues& m : values.modules) {
      if (IsJoinedExpert(decoder, m.path)) continue;
      AdapterWeights& views = weights.emplace_back();
      views.path = m.path;
      views.a = MakeView(m.a.data(), m.rank, m.in);
      views.b = MakeView(m.b.data(), m.out, m.rank);
      if (config.use_dora) views.magnitude = MakeView(m.magnitude.data(), 1, m.out);
    }
    WriteAdapter(root_ / to, config, weights, DType::kF32);
    return root_ / to;
  }

  static AdapterConfig Targeting(const std::vector<std::string>& names, std::int64_t r,
                                 double alpha) {
    AdapterConfig config;
    config.target_modules = names;
    config.r = r;
    config.lora_alpha = alpha;
    return config;
  }

  std::vector<double> TokensOf(const fs::path& model, const std::vector<std::string>& adapters,
                               std::int64_t rank = 0) {
    ModelOptions options;
    options.model_name_or_path = model;
    options.adapter = adapters;
    options.adapter_rank = rank;
    options.load_in_4bit = "false";
    options.compute_dtype = "float32";
    EvalOptions eval;
    eval.dataset = {kGolden / "train-20" / "data.jsonl"};
    eval.per_token = true;
    return Model::Load(context_, options).Evaluate(eval).logprobs;
  }
};

}  // namespace qlora

#endif  // QLORA_TESTS_EXPORT_ADAPTER_FIXTURE_H_
