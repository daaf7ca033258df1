// Calls into Python from work that runs without the interpreter's lock: callbacks, and the question
// whether the user pressed Ctrl+C.
#ifndef QLORA_PYTHON_PYTHON_CALLS_H_
#define QLORA_PYTHON_PYTHON_CALLS_H_

#include <pybind11/pybind11.h>

#include <exception>

#include "interpreter_lock.h"

namespace qlora::python {

// True for what a callback returns to end the work in good order: "stop".
inline bool AsksToStop(const pybind11::object& answer) {
  return pybind11::isinstance<pybind11::str>(answer) && answer.equal(pybind11::str("stop"));
}

// Thrown through C++ code where an exception of Python ends the work at once.
struct Stopped {};

// The first exception that a call raises is kept until the work has ended in good order; after it
// nothing more is called.
class PythonCalls {
 public:
  // Runs call() with the interpreter's lock, then the handlers of signals that came in the
  // meantime.
  template <typename Call>
  void operator()(const Call& call) {
    if (stopped()) return;
    const HeldLock lock;
    try {
      call();
      if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    } catch (const pybind11::error_already_set&) {
      error_ = std::current_exception();
    }
  }

  // True when a signal or an earlier call raised an exception.
  bool Interrupted() {
    (*this)([] {});
    return stopped();
  }
  bool stopped() const { return error_ != nullptr; }

  // Raises the exception that was kept. Needs the interpreter's lock.
  void Rethrow() const {
    if (stopped()) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

// Runs body(), which calls Python through `python`, with the lock held by the caller; exceptions of
// Python come first.
template <typename Body>
decltype(auto) RunWithCalls(PythonCalls& python, const Body& body) {
  try {
    decltype(auto) result = body();
    python.Rethrow();
    return result;
  } catch (const Stopped&) {
    python.Rethrow();
    throw;
  }
}

}  // namespace qlora::python

#endif  // QLORA_PYTHON_PYTHON_CALLS_H_
