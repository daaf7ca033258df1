// The threads of the module, shared by all calls that name no context of their own.
#ifndef QLORA_PYTHON_SHARED_CONTEXT_H_
#define QLORA_PYTHON_SHARED_CONTEXT_H_

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "qlora/context.h"

namespace qlora::python {

// body() without the interpreter's lock; it must not touch Python.
template <typename Body>
decltype(auto) WithoutLock(Body&& body) {
  const pybind11::gil_scoped_release release;
  return std::forward<Body>(body)();
}

// A Context that several Python threads may use: calls wait for each other.
class SharedContext {
 public:
  explicit SharedContext(int threads) : context_(threads), process_(getpid()) {}

  int threads() const { return context_.threads(); }
  Context& context() { return context_; }
  bool in_this_process() const { return process_ == getpid(); }

  // Runs body(context) without the interpreter's lock. Errors (InvalidInput): in a forked process,
  // which has none of the threads.
  template <typename Body>
  decltype(auto) Run(Body&& body) {
    if (!in_this_process()) {
      ThrowInvalidInput("this Context was made before the process forked; make a new one");
    }
    const pybind11::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::forward<Body>(body)(context_);
  }

 private:
  std::mutex mutex_;
  Context context_;
  pid_t process_;
};

using ContextPtr = std::shared_ptr<SharedContext>;

// `context`, or the module's own (made on first use, and again after a fork) when it is null.
ContextPtr ContextOr(const ContextPtr& context);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_SHARED_CONTEXT_H_
