#include "serve/engine/engine_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "inference/engine.h"
#include "inference/generation_memory.h"
#include "serve/api_error.h"
#include "serve/engine/engine_answer.h"
#include "serve/engine/pass_turns.h"
#include "serve/engine/prompt_pace.h"

namespace qlora {
namespace {

// True where buffers for the second adapters serve the first.
bool Fit(const AdapterSizes& part, const AdapterSizes& whole) {
  for (std::size_t layer = 0; layer < part.layers.size(); ++layer) {
    for (std::size_t i = 0; i < part.layers[layer].size(); ++i) {
      if (part.layers[layer][i].rank > whole.layers[layer][i].rank) return false;
    }
  }
  return part.dora_linear <= whole.dora_linear && part.dora_group <= whole.dora_group;
}

ApiError Stopping() { return ApiError(503, "the server is stopping", "", "stopping"); }

ApiError Full(std::int64_t waiting, const char* what) {
  return ApiError(429, fmt::format("{} {} are waiting already; try again later", waiting, what), "",
                  "queue_full");
}

}  // namespace

class EngineService::Impl {
 public:
  Impl(LoadedModel& base, const ServedModels& models, Metrics& metrics, const EngineLimits& limits)
      : base_(base),
        models_(models),
        metrics_(metrics),
        limits_(limits),
        pace_(limits.step_ms),
        passes_(limits.step_ms) {
    Adapters adapters;
    const std::vector<ServedModelPtr> all = models_.All();
    for (const ServedModelPtr& model : all) {
      if (model->adapter != nullptr) adapters.push_back(model->adapter.get());
    }
    MakeEngine(adapters);
    metrics_.Set("qlora_kv_pages_total", static_cast<double>(limits_.sequences));
    thread_ = std::thread([this] { Work(); });
  }

  ~Impl() { Stop(); }

