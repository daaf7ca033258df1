#include "serve/engine/pass_turns.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/stopwatch.h"

namespace qlora {

std::int64_t PassTurns::Drop(GenerationId id) {
  const auto at = std::ranges::find(passes_, id, &Waiting::id);
  if (at == passes_.end()) return 0;
  const std::int64_t parts = at->passes.parts;
  passes_.erase(at);
  return parts;
}

std::int64_t PassTurns::RunPart(const std::function<void(const PartedPasses& passes)>& run) {
  Waiting& first = passes_.front();
  const Stopwatch watch;
  std::exception_ptr error;
  try {
    run(first.passes);
  } catch (...) {
    error = std::current_exception();
  }
  const double steps = watch.seconds() * 1000 / static_cast<double>(step_ms_);
  steps_owed_ = std::max<std::int64_t>(static_cast<std::int64_t>(std::ceil(steps)), 1);
  if (error || first.passes.parts == 1) return EndFirst(error);
  --first.passes.parts;
  passes_.push_back(std::move(first));
  passes_.pop_front();
  return 1;
}

std::int64_t PassTurns::EndAll(const std::exception_ptr& error) {
  std::int64_t parts = 0;
  while (!is_empty()) parts += EndFirst(error);
  return parts;
}

void PassTurns::CountStep() { steps_owed_ = std::max<std::int64_t>(steps_owed_ - 1, 0); }

std::int64_t PassTurns::EndFirst(const std::exception_ptr& error) {
  const Waiting ended = std::move(passes_.front());
  passes_.pop_front();
  ended.passes.on_end(error);
  return ended.passes.parts;
}

}  // namespace qlora
