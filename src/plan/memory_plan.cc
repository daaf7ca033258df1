#include "plan/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"
#include "data/data_options.h"
#include "pass/pass_shape.h"
#include "step/anchor_base.h"

namespace qlora {
namespace {

// Pages of the program's own code and small tables, which a run touches after its plan. We measured
// 0.5 to 1.05 MiB; the most after the system had dropped the program's file from its memory.
constexpr std::size_t kLaterPages = std::size_t{2} << 20;

// The memory of a training pass.
std::size_t TrainBytes(const DecoderConfig& config, const LoraAdapter& adapter,
                       const Precision& precision, const ActivationNeeds& needs) {
  const std::size_t bytes = BytesOfPass(config, {&adapter}, precision,
                                        TrainShape(config, needs.train_rows, needs.train_rows,
                                                   needs.recompute, needs.train_unfolded));
  if (needs.anchor_rows == 0) return bytes;
  return std::max(bytes, BytesOfPass(config, {&adapter}, precision,
                                     AnchorShape(config, needs.anchor_rows, needs.recompute)));
}

// The memory of an evaluation, of samples, or of the base on an anchor; 0 bytes for a run that has
// none of them.
std::size_t EvalBytes(const DecoderConfig& config, const LoraAdapter& adapter,
                      const Precision& precision, const ActivationNeeds& needs) {
  const std::int64_t rows = std::max(needs.eval_rows, needs.anchor_rows);
  if (rows == 0) return 0;
  return BytesOfPass(config, {&adapter}, precision, EvalShape(config, rows, needs.eval_unfolded));
}

// The part that a person should look at first when a plan does not fit.
const MemoryPart& LargestPart(const MemoryPlan& plan) {
  return *std::ranges::max_element(plan.parts, {}, &MemoryPart::bytes);
}

}  // namespace

// ---- Limits and passes.

BackendLimits LimitsOf(const DecoderConfig& config, const LoraAdapter& adapter,
                       const ActivationNeeds& needs) {
  const std::int64_t rows = std::max({needs.train_rows, needs.eval_rows, needs.anchor_rows});
  BackendLimits limits = LimitsOf(
      config, {&adapter}, rows, HeadRows(config, rows),
      std::max({needs.train_rows, needs.train_unfolded, needs.anchor_rows}), needs.train_length);
  limits.any_order = needs.writes_samples;
  return limits;
}

std::vector<std::size_t> BytesOfPasses(const DecoderConfig& config, const LoraAdapter& adapter,
                                       const Precision& precision, const ActivationNeeds& needs) {
  const std::size_t train = TrainBytes(config, adapter, precision, needs);
  std::vector<std::size_t> all(static_cast<std::size_t>(needs.in_flight), train);
  all[0] = std::max(train, EvalBytes(config, adapter, precision, needs));
  return all;
}

MemoryPlan PlanMemory(const Backend& backend, const DecoderConfig& config,
                      const LoraAdapter& adapter, const Precision& precision,
                      const WeightSizes& weights, const ActivationNeeds& needs,
                      std::size_t optimizer_bytes) {
  const std::size_t train = TrainBytes(config, adapter, precision, needs);
  const std::size_t eval = EvalBytes(config, adapter, precision, needs);
  MemoryPlan plan;
  // The bytes that the process holds now, with the data: they were read before the plan is made.
  plan.Add({"program and data", backend.memory().Held() + kLaterPages});
  plan.Add({"weights", weights.owned});
  plan.Add({"embeddings and other mapped weights", weights.mapped});
  plan.Add({"adapter", adapter.bytes()});
  plan.Add({"gradients", BytesOf(precision.wide, adapter.parameters().cols)});
  plan.Add({"optimizer", optimizer_bytes});
  // Evaluation runs in the memory of training's activations. Saving copies nothing.
  const std::size_t behind = static_cast<std::size_t>(needs.in_flight - 1) * train;
  plan.parts.push_back({"activations", std::max(train, eval) + behind});
  plan.train_peak += train + behind;
  plan.eval_peak += eval + behind;
  if (needs.anchor_rows > 0) {
    plan.Add({"the base's states of an anchor",
              BytesOfAnchorBase(config, precision, needs.anchor_rows)});
  }
  plan.Add({"workspace", backend.WorkspaceBytes(LimitsOf(config, adapter, needs))});
  return plan;
}

// ---- Recomputation.

// Raises the levels one layer at a time, each level over all layers before the next, and stops at
// the first choice that fits. O(levels x layers) plans, each of which only adds sizes.
std::vector<Recompute> ChooseRecompute(
    std::int64_t layers, std::size_t limit,
    const std::function<std::size_t(const std::vector<Recompute>&)>& bytes) {
  std::vector<Recompute> levels(layers, Recompute::kNone);
  for (const Recompute level : {Recompute::kAttention, Recompute::kLayer}) {
    for (Recompute& layer : levels) {
      if (bytes(levels) <= limit) return levels;
      layer = level;
    }
  }
  return levels;
}

namespace {

// In the order of the enumerators: NameOf uses the level as an index.
constexpr std::array<std::pair<const char*, Recompute>, 4> kRecomputeNames = {
    {{"none", Recompute::kNone},
     {"attention", Recompute::kAttention},
     {"mlp", Recompute::kMlp},
     {"layer", Recompute::kLayer}}};

}  // namespace

std::vector<std::string> RecomputeNames() {
  std::vector<std::string> names;
  for (const auto& [name, level] : kRecomputeNames) names.emplace_back(name);
  return names;
}

Recompute ParseRecompute(const std::string& text) {
  for (const auto& [name, level] : kRecomputeNames) {
    if (text == name) return level;
  }
  ThrowInvalidInput("recompute: expected one of {}, found '{}'", fmt::join(RecomputeNames(), ", "),
                    text);
}

const char* NameOf(Recompute level) { return kRecomputeNames[static_cast<int>(level)].first; }

std::string DescribeRecompute(std::span<const Recompute> levels) {
  std::string text;
  for (const auto& [name, level] : kRecomputeNames) {
    const auto count = std::count(levels.begin(), levels.end(), level);
    if (count == 0) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} in {} of {} layers", name, count, levels.size());
  }
  return text;
}

