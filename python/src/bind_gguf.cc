// GGUF files of 4-bit tensors.
#include <pybind11/stl/filesystem.h>

#include "base/check.h"
#include "nf4_tensor.h"
#include "qlora/export_gguf.h"

namespace qlora::python {
namespace {

namespace py = pybind11;
using pybind11::literals::operator""_a;

std::string ClassName(const py::object& object) {
  return py::str(py::type::handle_of(object).attr("__name__"));
}

void ExportTensors(const py::iterable& tensors, const std::filesystem::path& path,
                   const std::string& outtype) {
  std::vector<NamedMatrix> named;
  for (const py::handle& entry : tensors) {
    if (!py::isinstance<py::sequence>(entry) || py::len(entry) != 2) {
      throw py::type_error("tensors: expected pairs (name, NF4Tensor)");
    }
    const auto pair = py::reinterpret_borrow<py::sequence>(entry);
    const py::object name = pair[0];
    const py::object tensor = pair[1];
    if (!py::isinstance<py::str>(name) || !py::isinstance<NF4Tensor>(tensor)) {
      throw py::type_error(fmt::format("tensors: expected pairs (name, NF4Tensor), found ({}, {})",
                                       ClassName(name), ClassName(tensor)));
    }
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &length);
    if (text == nullptr) throw py::error_already_set();  // surrogates are no UTF-8
    // Handles are copied while the lock is held; the memory is shared.
    named.push_back({std::string(text, length), tensor.cast<const NF4Tensor&>().matrix});
  }
  WithoutLock([&] { ExportGguf(named, path, outtype); });
}

}  // namespace

void BindGguf(py::module_& module) {
  module.def(
      "export_gguf", &ExportTensors, "tensors"_a, "path"_a, "outtype"_a = "f16",
      "qlora-rs's export_gguf([(name, tensor)], path): writes NF4Tensors, decoded, to one GGUF "
      "file, as matrices of outtype (\"f32\", \"f16\", \"bf16\" or \"q8_0\"). A file of that "
      "name is replaced. `qlora export` writes models that llama.cpp runs. Raises Error: a "
      "name of more than 63 bytes or twice, values beyond outtype; TypeError: other pairs.");
}

}  // namespace qlora::python
