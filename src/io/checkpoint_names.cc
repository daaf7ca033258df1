#include "io/checkpoint_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"

namespace qlora {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

// In order of precedence. The first three are IsUsualPrefix; the empty one is of a model that was
// saved without its head.
constexpr auto kPrefixes = std::to_array<std::string_view>(
    {"model.", "language_model.model.", "model.language_model.", "", "transformer.",
     "language_model.", "model.model.", "model.language_model.model.", "llm.model.", "decoder.",
     "model.decoder.", "text_model.", "model.text_model."});
constexpr std::size_t kUsual = 3;

bool IsDecoderPart(std::string_view rest) {
  if (rest.starts_with("layers.")) {
    return rest.size() > 7 && rest[7] >= '0' && rest[7] <= '9';
  }
  for (const std::string_view part :
       {"embed_tokens", "embedding", "norm", "embedding_norm", "embed_tokens_per_layer",
        "per_layer_model_projection", "per_layer_projection_norm"}) {
    if (rest == part || (rest.starts_with(part) && rest[part.size()] == '.')) return true;
  }
  return false;
}

// What is before `end`, where it begins a word of the name.
std::optional<std::string> Before(const std::string& name, std::string_view end) {
  if (!name.ends_with(end)) return std::nullopt;
  std::string prefix = name.substr(0, name.size() - end.size());
  if (!prefix.empty() && prefix.back() != '.') return std::nullopt;
  return prefix;
}

}  // namespace

bool IsEmbedding(std::string_view name) {
  return std::ranges::find(kEmbeddingNames, name) != std::end(kEmbeddingNames);
}

std::string WithoutWrappers(std::string_view name) {
  std::string rest(name);
  for (const std::string_view word :
       {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."}) {
    rest = ReplaceAll(std::move(rest), std::string(word), "");
  }
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view word : {"module.", "_forward_module.", "base_model.model."}) {
      if (!rest.starts_with(word)) continue;
      rest.erase(0, word.size());
      found = true;
    }
  }
  return rest;
}

std::optional<DecoderName> SplitDecoderName(std::string_view name) {
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix) && IsDecoderPart(name.substr(prefix.size()))) {
      return DecoderName{prefix, name.substr(prefix.size())};
    }
  }
  return std::nullopt;
}

std::optional<DecoderPlace> PlaceInDecoder(std::string_view name) {
  const std::optional<DecoderName> split = SplitDecoderName(name);
  if (!split || !split->rest.starts_with("layers.")) return std::nullopt;
  const std::string_view rest = split->rest.substr(7);
  const std::size_t dot = rest.find('.');
  const auto layer = ParseNumber<std::int64_t>(rest.substr(0, dot));
  if (!layer || dot == rest.npos) return std::nullopt;
  return DecoderPlace{*layer, std::string(rest.substr(dot + 1))};
}

bool IsUsualPrefix(std::string_view prefix) {
  return std::find(kPrefixes.begin(), kPrefixes.begin() + kUsual, prefix) !=
         kPrefixes.begin() + kUsual;
}

std::optional<std::string> DecoderPrefixOf(const std::vector<std::string>& names) {
  std::set<std::string> found;
  for (const std::string_view embedding : kEmbeddingNames) {
    if (!found.empty()) break;
    for (const std::string& name : names) {
      auto prefix = Before(name, fmt::format("{}.weight", embedding));
      if (prefix) found.insert(*std::move(prefix));
    }
  }
  for (const std::string_view prefix : kPrefixes) {
    if (const auto it = found.find(std::string(prefix)); it != found.end()) return *it;
  }
  // Words that no known model has, where they leave no choice.
  if (found.size() == 1) return *found.begin();
  return std::nullopt;
}

std::optional<std::string> HeadPrefixOf(const std::vector<std::string>& names,
                                        std::string_view decoder_prefix) {
  // The longest: the head that is nearest to the decoder.
  std::optional<std::string> best;
  for (const std::string& name : names) {
    auto prefix = Before(name, kHead);
    if (!prefix) continue;
    // Of either generation of multimodal models, whose two parts may have been renamed apart.
    const bool near = decoder_prefix.starts_with(*prefix) || *prefix == "language_model.";
    if (near && (!best || prefix->size() > best->size())) best = std::move(prefix);
  }
  return best;
}

}  // namespace qlora
