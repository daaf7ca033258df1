// The Python module qlora_cpp: NF4 and the QLoRA layer on numpy arrays and DLPack tensors.
#include <pybind11/pybind11.h>

#include "array.h"
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

}  // namespace qlora::python

PYBIND11_MODULE(_core, module) {
  using namespace qlora::python;
  module.attr("__version__") = QLORA_VERSION;
  static py::exception<qlora::Error> invalid(module, "Error", PyExc_ValueError);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const qlora::Error& error) {
      if (error.code() == qlora::ErrorCode::kInvalidInput) {
        invalid(error.what());
      } else {
        PyErr_SetString(PyExc_RuntimeError, error.what());
      }
    }
  });
  py::class_<SharedContext, ContextPtr>(module, "Context",
                                        "Threads for the calls that name it; calls of several "
                                        "Python threads take turns. Without one, calls share a "
                                        "context with a thread per usable core.")
      .def(py::init<int>(), py::arg("threads") = 0, "threads: 0 for one per usable core.")
      .def_property_readonly("threads", &SharedContext::threads, "Number of threads.");
  BindTensor(module);
  BindNf4Tensor(module);
  BindQuantize(module);
  BindScales(module);
  BindLinear(module);
}
