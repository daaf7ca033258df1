#include "interpreter_lock.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace qlora::python {
namespace {

// The threads that hold the lock for the library, or are about to, and whether there will be a
// lock.
struct Users {
  std::atomic<int> count = 0;
  std::atomic<bool> ended = false;
  std::atomic<std::thread::id> ends = {};  // the thread that ends the interpreter
};

Users& TheUsers() {
  // Never destroyed: threads look at it until the process is gone.
  static auto* users = new Users();
  return *users;
}

// Counts this thread, or does not return.
void Enter() {
  Users& users = TheUsers();
  // Counted before the question, so that OnExit either sees this thread or is seen by it.
  ++users.count;
  if (!users.ended || users.ends == std::this_thread::get_id()) return;
  --users.count;
  while (true) pause();
}

void Leave() { --TheUsers().count; }

// Called with the lock, before the interpreter is taken apart.
void OnExit() {
  Users& users = TheUsers();
  users.ends = std::this_thread::get_id();
  users.ended = true;
  // Callbacks that run end in good order, unless one of them waits for something.
  constexpr auto kLongest = std::chrono::seconds(2);
  const auto start = std::chrono::steady_clock::now();
  const pybind11::gil_scoped_release release;
  while (users.count > 0 && std::chrono::steady_clock::now() - start < kLongest) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

HeldLock::HeldLock() {
  // A thread that has the lock asks for nothing.
  if (PyGILState_Check() == 0) {
    Enter();
    counted_ = true;
  }
  lock_.emplace();
}

HeldLock::~HeldLock() {
  lock_.reset();
  if (counted_) Leave();
}

ReleasedLock::ReleasedLock() { release_.emplace(); }

ReleasedLock::~ReleasedLock() {
  Enter();
  release_.reset();
  Leave();
}

void WatchForExit() {
  pybind11::module_::import("atexit").attr("register")(pybind11::cpp_function(&OnExit));
}

}  // namespace qlora::python
