// The threads of the module, shared by all calls that name no context.
#ifndef QLORA_PYTHON_SHARED_CONTEXT_H_
#define QLORA_PYTHON_SHARED_CONTEXT_H_

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "interpreter_lock.h"
#include "qlora/context.h"

namespace qlora::python {

// A Context that several Python threads may use: calls wait for each other.
class SharedContext {
 public:
  explicit SharedContext(int threads) : context_(threads), process_(getpid()) {}

  int threads() const { return context_.threads(); }
  Context& context() { return context_; }
  bool in_this_process() const { return process_ == getpid(); }

  // Runs body(context) without the interpreter's lock. Errors (InvalidInput): in a forked process,
  // which lacks the threads; in a callback of a call that uses this Context.
  template <typename Body>
  decltype(auto) Run(Body&& body) {
    if (!in_this_process()) {
      ThrowInvalidInput("this Context was made before the process forked; make a new one");
    }
    if (user_ == std::this_thread::get_id()) {
      ThrowInvalidInput(
          "a callback cannot use the Context of the call that it belongs to; pass "
          "context=qlora_cpp.Context() to one of the two");
    }
    const ReleasedLock released;
    const Use use(*this);
    return std::forward<Body>(body)(context_);
  }

 private:
  // The calling thread computes with the context.
  class Use {
   public:
    explicit Use(SharedContext& shared) : shared_(shared), lock_(shared.mutex_) {
      shared_.user_ = std::this_thread::get_id();
    }
    ~Use() { shared_.user_ = std::thread::id(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    SharedContext& shared_;
    std::lock_guard<std::mutex> lock_;
  };

  std::mutex mutex_;
  std::atomic<std::thread::id> user_ = {};
  Context context_;
  pid_t process_;
};

using ContextPtr = std::shared_ptr<SharedContext>;

// Returns `context`, or the module's own (made on first use, and again after a fork) when it is
// null.
ContextPtr ContextOr(const ContextPtr& context);
// Returns ContextOr, but with `threads` threads when `context` is null and `threads` is not 0.
ContextPtr ContextFor(const ContextPtr& context, std::int64_t threads);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_SHARED_CONTEXT_H_
