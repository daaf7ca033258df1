// The GenerationService: one thread that owns the engine and its memory.
//
//   Submit, SubmitPasses, Cancel, RunAlone   any thread: work for the thread of the engine
//   the thread                               work, a part of passes, a step, and so on; sleeps
//                                            where there is none of these
//
// Tokens of a step go to Answers (engine_answer.h), which hand text to listeners. Parts of passes
// are run between steps (pass_turns.h).
#ifndef QLORA_SERVE_ENGINE_ENGINE_SERVICE_H_
#define QLORA_SERVE_ENGINE_ENGINE_SERVICE_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "inference/loaded_model.h"
#include "serve/generation_service.h"
#include "serve/metrics.h"
#include "serve/served_models.h"

namespace qlora {

struct EngineLimits {
  std::int64_t sequences = 16;    // that are written at the same time
  std::int64_t queue = 256;       // further ones that wait; parts of passes that wait, likewise
  std::int64_t positions = 2048;  // of a sequence: prompt and answer
  std::int64_t rows = 1024;       // of prompts, in a step
  std::int64_t alone_rows = 0;    // of a part of PartedPasses: GenerationSize
  std::int64_t alone_unfolded = 0;
  std::int64_t step_ms = 200;  // that a step with prompts should take, at most
};

class EngineService final : public GenerationService {
 public:
  // Allocates the memory for texts, and starts the thread. The adapters of models are there. All
  // must outlive this. Errors: OutOfMemory.
  EngineService(LoadedModel& base, const ServedModels& models, Metrics& metrics,
                const EngineLimits& limits);
  // As Stop.
  ~EngineService() override;
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  GenerationId Submit(GenerationRequest request, GenerationListener listener) override;
  GenerationId SubmitPasses(PartedPasses passes) override;
  void CheckRoomForPasses() const override;
  std::int64_t most_answers() const override;
  void Cancel(GenerationId id) override;
  void RunAlone(const std::function<void()>& work) override;

  // From now on requests are refused.
  void Refuse();
  // Ends what is being written, passes after the part that runs, and the thread.
  void Stop();
  // Waits until nothing is written and no passes are left. False when that takes longer.
  bool WaitUntilIdle(std::chrono::milliseconds longest) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ENGINE_ENGINE_SERVICE_H_
