#include "plain_errors.h"

#include <filesystem>
#include <new>
#include <string>

#include "keywords.h"
#include "qlora/error.h"

namespace qlora::python {
namespace {

namespace py = pybind11;

// Returns a class of qlora_cpp/_errors.py; kept for ever.
PyObject* ErrorClass(const char* name) {
  // Classes of Python, so that users can derive from them and pickle them.
  static const py::handle errors = py::module_::import("qlora_cpp._errors").release();
  return errors.attr(name).ptr();
}

PyObject* ErrorClass(ErrorCode code) {
  return ErrorClass(code == ErrorCode::kInvalidInput  ? "Error"
                    : code == ErrorCode::kOutOfMemory ? "OutOfMemoryError"
                                                      : "RunError");
}

void Translate(const std::exception_ptr& pointer) {
  try {
    // Other exceptions pass to the translators of pybind11.
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyErr_SetObject(ErrorClass(error.code()), Text(error.what()).ptr());
  } catch (const std::filesystem::filesystem_error& error) {
    PyErr_SetObject(ErrorClass("RunError"), Text(error.what()).ptr());
  } catch (const std::bad_alloc&) {
    PyErr_SetString(ErrorClass("OutOfMemoryError"), "the memory does not suffice");
  } catch (const py::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "a value has another type than its name asks for");
  }
}

// The function behind every callable that pybind11 makes.
struct Dispatcher : py::cpp_function {
  static PyObject* Call(PyObject* record, PyObject* arguments, PyObject* keywords) {
    return dispatcher(record, arguments, keywords);
  }
  static PyCFunction function() { return MethodOf(&dispatcher); }
  // Python casts back to the real type, which METH_KEYWORDS tells.
  static PyCFunction MethodOf(PyCFunctionWithKeywords call) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call));
  }
};

// Calls, and replaces the text of pybind11 about arguments that fit no signature.
PyObject* CallPlainly(PyObject* record, PyObject* arguments, PyObject* keywords) {
  PyObject* result = Dispatcher::Call(record, arguments, keywords);
  if (result != nullptr || PyErr_ExceptionMatches(PyExc_TypeError) == 0) return result;
  py::error_already_set error;
  try {
    const py::object explain = py::module_::import("qlora_cpp._calls").attr("explain");
    const py::object plain = explain(error.value(), py::handle(arguments),
                                     keywords == nullptr ? py::dict() : py::handle(keywords));
    if (plain.is(error.value())) {
      // An error of a callback, with its traceback.
      error.restore();
      return nullptr;
    }
    PyErr_SetObject(py::type::handle_of(plain).ptr(), plain.ptr());
  } catch (py::error_already_set&) {
    error.restore();
  }
  return nullptr;
}

void MendFunction(const py::handle& callable) {
  const py::handle function = py::detail::get_function(callable);
  if (!function || PyCFunction_Check(function.ptr()) == 0) return;
  PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml;
  if (method->ml_meth == Dispatcher::function()) {
    method->ml_meth = Dispatcher::MethodOf(&CallPlainly);
  }
}

// A member of a class: a method, or a wrapper that holds one or two functions.
void MendMember(const py::handle& member) {
  MendFunction(member);
  for (const char* part : {"fget", "fset", "__func__"}) {
    if (py::hasattr(member, part)) MendFunction(py::getattr(member, part));
  }
}

// pybind11 calls this for memory in place of an object that was never constructed.
void* RefuseUnmade(std::size_t /*bytes*/) {
  throw py::type_error(
      "the object was made by __new__ alone and holds nothing; make it as its class says");
}

void MendClass(const py::type& type) {
  for (const auto& [name, member] : py::dict(type.attr("__dict__"))) MendMember(member);
  py::detail::type_info* info =
      py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(type.ptr()));
  info->operator_new = &RefuseUnmade;
  // A constructor of the module is a function; the slot of a class without one is not.
  const py::handle constructor = py::detail::get_function(type.attr("__init__"));
  if (PyCFunction_Check(constructor.ptr()) == 0) {
    py::setattr(type, "__init__", py::module_::import("qlora_cpp._calls").attr("refuse_init"));
  }
}

}  // namespace

void RegisterErrors() {
  py::register_exception_translator([](std::exception_ptr pointer) { Translate(pointer); });
}

void UsePlainErrors(const py::module_& module) {
  for (const auto& [name, value] : py::dict(module.attr("__dict__"))) {
    if (!py::isinstance<py::type>(value)) {
      MendFunction(value);
    } else if (py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr())) != nullptr) {
      MendClass(py::reinterpret_borrow<py::type>(value));
    }
  }
}

}  // namespace qlora::python