// ---- Amounts of memory.

// The bytes that the process holds already are part of a plan and not of free memory, so they are
// added to it. A limit that a user names is not lowered by `spare`.
std::size_t MemoryLimit(const std::string& max_memory, double spare, const Memory& memory,
                        int sharers) {
  if (sharers == 0 && !max_memory.empty()) return ParseBytes(max_memory);
  const std::size_t available = memory.Available() / static_cast<std::size_t>(std::max(sharers, 1));
  const std::size_t held = memory.Held();
  const std::size_t most = std::min(available + held, memory.Total());
  if (!max_memory.empty()) return std::min(ParseBytes(max_memory), most);
  return std::min(static_cast<std::size_t>((1 - spare) * static_cast<double>(available)) + held,
                  most);
}

std::size_t ParseBytes(const std::string& text) {
  constexpr double kLeastWithoutUnit = 1e6;  // "8" is more likely to mean 8GB than 8 bytes
  // strtod accepts "1.5e9", "inf" and "nan" too; the range test below refuses the last two.
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = LowerCase(end);
  const std::pair<const char*, double> units[] = {
      {"", 1},         {"b", 1},    {"k", 1e3},      {"kb", 1e3},    {"kib", 0x1p10},
      {"m", 1e6},      {"mb", 1e6}, {"mib", 0x1p20}, {"g", 1e9},     {"gb", 1e9},
      {"gib", 0x1p30}, {"t", 1e12}, {"tb", 1e12},    {"tib", 0x1p40}};
  for (const auto& [name, factor] : units) {
    const double bytes = number * factor;
    const bool has_unit = !unit.empty() || bytes >= kLeastWithoutUnit;
    if (end != text.c_str() && unit == name && has_unit && bytes > 0 && bytes < 1e18) {
      return static_cast<std::size_t>(bytes);
    }
  }
  ThrowInvalidInput(
      "max_memory: '{}' is not an amount of memory; expected a number with its unit, for example "
      "6GB or 512MiB",
      text);
}

ReadingLimits ReadingLimitsOf(const TrainOptions& options) {
  if (options.max_memory.empty()) return {};
  return {std::min(kMaxReadingMemory, static_cast<std::int64_t>(ParseBytes(options.max_memory)))};
}

std::string MemoryShortage(const MemoryPlan& plan, const std::string& max_memory,
                           const Memory& memory, int sharers,
                           const std::function<std::string(std::size_t limit)>& what_fits) {
  // A plan may use the share that FitMemory leaves to others: it is refused only when it exceeds
  // everything. The error names max_memory only if max_memory, and not free memory, is the limit.
  const std::size_t limit = MemoryLimit(max_memory, 0, memory, sharers);
  if (plan.peak() <= limit) return "";
  const bool asked = !max_memory.empty() && limit == ParseBytes(max_memory);
  const char* owner = sharers > 1 ? "each rank of this machine has" : "this machine has";
  const std::string allowed = asked ? fmt::format("max_memory {} allows", max_memory) : owner;
  const MemoryPart& largest = LargestPart(plan);
  return fmt::format("the run needs {} but {} {}; the largest part is {} ({}). {}",
                     FormatBytes(plan.peak()), allowed, FormatBytes(limit), largest.name,
                     FormatBytes(largest.bytes), what_fits(limit));
}

}  // namespace qlora
