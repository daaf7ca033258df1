// The interpreter's lock around the work of the library, also while the interpreter ends.
//
// A thread that asks for the lock of an interpreter that has ended is ended too, by an exception
// that C++ cannot survive. So from the interpreter's exit on, threads that work in the library wait
// for the end of the process instead of asking for the lock.
#ifndef QLORA_PYTHON_INTERPRETER_LOCK_H_
#define QLORA_PYTHON_INTERPRETER_LOCK_H_

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

namespace qlora::python {

// Holds the lock; for code that may run with or without it.
class HeldLock {
 public:
  HeldLock();
  ~HeldLock();
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;

 private:
  bool counted_ = false;
  std::optional<pybind11::gil_scoped_acquire> lock_;
};

// Gives the lock away; for code that holds it.
class ReleasedLock {
 public:
  ReleasedLock();
  ~ReleasedLock();
  ReleasedLock(const ReleasedLock&) = delete;
  ReleasedLock& operator=(const ReleasedLock&) = delete;

 private:
  std::optional<pybind11::gil_scoped_release> release_;
};

// body() without the lock; it must not touch Python.
template <typename Body>
decltype(auto) WithoutLock(Body&& body) {
  const ReleasedLock released;
  return std::forward<Body>(body)();
}

// Makes the interpreter call the library when it ends.
void WatchForExit();

}  // namespace qlora::python

#endif  // QLORA_PYTHON_INTERPRETER_LOCK_H_
