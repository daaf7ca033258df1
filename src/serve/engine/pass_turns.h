// The passes that requests have submitted, and whose turn comes next. Of the thread of the engine.
//
// Passes of several requests take turns, a part each. A part is followed by a step, and by as many
// as may take the time that it took (step_ms), before the next part, so that answers are written at
// the pace that they have beside prompts.
//
// Counts are of parts that have ended: were run, or never will be.
#ifndef QLORA_SERVE_ENGINE_PASS_TURNS_H_
#define QLORA_SERVE_ENGINE_PASS_TURNS_H_

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>

#include "serve/generation_service.h"

namespace qlora {

class PassTurns {
 public:
  explicit PassTurns(std::int64_t step_ms) : step_ms_(step_ms) {}

  bool is_empty() const { return passes_.empty(); }
  std::int64_t requests() const { return std::ssize(passes_); }
  // A part comes next, rather than a step.
  bool HaveTurn(bool answers_are_written) const {
    return !is_empty() && (steps_owed_ == 0 || !answers_are_written);
  }

  void Add(GenerationId id, PartedPasses passes) { passes_.push_back({id, std::move(passes)}); }
  // Forgets passes, whose on_end is not called. 0: there are none with this id.
  std::int64_t Drop(GenerationId id);
  // Runs a part of the first passes by `run`, which stand behind the others then. The last part
  // ends them, and so does what `run` throws.
  std::int64_t RunPart(const std::function<void(const PartedPasses& passes)>& run);
  // Ends all passes.
  std::int64_t EndAll(const std::exception_ptr& error);
  void CountStep();

 private:
  struct Waiting {
    GenerationId id;
    PartedPasses passes;  // parts: that are left
  };

  std::int64_t EndFirst(const std::exception_ptr& error);

  std::int64_t step_ms_;
  std::deque<Waiting> passes_;   // the first has its turn
  std::int64_t steps_owed_ = 0;  // to answers, before the next part
};

}  // namespace qlora

#endif  // QLORA_SERVE_ENGINE_PASS_TURNS_H_
