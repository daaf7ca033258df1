#include "serve/engine/engine_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <future>
#include <utility>
#include <vector>

#include "serve/api_error.h"

namespace qlora {
namespace {

ApiError Stopping() { return ApiError(503, "the server is stopping", "", "stopping"); }

// open: those that run, too.
ApiError Full(std::int64_t open, const char* what) {
  return ApiError(
      429, fmt::format("{} {} run or wait already, and no more may; try again later", open, what),
      "", "queue_full");
}

}  // namespace

// ---- Any thread.

EngineService::EngineService(LoadedModel& base, Adapters adapters, Metrics& metrics,
                             const EngineLimits& limits)
    : base_(base),
      planned_(std::move(adapters)),
      metrics_(metrics),
      limits_(limits),
      pace_(limits.step_ms),
      passes_(limits.step_ms) {
  MakeEngine();
  metrics_.Set("qlora_kv_pages_total", static_cast<double>(limits_.sequences));
  thread_ = std::thread([this] { Work(); });
}

EngineService::~EngineService() { Stop(); }

void EngineService::Refuse() {
  const std::lock_guard lock(mutex_);
  refuses_ = true;
}

void EngineService::Stop() {
  {
    // What was accepted stands before the end, and is told of it.
    const std::lock_guard lock(mutex_);
    refuses_ = true;
    posted_.push_back(nullptr);
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void EngineService::CheckRoomForPasses() const {
  const std::lock_guard lock(mutex_);
  NeedRoomForPasses();
}

std::int64_t EngineService::most_answers() const { return limits_.sequences + limits_.queue; }

void EngineService::Cancel(GenerationId id) {
  Post([this, id] { Drop(id); });
}

GenerationId EngineService::Submit(GenerationRequest request, GenerationListener listener) {
  ServedModelPtr model = request.model;
  const std::int64_t prompt = std::ssize(request.prompt);
  const std::int64_t room = limits_.positions - prompt;
  if (prompt == 0) throw ApiError(400, "the prompt is empty, and this model has no token to begin");
  if (room < std::min<std::int64_t>(request.options.max_new_tokens, 1))
    throw ContextExceeded(limits_.positions, fmt::format("{} tokens", prompt));
  // A pass with an id that the model has no row for would end the answers of all.
  const std::int64_t largest = *std::ranges::max_element(request.prompt);
  if (largest >= base_.config.vocab_size) {
    throw ApiError(
        400, fmt::format("the prompt has token {} ('{}'), and the model reads tokens "
                         "below {}; leave it out",
                         largest, model->tokenizer->TokenText(static_cast<std::int32_t>(largest)),
                         base_.config.vocab_size));
  }
  // Shared, since std::function wants to copy. It decodes the prompt, for which the engine shall
  // not wait.
  auto answer = std::make_shared<std::unique_ptr<EngineAnswer>>(std::make_unique<EngineAnswer>(
      std::move(model), std::move(request), std::move(listener), room));
  const std::lock_guard lock(mutex_);
  if (refuses_) throw Stopping();
  if (open_ >= most_answers()) throw Full(open_, "answers");
  const GenerationId id = next_id_++;
  posted_.push_back([this, id, answer] { Begin(id, std::move(*answer)); });
  ++open_;
  changed_.notify_all();
  return id;
}

void EngineService::NeedRoomForPasses() const {
  if (refuses_) throw Stopping();
  // A request with more parts than may wait gets in all the same where there is room for one.
  if (open_parts_ > limits_.queue) throw Full(open_parts_, "parts of decisions");
}

GenerationId EngineService::SubmitPasses(PartedPasses passes) {
  const std::lock_guard lock(mutex_);
  NeedRoomForPasses();
  const std::int64_t parts = passes.parts;
  const GenerationId id = next_id_++;
  posted_.push_back([this, id, passes = std::move(passes)] { passes_.Add(id, passes); });
  open_parts_ += parts;
  changed_.notify_all();
  return id;
}

void EngineService::RunAlone(const std::function<void()>& work) {
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

bool EngineService::WaitUntilIdle(std::chrono::milliseconds longest) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [this] { return open_ == 0 && open_parts_ == 0; });
}

void EngineService::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    // Dropped once the thread has ended.
    if (has_ended_) return;
    posted_.push_back(std::move(work));
  }
  changed_.notify_all();
}

// ---- The thread of the engine.

void EngineService::Work() {
  while (RunPosted()) {
    ShowLoad();
    if (passes_.HaveTurn(!is_idle())) {
      CountDownParts(passes_.RunPart([this](const PartedPasses& passes) { RunPart(passes); }));
    }
    if (!is_idle()) Step();
    ShowLoad();
  }
  FailAll("the server was stopped");
  CountDownParts(passes_.EndAll(std::make_exception_ptr(Stopping())));
  std::deque<std::function<void()>> dropped;
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  dropped.swap(posted_);
}