  GenerationId Submit(GenerationRequest request, GenerationListener listener);
  GenerationId SubmitPasses(PartedPasses passes);
  void CheckRoomForPasses() const {
    const std::lock_guard lock(mutex_);
    NeedRoomForPasses();
  }
  std::int64_t most_answers() const { return limits_.sequences + limits_.queue; }
  void Cancel(GenerationId id) {
    Post([this, id] { Drop(id); });
  }
  void RunAlone(const std::function<void()>& work);
  void Refuse() {
    const std::lock_guard lock(mutex_);
    refuses_ = true;
  }
  void Stop() {
    {
      // What was accepted stands before the end, and is told of it.
      const std::lock_guard lock(mutex_);
      refuses_ = true;
      posted_.push_back(nullptr);
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
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
  void MakeEngine(const Adapters& adapters);
  // Makes the buffers anew, for the adapters of what waits for that, and begins it.
  void MakeRoom();
  void Begin(GenerationId id, std::unique_ptr<EngineAnswer> answer);
  void Drop(GenerationId id);
  void RunPart(const PartedPasses& passes);
  // The memory of passes. The next request asks for it again.
  void GiveBack() {
    FailAll("there is no memory for passes now");
    engine_.reset();
    buffers_.reset();
  }
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
  // Gives adapters back that nobody serves any more.
  void ReleaseAdapters();
  bool is_idle() const { return engine_ == nullptr || engine_->is_idle(); }
  bool HasRoomFor(const LoraAdapter* adapter) const;
  void CountEnd(const EngineAnswer& answer);

  LoadedModel& base_;
  const ServedModels& models_;
  Metrics& metrics_;
  const EngineLimits limits_;
  PromptPace pace_;

  // Of the thread of the engine. Buffers and engine are null where there was no memory to make them
  // anew.
  std::unique_ptr<GenerationBuffers> buffers_;
  std::unique_ptr<Engine> engine_;
  std::optional<AdapterSizes> sizes_;  // what the buffers are for
  Answers answers_;
  std::deque<Running> held_;  // wait for larger buffers
  PassTurns passes_;
  std::map<const LoraAdapter*, std::shared_ptr<const LoraAdapter>> adapters_;  // engine may know

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

// ---- Any thread.

GenerationId EngineService::Impl::Submit(GenerationRequest request, GenerationListener listener) {
  ServedModelPtr model = models_.Find(request.model);
  const std::int64_t prompt = std::ssize(request.prompt);
  const std::int64_t room = limits_.positions - prompt;
  if (prompt == 0) throw ApiError(400, "the prompt is empty, and this model has no token to begin");
  if (room < 1) throw ContextExceeded(limits_.positions, fmt::format("{} tokens", prompt));
  // A pass with an id that the model has no row for would end the answers of all.
  const std::int64_t largest = *std::ranges::max_element(request.prompt);
  if (largest >= base_.config.vocab_size) {
    throw ApiError(
        400, fmt::format("the prompt has token {} ('{}'), and the model reads tokens "
                         "below {}; leave it out",
                         largest, model->tokenizer->TokenText(static_cast<std::int32_t>(largest)),
                         base_.config.vocab_size));
  }
  const std::lock_guard lock(mutex_);
  if (refuses_) throw Stopping();
  if (open_ >= most_answers()) throw Full(open_, "requests");
  ++open_;
  const GenerationId id = next_id_++;
  // Shared, since std::function wants to copy.
  auto answer = std::make_shared<std::unique_ptr<EngineAnswer>>(std::make_unique<EngineAnswer>(
      std::move(model), std::move(request), std::move(listener), room));
  posted_.push_back([this, id, answer] { Begin(id, std::move(*answer)); });
  changed_.notify_all();
  return id;
}

void EngineService::Impl::NeedRoomForPasses() const {
  if (refuses_) throw Stopping();
  // A request with more parts than may wait gets in all the same where there is room for one.
  if (open_parts_ > limits_.queue) throw Full(open_parts_, "parts of decisions");
}

GenerationId EngineService::Impl::SubmitPasses(PartedPasses passes) {
  const std::lock_guard lock(mutex_);
  NeedRoomForPasses();
  open_parts_ += passes.parts;
  const GenerationId id = next_id_++;
  posted_.push_back([this, id, passes = std::move(passes)] { passes_.Add(id, passes); });
  changed_.notify_all();
  return id;
}

void EngineService::Impl::RunAlone(const std::function<void()>& work) {
  auto task = std::make_shared<std::packaged_task<void()>>(work);
  std::future<void> done = task->get_future();
  Post([task] { (*task)(); });
  task.reset();
  try {
    done.get();
  } catch (const std::future_error&) {
    throw Stopping();  // the thread has ended
  }
}

bool EngineService::Impl::WaitUntilIdle(std::chrono::milliseconds longest) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [this] { return open_ == 0 && open_parts_ == 0; });
}

void EngineService::Impl::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    // Dropped once the thread has ended.
    if (has_ended_) return;
    posted_.push_back(std::move(work));
  }
  changed_.notify_all();
}

// ---- The thread of the engine.

void EngineService::Impl::Work() {
  while (RunPosted()) {
    if (!held_.empty() && is_idle()) MakeRoom();
    ShowLoad();
    if (passes_.HaveTurn(!is_idle())) {
      CountDownParts(passes_.RunPart([this](const PartedPasses& passes) { RunPart(passes); }));
    }
    if (!is_idle()) Step();
    ReleaseAdapters();
    ShowLoad();
  }
  FailAll("the server was stopped");
  for (Running& held : held_) Fail(*held.answer, "the server was stopped");
  CountDownParts(passes_.EndAll(std::make_exception_ptr(Stopping())));
  std::deque<std::function<void()>> dropped;
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  dropped.swap(posted_);
}

