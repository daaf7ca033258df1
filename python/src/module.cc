// The Python module qlora_cpp: NF4 and the QLoRA layer on numpy arrays and DLPack tensors.
#include <pybind11/pybind11.h>

#include "array.h"
#include "base/version.h"
#include "nf4_tensor.h"
#include "qlora/error.h"
#include "shared_context.h"

namespace qlora::python {

ContextPtr ContextOr(const ContextPtr& context) {
  if (context != nullptr) return context;
  // Only touched with the interpreter's lock held. Never destroyed: at exit, and in a forked
  // process, there may be no threads left to join.
  static ContextPtr* shared = nullptr;
  if (shared == nullptr || !(*shared)->in_this_process()) {
    shared = new ContextPtr(std::make_shared<SharedContext>(0));
  }
  return *shared;
}

ContextPtr ContextFor(const ContextPtr& context, std::int64_t threads) {
  if (context != nullptr || threads == 0) return ContextOr(context);
  constexpr std::int64_t kMost = 4096;
  if (threads < 0 || threads > kMost) {
    ThrowInvalidInput("threads: expected 0 to {}, found {}", kMost, threads);
  }
  // Separate threads, which end with the last object that names this context.
  return std::make_shared<SharedContext>(static_cast<int>(threads));
}

namespace {

namespace py = pybind11;

// Returns the classes of qlora_cpp/_errors.py, by the code of an error; kept for ever.
PyObject* ErrorClass(ErrorCode code) {
  static const py::handle errors = py::module_::import("qlora_cpp._errors").release();
  // Classes of Python, so that users can derive from them and pickle them.
  const char* name = code == ErrorCode::kInvalidInput  ? "Error"
                     : code == ErrorCode::kOutOfMemory ? "OutOfMemoryError"
                                                       : "RunError";
  return errors.attr(name).ptr();
}

void RegisterErrors() {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      // Other exceptions pass to the translators of pybind11.
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      PyErr_SetString(ErrorClass(error.code()), error.what());
    }
  });
}

// Copies of a context are the context; a pickled one becomes new threads.
void BindContext(py::module_& module) {
  py::class_<SharedContext, ContextPtr>(module, "Context",
                                        "Threads for the calls that name it; calls of several "
                                        "Python threads take turns. Without one, calls share a "
                                        "context with a thread per usable core.")
      .def(py::init<int>(), py::arg("threads") = 0, "threads: 0 for one per usable core.")
      .def("__copy__", [](const ContextPtr& self) { return self; })
      .def("__deepcopy__", [](const ContextPtr& self, const py::dict&) { return self; })
      .def("__reduce__",
           [](const py::object& self) {
             return py::make_tuple(self.attr("__class__"), py::make_tuple(self.attr("threads")));
           })
      .def_property_readonly("threads", &SharedContext::threads, "Number of threads.");
}

}  // namespace
}  // namespace qlora::python

PYBIND11_MODULE(_core, module) {
  using namespace qlora::python;
  module.attr("__version__") = qlora::Version();
  RegisterErrors();
  BindContext(module);
  BindTensor(module);
  BindNf4Tensor(module);
  BindQuantize(module);
  BindScales(module);
  BindLinear(module);
  BindGguf(module);
  BindTrain(module);
  BindModel(module);
}
