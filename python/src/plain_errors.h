// The exceptions of the module, in words that mean something in Python.
#ifndef QLORA_PYTHON_PLAIN_ERRORS_H_
#define QLORA_PYTHON_PLAIN_ERRORS_H_

#include <pybind11/pybind11.h>

namespace qlora::python {

// Makes exceptions of the library and of the C++ runtime those of qlora_cpp/_errors.py.
void RegisterErrors();

// For all functions and classes that `module` has by now, in place of pybind11's texts: a call with
// wrong arguments says which one is wrong; a class that is not constructed says what makes it; an
// object that was made by __new__ alone is refused instead of being read.
void UsePlainErrors(const pybind11::module_& module);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_PLAIN_ERRORS_H_