bool EngineService::Impl::RunPosted() {
  const Stopwatch watch;
  std::unique_lock lock(mutex_);
  // Answers that were given back are all ended before the thread sleeps.
  if (is_idle() && held_.empty() && passes_.is_empty()) {
    changed_.wait(lock, [this] { return !posted_.empty(); });
  }
  while (!posted_.empty() && watch.seconds() * 1000 < static_cast<double>(limits_.step_ms)) {
    std::function<void()> work = std::move(posted_.front());
    posted_.pop_front();
    if (work == nullptr) return false;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
  return true;
}

void EngineService::Impl::MakeRoom() {
  Adapters adapters;
  Adapters old;
  // Held until the buffers are made: models come and go.
  const std::vector<ServedModelPtr> models = models_.All();
  for (const ServedModelPtr& model : models) {
    const LoraAdapter* adapter = model->adapter.get();
    if (adapter == nullptr) continue;
    adapters.push_back(adapter);
    if (Fit(AdapterSizes(base_.config, {adapter}), *sizes_)) old.push_back(adapter);
  }
  for (const Running& held : held_) {
    const LoraAdapter* adapter = held.answer->model().adapter.get();
    if (adapter != nullptr) adapters.push_back(adapter);
  }
  std::deque<Running> held = std::exchange(held_, {});
  try {
    MakeEngine(adapters);
    for (Running& one : held) Begin(one.id, std::move(one.answer));
  } catch (const std::exception& error) {
    for (Running& one : held) Fail(*one.answer, error.what());
    try {
      MakeEngine(old);
    } catch (const std::exception&) {
      // What was free before is taken now.
      GiveBack();
    }
  }
}

void EngineService::Impl::MakeEngine(const Adapters& adapters) {
  // Both sets at a time could be more memory than there is.
  engine_.reset();
  buffers_.reset();
  buffers_ = std::make_unique<GenerationBuffers>(
      *base_.backend, base_.config, base_.weights, base_.precision, adapters,
      GenerationSize{.rows = limits_.rows,
                     .positions = limits_.positions,
                     .slots = limits_.sequences,
                     .alone_rows = limits_.alone_rows,
                     .alone_unfolded = limits_.alone_unfolded});
  sizes_.emplace(base_.config, adapters);
  engine_ = std::make_unique<Engine>(buffers_->decoder, buffers_->passes, buffers_->pool.pool(),
                                     limits_.rows);
}

bool EngineService::Impl::HasRoomFor(const LoraAdapter* adapter) const {
  if (engine_ == nullptr) return false;
  return adapter == nullptr || adapters_.contains(adapter) ||
         Fit(AdapterSizes(base_.config, AdaptersOf(adapter)), *sizes_);
}

void EngineService::Impl::Begin(GenerationId id, std::unique_ptr<EngineAnswer> answer) {
  const std::shared_ptr<const LoraAdapter>& adapter = answer->model().adapter;
  if (!held_.empty() || !HasRoomFor(adapter.get())) {
    held_.push_back({id, std::move(answer)});
    return;
  }
  if (adapter != nullptr) adapters_[adapter.get()] = adapter;
  try {
    const RequestId number = engine_->Submit(answer->TakeRequest());
    answers_.emplace(number, Running{id, std::move(answer)});
  } catch (const std::exception& error) {
    Fail(*answer, error.what());
  }
}

void EngineService::Impl::Drop(GenerationId id) {
  const auto is_it = [id](const Running& running) { return running.id == id; };
  const auto at = std::ranges::find_if(
      answers_, [&](const Answers::value_type& entry) { return is_it(entry.second); });
  if (const std::int64_t parts = passes_.Drop(id); parts > 0) {
    metrics_.Count("qlora_requests_cancelled_total");
    CountDownParts(parts);
    return;
  }
  const std::size_t held = std::erase_if(held_, is_it);
  if (at == answers_.end() && held == 0) return;
  if (at != answers_.end()) {
    engine_->Cancel(at->first);
    CountEnd(*at->second.answer);
    answers_.erase(at);
  }
  metrics_.Count("qlora_requests_cancelled_total");
  CountDown();
}

void EngineService::Impl::RunPart(const PartedPasses& passes) {
  if (buffers_ == nullptr) MakeRoom();
  if (buffers_ == nullptr) throw ApiError(503, "there is no memory for a pass now");
  const std::size_t room = buffers_->activations.bytes();
  try {
    passes.run_part(buffers_->decoder, buffers_->activations);
  } catch (...) {
    // Passes that wanted more than there was gave theirs back, which those of answers need.
    if (buffers_->activations.bytes() < room) GiveBack();
    throw;
  }
}

void EngineService::Impl::Step() {
  passes_.CountStep();
  std::int64_t unread = 0;
  bool some_are_written = false;
  for (const auto& [number, running] : answers_) {
    if (running.answer->has_begun()) {
      some_are_written = true;
    } else {
      unread += running.answer->prompt_tokens();
    }
  }
  const Stopwatch watch;
  const std::int64_t rows = std::min(pace_.rows(some_are_written), limits_.rows);
  try {
    const std::vector<EngineToken> tokens = engine_->Step(rows);
    pace_.Add(std::min(rows, unread), watch.seconds());
    metrics_.Observe("qlora_step_seconds", watch.seconds());
    metrics_.Observe("qlora_step_rows", static_cast<double>(tokens.size()));
    for (const EngineToken& token : tokens) Take(token);
  } catch (const std::exception& error) {
    // What the engine knows is in doubt.
    FailAll(error.what());
    engine_ = std::make_unique<Engine>(buffers_->decoder, buffers_->passes, buffers_->pool.pool(),
                                       limits_.rows);
  }
}

void EngineService::Impl::ShowLoad() {
  // The next step gives slots to as many as there are.
  const std::int64_t asked = engine_ == nullptr ? 0 : engine_->running() + engine_->waiting();
  const std::int64_t running = std::min(asked, limits_.sequences);
  metrics_.Set("qlora_requests_running", static_cast<double>(running + passes_.requests()));
  metrics_.Set("qlora_requests_waiting", static_cast<double>(asked - running + std::ssize(held_)));
  metrics_.Set("qlora_kv_pages_used", static_cast<double>(running));
}

void EngineService::Impl::Take(const EngineToken& token) {
  const auto at = answers_.find(token.request);
  if (at == answers_.end()) return;
  EngineAnswer& answer = *at->second.answer;
  const bool is_first = !answer.has_begun();
  const double seconds = answer.TakeTokenSeconds();
  metrics_.Observe(is_first ? "qlora_time_to_first_token_seconds" : "qlora_inter_token_seconds",
                   seconds);
  if (answer.Add(token)) return;
  engine_->Cancel(token.request);
  Close(at);
}

void EngineService::Impl::Close(Answers::iterator at) {
  CountEnd(*at->second.answer);
  answers_.erase(at);
  CountDown();
}

void EngineService::Impl::CountDown() {
  const std::lock_guard lock(mutex_);
  --open_;
  changed_.notify_all();
}

void EngineService::Impl::CountDownParts(std::int64_t parts) {
  const std::lock_guard lock(mutex_);
  open_parts_ -= parts;
  changed_.notify_all();
}

void EngineService::Impl::Fail(EngineAnswer& answer, const std::string& error) {
  answer.Fail(error);
  CountDown();
}

void EngineService::Impl::CountEnd(const EngineAnswer& answer) {
  const GenerationEnd& end = answer.end();
  const LabelValues model = {answer.model().name};
  metrics_.Count("qlora_prompt_tokens_total", model, static_cast<double>(end.prompt_tokens));
  metrics_.Count("qlora_prompt_tokens_cached_total", model, static_cast<double>(end.cached_tokens));
  metrics_.Count("qlora_generation_tokens_total", model, static_cast<double>(end.new_tokens));
  metrics_.Observe("qlora_request_seconds", answer.seconds());
}

void EngineService::Impl::FailAll(const std::string& error) {
  while (!answers_.empty()) {
    const auto at = answers_.begin();
    at->second.answer->Fail(error);
    engine_->Cancel(at->first);
    Close(at);
  }
}

void EngineService::Impl::ReleaseAdapters() {
  for (auto at = adapters_.begin(); at != adapters_.end();) {
    if (at->second.use_count() > 1) {
      ++at;
      continue;
    }
    // Another adapter may get the same address.
    if (engine_ != nullptr) engine_->Forget(at->first);
    at = adapters_.erase(at);
  }
}

// ---- The face.

EngineService::EngineService(LoadedModel& base, const ServedModels& models, Metrics& metrics,
                             const EngineLimits& limits)
    : impl_(std::make_unique<Impl>(base, models, metrics, limits)) {}
EngineService::~EngineService() = default;

GenerationId EngineService::Submit(GenerationRequest request, GenerationListener listener) {
  return impl_->Submit(std::move(request), std::move(listener));
}

GenerationId EngineService::SubmitPasses(PartedPasses passes) {
  return impl_->SubmitPasses(std::move(passes));
}

void EngineService::CheckRoomForPasses() const { impl_->CheckRoomForPasses(); }
std::int64_t EngineService::most_answers() const { return impl_->most_answers(); }

void EngineService::Cancel(GenerationId id) { impl_->Cancel(id); }

void EngineService::RunAlone(const std::function<void()>& work) { impl_->RunAlone(work); }

void EngineService::Refuse() { impl_->Refuse(); }

void EngineService::Stop() { impl_->Stop(); }

bool EngineService::WaitUntilIdle(std::chrono::milliseconds longest) const {
  return impl_->WaitUntilIdle(longest);
}

}  // namespace qlora
