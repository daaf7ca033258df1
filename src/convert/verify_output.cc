#include "convert/verify_output.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adapter/combined_adapter.h"
#include "backend/backend_factory.h"
#include "base/check.h"
#include "convert/verify.h"
#include "convert/verify_report.h"
#include "model/base_record.h"
#include "model/checkpoint.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

using Ids = std::span<const std::int32_t>;

// Reports of progress, without which a signal would not end the comparison.
std::function<void()> Tick(const VerifySource& source) {
  return [&progress = source.progress] {
    if (progress) progress(1, 1);
  };
}

VerifyReport CompareAdapter(const VerifySource& source, Ids text) {
  LoraAdapter written = LoadAdapters({.sources = {{source.options.output}}}, source.config,
                                     source.backend.memory(), source.progress);
  written.FoldTables(source.weights);
  return Compare({source.backend, source.config, source.weights, source.adapter},
                 {source.backend, source.config, source.weights, &written}, text, Tick(source));
}

VerifyReport CompareModel(const VerifySource& source, Ids text) {
  BaseRecord dense;
  dense.load_in_4bit = false;
  const std::string& output = source.options.output;
  const DecoderConfig config = LoadDecoderConfig(output);
  LoadOptions load = LoadOptionsOf(dense);
  load.progress = source.progress;
  const DecoderWeights written = LoadWeights(source.context, source.backend, output, config, load);
  return Compare({source.backend, source.config, source.weights, source.adapter},
                 {source.backend, config, written}, text, Tick(source));
}

// Nothing where no tokenizer is written and the model has none that is read.
std::optional<Tokenizer> SourceTokenizer(const VerifySource& source) {
  const ExportOptions& options = source.options;
  try {
    return Tokenizer::Load(source.model_dir, source.adapters.first(), TemplateUse::kShow);
  } catch (const Error&) {
    if (options.format == "gguf" || !options.verify_text.empty()) throw;
    return {};
  }
}

}  // namespace

VerifyReport VerifyOutput(const VerifySource& source) {
  const std::string& output = source.options.output;
  VerifyReport found;
  try {
    const bool is_adapter = source.options.format.ends_with("-adapter");
    const std::optional<Tokenizer> tokenizer = SourceTokenizer(source);
    std::vector<std::int32_t> ids;
    if (tokenizer) ids = tokenizer->Encode(source.text);
    found = is_adapter ? CompareAdapter(source, ids) : CompareModel(source, ids);
    if (tokenizer && !is_adapter) {
      const Tokenizer written = Tokenizer::Load(output);
      const EncodeOptions options = {.prefix_space = source.prefix_space};
      found.other_tokens_at = FirstOtherToken(tokenizer->Encode(source.text, options),
                                              written.Encode(source.text, options));
    }
  } catch (const Error& error) {
    ThrowRuntime("{} was written, but could not be verified: {}", output, error.what());
  }
  const VerifyLimits limits = LimitsOfType(source.type);
  found.max_mean_difference = limits.mean_difference;
  // A rounded router sends some tokens to other experts.
  found.max_mean_kl = source.config.experts().num_experts > 0 ? 4 * limits.mean_kl : limits.mean_kl;
  return found;
}

}  // namespace qlora
