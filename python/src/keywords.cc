#include "keywords.h"

#include <string>
#include <vector>

namespace qlora::python {
namespace {

namespace py = pybind11;

std::string ValueText(const py::handle& value) {
  // pathlib.Path and its like.
  if (py::hasattr(value, "__fspath__")) return py::str(value.attr("__fspath__")());
  // str(True) is "True", which ParseBool takes in any case; str(1e-4) reads back to the same
  // double.
  return py::str(value);
}

}  // namespace

void SetOptions(const py::dict& keywords, OptionTable& table) {
  for (const auto& [name, value] : keywords) {
    const std::string key = py::str(name);
    // None leaves the default, as keyword arguments of Python do; an unknown name is an error all
    // the same.
    if (value.is_none()) {
      if (table.Find(key) == nullptr) table.Set(key, "", key);  // throws: unknown
      continue;
    }
    std::vector<std::string> items;
    if (py::isinstance<py::dict>(value)) {
      for (const auto& [item, setting] : py::reinterpret_borrow<py::dict>(value)) {
        // Options that hold pairs (rank_pattern) are lists of key=value.
        items.push_back(ValueText(item) + "=" + ValueText(setting));
      }
    } else if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
      for (const py::handle& item : value) items.push_back(ValueText(item));
    } else {
      table.Set(key, ValueText(value), key);
      continue;
    }
    table.Set(key, items, key);
  }
}

py::str Text(const std::string& text) {
  // A path or a message may hold bytes that are not UTF-8: an exception would hide the message.
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), std::ssize(text), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

}  // namespace qlora::python
