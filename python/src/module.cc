// The Python module qlora_cpp: NF4 and the QLoRA layer on numpy arrays and DLPack tensors.
#include <pybind11/pybind11.h>

#include "array.h"
#include "base/version.h"
#include "interpreter_lock.h"
#include "nf4_tensor.h"
#include "plain_errors.h"
#include "shared_context.h"

namespace qlora::python {
namespace {

namespace py = pybind11;

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
      .def("__repr__",
           [](const SharedContext& self) {
             return fmt::format("<Context of {} thread{}>", self.threads(),
                                self.threads() == 1 ? "" : "s");
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
  BindJobs(module);
  UsePlainErrors(module);
  WatchForExit();
}
