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
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "inference/engine.h"
#include "inference/generation_memory.h"
#include "inference/loaded_model.h"
#include "serve/engine/engine_answer.h"
#include "serve/engine/pass_turns.h"
#include "serve/engine/prompt_pace.h"
#include "serve/generation_service.h"
#include "serve/metrics.h"
#include "serve/served_models.h"

namespace qlora {

struct EngineLimits {
  std::int64_t sequences = 16;  // that are written at the same time
  std::int64_t queue = 256;  // further ones that wait; parts of passes, beyond which none is taken
  std::int64_t positions = 2048;  // of a sequence: prompt and answer
  std::int64_t rows = 1024;       // of prompts, in a step
  std::int64_t alone_rows = 0;    // of a part of PartedPasses: GenerationSize
  std::int64_t alone_unfolded = 0;
  std::int64_t step_ms = 200;  // that a step with prompts should take, at most
};

class EngineService final : public GenerationService {
 public:
  // Allocates the memory for texts, and starts the thread. adapters: passes have room for these,
  // and for none that is larger. All must outlive this. Errors:
  // OutOfMemory.
  EngineService(LoadedModel& base, Adapters adapters, Metrics& metrics, const EngineLimits& limits);
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
  struct Running {
    GenerationId id;
    std::unique_ptr<EngineAnswer> answer;
  };
  using Answers = std::map<RequestId, Running>;

  void Post(std::function<void()> work);
  // With the lock held. Errors: as GenerationService.
  void NeedRoomForPasses() const;

  void Work();
  // Runs what was posted, for as long as a step may take. False at the end.
  bool RunPosted();
  // Makes what is missing of buffers and engine. Errors: OutOfMemory.
  void MakeEngine();
  // The memory of passes. The next request asks for it again.
  void GiveBack();
  void Begin(GenerationId id, std::unique_ptr<EngineAnswer> answer);
  void Drop(GenerationId id);
  void RunPart(const PartedPasses& passes);
  void Step();
  void ShowLoad();
  void Take(const EngineToken& token);
  // Forgets an answer whose listener knows of its end.
  void Close(Answers::iterator at);
  void Fail(EngineAnswer& answer, const std::string& error);
  void FailAll(const std::string& error);
  // An answer more has ended; parts more are run, or will never be.
  void CountDown();
  void CountDownParts(std::int64_t parts);
  // Has the engine forget what it knows of another adapter that had the address of this one.
  void KnowAdapter(const std::shared_ptr<const LoraAdapter>& adapter);
  bool is_idle() const { return engine_ == nullptr || engine_->is_idle(); }
  void CountEnd(const EngineAnswer& answer);

  LoadedModel& base_;
  const Adapters planned_;
  Metrics& metrics_;
  const EngineLimits limits_;
  PromptPace pace_;

  // Of the thread of the engine. Both are null where there was no memory to make them anew.
  std::unique_ptr<GenerationBuffers> buffers_;
  std::unique_ptr<Engine> engine_;
  Answers answers_;
  PassTurns passes_;
  // That the engine may know. Their memory is free as soon as no answer needs them.
  std::map<const LoraAdapter*, std::weak_ptr<const LoraAdapter>> adapters_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;  // null ends the thread
  std::int64_t open_ = 0;                     // answers that have not ended
  std::int64_t open_parts_ = 0;               // of passes, that have not ended
  GenerationId next_id_ = 0;
  bool has_ended_ = false;
  bool refuses_ = false;
  std::thread thread_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ENGINE_ENGINE_SERVICE_H_
