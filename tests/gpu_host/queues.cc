// The queues of the model, and the order in which their work runs.
#include <array>
#include <deque>
#include <utility>

#include "base/check.h"
#include "gpu_host/model.h"

namespace gpu_host {
namespace {

struct Work {
  std::function<void()> run;
  std::shared_ptr<const Event> after;  // it runs when this has passed; null: at once
};

std::array<std::deque<Work>, 3> queues;
std::int64_t waits = 0;
std::uint64_t choices = 0;

std::deque<Work>& WorkOf(Queue queue) { return queues[static_cast<std::size_t>(queue)]; }
Queue OtherThan(Queue queue) { return queue == Queue::kOps ? Queue::kCopies : Queue::kOps; }

bool CanRun(Queue queue) {
  const std::deque<Work>& work = WorkOf(queue);
  return !work.empty() && (work.front().after == nullptr || work.front().after->passed);
}

void RunFront(Queue queue) {
  const Work work = std::move(WorkOf(queue).front());
  WorkOf(queue).pop_front();
  work.run();
}

// Whether the queue that nobody waits for goes first.
bool OtherGoesFirst() {
  if (options.seed <= 1) return options.seed == 1;
  std::uint64_t mixed = (options.seed + ++choices) * 0x9e3779b97f4a7c15u;
  mixed ^= mixed >> 29;
  return (mixed * 0xbf58476d1ce4e5b9u) >> 63 != 0;
}

// Runs `queue` until done(), and the other one as far as `queue` waits for it, or as chance will
// have it.
void Run(Queue queue, const std::function<bool()>& done) {
  const Queue other = OtherThan(queue);
  while (!done() && !WorkOf(queue).empty() && !HasFinding()) {
    if (OtherGoesFirst() && CanRun(other)) {
      RunFront(other);
    } else if (CanRun(queue)) {
      RunFront(queue);
    } else {
      const std::shared_ptr<const Event> event = WorkOf(queue).front().after;
      Run(other, [&] { return event->passed; });
      if (!event->passed && !HasFinding()) {
        qlora::ThrowRuntime("gpu model: a queue waits for an event that nothing passes");
      }
    }
  }
}

void RunAll(Queue queue) {
  Run(queue, [] { return false; });
}

// What the host does when it waits.
void Wait(const std::function<void()>& run) {
  ++waits;
  const Access access;
  run();
  if (!HasFinding()) return;
  for (std::deque<Work>& work : queues) work.clear();
}

}  // namespace

void Enqueue(std::function<void()> work, Queue queue) {
  WorkOf(queue).push_back({std::move(work), nullptr});
}

std::shared_ptr<Event> Record(Queue queue) {
  auto event = std::make_shared<Event>(Event{queue});
  Enqueue([event] { event->passed = true; }, queue);
  return event;
}

void OrderBehind(Queue queue, std::shared_ptr<const Event> event) {
  WorkOf(queue).push_back({[] {}, std::move(event)});
}

std::vector<std::function<void()>> TakeCaptured() {
  std::vector<std::function<void()>> taken;
  for (Work& work : WorkOf(Queue::kCaptured)) taken.push_back(std::move(work.run));
  WorkOf(Queue::kCaptured).clear();
  return taken;
}

bool IsIdle() { return WorkOf(Queue::kOps).empty() && WorkOf(Queue::kCopies).empty(); }

void RunQueue() {
  if (IsIdle()) return;
  Wait([] {
    RunAll(Queue::kOps);
    RunAll(Queue::kCopies);
  });
}
void RunQueue(Queue queue) {
  if (WorkOf(queue).empty()) return;
  Wait([queue] { RunAll(queue); });
}
void RunUntil(const Event& event) {
  if (event.passed) return;
  Wait([&event] { Run(event.queue, [&event] { return event.passed; }); });
}

std::int64_t Waits() { return waits; }

}  // namespace gpu_host
