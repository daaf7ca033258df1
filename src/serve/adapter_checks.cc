#include "serve/adapter_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "pass/activations.h"

namespace qlora {
namespace {

// The form in which the base is held: a checkpoint in 4 bits has its own.
BaseRecord HeldForm(const LoadedModel& base) {
  BaseRecord held = base.base;
  if (const auto& stored = base.weights.sizes.stored_4bit) {
    held.load_in_4bit = true;
    held.quantization = *stored;
  }
  return held;
}

}  // namespace

std::string DescribeForm(const BaseRecord& base) {
  if (!base.load_in_4bit) return "as its files have it";
  const QuantizationFields& form = base.quantization;
  return fmt::format("in {}{}, blocks of {}{}", form.bnb_4bit_quant_type,
                     form.bnb_4bit_use_double_quant ? " with double quantization" : "",
                     form.bnb_4bit_blocksize, form.scale_search ? ", searched scales" : "");
}

void CheckForm(const std::string& folder, const BaseRecord& trained, const LoadedModel& base) {
  // The blocks of a file are used as they are, whatever an adapter was trained on.
  if (!base.weights.sizes.block_formats.empty()) return;
  const std::string found = DescribeForm(trained);
  const std::string held = DescribeForm(HeldForm(base));
  if (found == held) return;
  ThrowInvalidInput(
      "{}: the adapter was trained on a base held {}, and {} is held {}: its answers would be "
      "worse. Serve it by itself, or with --load_in_4bit and the --bnb_4bit options of its "
      "training",
      folder, found, base.options.model_name_or_path, held);
}

void CheckParts(const std::string& folder, const LoraAdapter& adapter, const LoadedModel& base) {
  std::vector<std::string> parts;
  for (const TrainedModule& module : adapter.modules()) parts.push_back(module.name);
  for (const TableChange& change : adapter.changes()) parts.push_back(change.name);
  if (adapter.replaced() != nullptr) {
    for (const auto& [name, tensor] : *adapter.replaced()) parts.push_back(name);
  }
  if (!parts.empty()) {
    ThrowInvalidInput(
        "{}: the adapter brings {} of its own, which all models of a server share; merge it "
        "(qlora export) and serve the result",
        folder, fmt::join(parts, ", "));
  }
  if (adapter.vocab_size() != base.config.vocab_size) {
    ThrowInvalidInput(
        "{}: the adapter has a vocabulary of {} tokens, and the base one of {}; merge it (qlora "
        "export) and serve the result",
        folder, adapter.vocab_size(), base.config.vocab_size);
  }
}

LoraAdapter LargestAdapter(const DecoderConfig& decoder, Memory& memory, std::int64_t rank) {
  AdapterConfig config;
  config.r = rank;
  config.target_modules = std::string("all-linear");
  config.target_parameters = {"gate_up_proj", "down_proj"};  // of joined experts
  config.use_dora = decoder.experts().num_experts == 0;
  return LoraAdapter(config, decoder, memory);
}

std::int64_t RankOf(const LoraAdapter& adapter) {
  std::int64_t rank = 0;
  for (const auto& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) { rank = std::max(rank, lora.rank); });
  }
  return rank;
}

void CheckRoom(const std::string& folder, const LoraAdapter& adapter, const LoraAdapter& largest) {
  const std::int64_t rank = RankOf(adapter);
  if (rank > RankOf(largest)) {
    ThrowInvalidInput(
        "{}: the adapter has rank {}, and passes of this server have room for {}; start it with "
        "--max_lora_rank {}",
        folder, rank, RankOf(largest), rank);
  }
  const DecoderConfig& decoder = largest.decoder();
  if (!AdapterSizes(decoder, {&largest}).Holds(AdapterSizes(decoder, {&adapter}))) {
    ThrowInvalidInput(
        "{}: the adapter changes linears for which passes of this server have no room; merge it "
        "(qlora export) and serve the result",
        folder);
  }
}

}  // namespace qlora