bool EngineService::RunPosted() {
  const Stopwatch watch;
  std::unique_lock lock(mutex_);
  // Answers that were given back are all ended before the thread sleeps.
  if (is_idle() && passes_.is_empty()) {
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

void EngineService::MakeEngine() {
  if (engine_ != nullptr) return;
  if (buffers_ == nullptr) {
    buffers_ = std::make_unique<GenerationBuffers>(
        *base_.backend, base_.config, base_.weights, base_.precision, planned_,
        GenerationSize{.rows = limits_.rows,
                       .positions = limits_.positions,
                       .slots = limits_.sequences,
                       .alone_rows = limits_.alone_rows,
                       .alone_unfolded = limits_.alone_unfolded});
  }
  engine_ = std::make_unique<Engine>(buffers_->decoder, buffers_->passes, buffers_->pool.pool(),
                                     limits_.rows);
}

void EngineService::GiveBack() {
  FailAll("there is no memory for passes now");
  engine_.reset();
  buffers_.reset();
}

void EngineService::Begin(GenerationId id, std::unique_ptr<EngineAnswer> answer) {
  const std::shared_ptr<const LoraAdapter>& adapter = answer->model().adapter;
  try {
    MakeEngine();
    if (adapter != nullptr) KnowAdapter(adapter);
    const RequestId number = engine_->Submit(answer->TakeRequest());
    answers_.emplace(number, Running{id, std::move(answer)});
  } catch (const std::exception& error) {
    Fail(*answer, error.what());
  }
}

void EngineService::Drop(GenerationId id) {
  const auto at =
      std::ranges::find(answers_, id, [](const auto& entry) { return entry.second.id; });
  if (const std::int64_t parts = passes_.Drop(id); parts > 0) {
    metrics_.Count("qlora_requests_cancelled_total");
    CountDownParts(parts);
    return;
  }
  if (at == answers_.end()) return;
  engine_->Cancel(at->first);
  metrics_.Count("qlora_requests_cancelled_total");
  Close(at);
}

void EngineService::RunPart(const PartedPasses& passes) {
  MakeEngine();
  const std::size_t room = buffers_->activations.bytes();
  try {
    passes.run_part(buffers_->decoder, buffers_->activations);
  } catch (...) {
    // Passes that wanted more than there was gave theirs back, which those of answers need.
    if (buffers_->activations.bytes() < room) GiveBack();
    throw;
  }
}

void EngineService::Step() {
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
    engine_.reset();
  }
}

void EngineService::ShowLoad() {
  // The next step gives slots to as many as there are.
  const std::int64_t asked = engine_ == nullptr ? 0 : engine_->running() + engine_->waiting();
  const std::int64_t running = std::min(asked, limits_.sequences);
  metrics_.Set("qlora_requests_running", static_cast<double>(running + passes_.requests()));
  metrics_.Set("qlora_requests_waiting", static_cast<double>(asked - running));
  metrics_.Set("qlora_kv_pages_used", static_cast<double>(running));
}

void EngineService::Take(const EngineToken& token) {
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

void EngineService::Close(Answers::iterator at) {
  CountEnd(*at->second.answer);
  answers_.erase(at);
  CountDown();
}

void EngineService::CountDown() {
  const std::lock_guard lock(mutex_);
  --open_;
  changed_.notify_all();
}

void EngineService::CountDownParts(std::int64_t parts) {
  const std::lock_guard lock(mutex_);
  open_parts_ -= parts;
  changed_.notify_all();
}

void EngineService::Fail(EngineAnswer& answer, const std::string& error) {
  answer.Fail(error);
  CountDown();
}

void EngineService::CountEnd(const EngineAnswer& answer) {
  const GenerationEnd& end = answer.end();
  const LabelValues model = {answer.model().name};
  metrics_.Count("qlora_prompt_tokens_total", model, static_cast<double>(end.prompt_tokens));
  metrics_.Count("qlora_prompt_tokens_cached_total", model, static_cast<double>(end.cached_tokens));
  metrics_.Count("qlora_generation_tokens_total", model, static_cast<double>(end.new_tokens));
  metrics_.Observe("qlora_request_seconds", answer.seconds());
}

void EngineService::FailAll(const std::string& error) {
  while (!answers_.empty()) {
    const auto at = answers_.begin();
    at->second.answer->Fail(error);
    engine_->Cancel(at->first);
    Close(at);
  }
}

void EngineService::KnowAdapter(const std::shared_ptr<const LoraAdapter>& adapter) {
  std::erase_if(adapters_, [](const auto& known) { return known.second.expired(); });
  const bool is_new = adapters_.try_emplace(adapter.get(), adapter).second;
  if (is_new) engine_->Forget(adapter.get());
}

}  // namespace qlora
