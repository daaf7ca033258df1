#include "serve/engine/logit_edits.h"

#include <limits>
#include <map>
#include <utility>

#include "inference/sampler.h"

namespace qlora {
namespace {

struct Edits {
  std::vector<std::pair<std::int32_t, float>> biases;
  float repetition;   // 1: no penalty
  PromptTokens seen;  // the prompt, where there is a penalty
  float presence;
  float frequency;
  std::int64_t min_tokens;
  bool never_ends;
  std::vector<std::int32_t> ends;

  void Apply(std::span<const std::int32_t> answer, std::span<float> logits) const {
    for (const auto& [token, bias] : biases) logits[token] += bias;
    if (repetition != 1) {
      std::vector<std::int32_t> all(seen.begin(), seen.end());
      all.insert(all.end(), answer.begin(), answer.end());
      Penalize(all, repetition, logits);
    }
    if (presence != 0 || frequency != 0) {
      std::map<std::int32_t, std::int64_t> counts;
      for (const std::int32_t token : answer) ++counts[token];
      for (const auto& [token, count] : counts) {
        logits[token] -= presence + frequency * static_cast<float>(count);
      }
    }
    if (!never_ends && std::ssize(answer) >= min_tokens) return;
    for (const std::int32_t token : ends) {
      logits[token] = -std::numeric_limits<float>::infinity();
    }
  }
};

}  // namespace

LogitEdit TakeLogitEdits(GenerationRequest& request, const std::vector<std::int32_t>& ends) {
  Edits edits = {
      .biases = std::move(request.logit_bias),
      .repetition = static_cast<float>(request.options.repetition_penalty),
      .seen = {},
      .presence = static_cast<float>(request.presence_penalty),
      .frequency = static_cast<float>(request.frequency_penalty),
      .min_tokens = request.min_tokens,
      .never_ends = request.ignore_eos,
      .ends = ends,
  };
  const bool penalizes = edits.presence != 0 || edits.frequency != 0;
  // The sampler has the repetition penalty itself, at the same place where nothing else follows.
  if (penalizes && edits.repetition != 1) {
    edits.seen = request.prompt;
    request.options.repetition_penalty = 1;
  } else {
    edits.repetition = 1;
  }
  const bool holds_back = edits.min_tokens > 0 || edits.never_ends;
  if (edits.biases.empty() && !penalizes && !holds_back) return nullptr;
  return [edits = std::move(edits)](std::span<const std::int32_t> answer, std::span<float> logits) {
    edits.Apply(answer, logits);
  };
}

}  // namespace qlora
