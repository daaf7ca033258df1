#include "inference/sampler.h"

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace qlora {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The sum of exp((score - highest) * inverse), as each alone but for the order: of all tokens,
// whose number is the largest here.
HWY_ATTR double SumOfWeights(std::span<const float> scores, double highest, double inverse) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> f;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t all = std::ssize(scores);
  auto sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= all; i += lanes) {
    const auto score = hn::PromoteTo(d, hn::LoadU(f, scores.data() + i));
    const auto x = hn::Mul(hn::Sub(score, hn::Set(d, highest)), hn::Set(d, inverse));
    sum = hn::Add(sum, hn::Exp(d, x));
  }
  double total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < all; ++i) total += std::exp((scores[i] - highest) * inverse);
  return total;
}

}  // namespace

void Penalize(std::span<const std::int32_t> tokens, float penalty, std::span<float> logits) {
  std::vector<bool> seen(logits.size());
  for (const std::int32_t token : tokens) {
    if (seen[token]) continue;
    seen[token] = true;
    float& logit = logits[token];
    logit = logit < 0 ? logit * penalty : logit / penalty;
  }
}

Sampler::Sampler(const GenerateOptions& options)
    : greedy_(!options.do_sample || options.temperature == 0),
      temperature_(options.temperature),
      top_k_(options.top_k),
      top_p_(options.top_p),
      min_p_(options.min_p),
      repetition_penalty_(options.repetition_penalty),
      key_(MakeKey(static_cast<std::uint64_t>(options.seed), RandomPlace::kSampling)) {
  if (!(options.temperature >= 0 && std::isfinite(options.temperature))) {
    ThrowInvalidInput("temperature must be 0 or more, found {}", options.temperature);
  }
  if (options.top_k < 0) ThrowInvalidInput("top_k must be 0 or more, found {}", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    ThrowInvalidInput("top_p must be above 0 and at most 1, found {}", options.top_p);
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    ThrowInvalidInput("min_p must be at least 0 and at most 1, found {}", options.min_p);
  }
  if (!(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty))) {
    ThrowInvalidInput("repetition_penalty must be above 0, found {}", options.repetition_penalty);
  }
}

std::int32_t Sampler::Next(std::span<const float> logits, std::span<const std::int32_t> context,
                           std::int64_t draw) {
  scores_.assign(logits.begin(), logits.end());
  if (std::any_of(scores_.begin(), scores_.end(), [](float x) { return std::isnan(x); })) {
    ThrowRuntime("{}", kDamagedLogits);
  }
  if (repetition_penalty_ != 1) {
    Penalize(context, static_cast<float>(repetition_penalty_), scores_);
  }
  const auto likeliest = std::max_element(scores_.begin(), scores_.end());
  if (*likeliest == -std::numeric_limits<float>::infinity()) {
    ThrowRuntime("no token can be chosen: the logits of all are -infinity");
  }
  if (greedy_) return static_cast<std::int32_t>(likeliest - scores_.begin());
  // Most draws end within e^-10 of the largest weight.
  least_ = static_cast<float>(*likeliest - 10 * temperature_);
  heap_.clear();
  ranked_.clear();
  Gather(false);
  return Draw(draw);
}

// Weights are exp((x - max) / temperature), so that none overflows; their sum makes them
// probabilities.
std::int32_t Sampler::Draw(std::int64_t draw) {
  const double highest = Likeliest(0).first;
  const double inverse = 1 / std::max(temperature_, 1e-300);
  const auto weight = [&](float score) { return std::exp((score - highest) * inverse); };
  const std::int64_t all = std::ssize(scores_);
  const std::int64_t most = top_k_ > 0 ? std::min(top_k_, all) : all;
  double total = most == all ? SumOfWeights(scores_, highest, inverse) : 0;
  for (std::int64_t i = 0; most < all && i < most; ++i) total += weight(Likeliest(i).first);
  // The likeliest tokens whose probability reaches top_p, at least one; none of them less likely
  // than min_p of the first, whose weight is 1.
  double kept = 0;
  std::int64_t count = 0;
  const bool keeps_all = top_p_ == 1 && min_p_ == 0;
  while (!keeps_all && count < most && (count == 0 || kept < top_p_ * total)) {
    const double next = weight(Likeliest(count).first);
    if (count > 0 && next < min_p_) break;
    kept += next;
    ++count;
  }
  if (keeps_all) {
    kept = total;
    count = most;
  }
  // A draw from the kept weights: the token in whose part of [0, kept) the target falls. The last
  // token takes the rest that rounding leaves.
  double target = double{RandomUniform(key_, static_cast<std::uint64_t>(draw))} * kept;
  for (std::int64_t i = 0; i + 1 < count; ++i) {
    const double next = weight(Likeliest(i).first);
    if (target < next) return Likeliest(i).second;
    target -= next;
  }
  return Likeliest(count - 1).second;
}

// Candidate number i, the likeliest being number 0; equal logits in the order of their ids, so that
// runs agree.
const Sampler::Candidate& Sampler::Likeliest(std::int64_t i) {
  while (std::ssize(ranked_) <= i) {
    if (heap_.empty()) Gather(true);
    std::pop_heap(heap_.begin(), heap_.end(), IsLessLikely);
    ranked_.push_back(heap_.back());
    heap_.pop_back();
  }
  return ranked_[i];
}

// The tokens that are far from the likeliest one, or the others. A heap, because few are drawn or
// kept, and sorting all would take longer than the head of a small model.
void Sampler::Gather(bool far) {
  for (std::size_t i = 0; i < scores_.size(); ++i) {
    if ((scores_[i] < least_) == far) heap_.emplace_back(scores_[i], static_cast<std::int32_t>(i));
  }
  std::make_heap(heap_.begin(), heap_.end(), IsLessLikely);
}

}  // namespace qlora
