// Keyword arguments of Python as options of the library.
#ifndef QLORA_PYTHON_KEYWORDS_H_
#define QLORA_PYTHON_KEYWORDS_H_

#include <pybind11/pybind11.h>

#include "qlora/options.h"

namespace qlora::python {

// Sets the options named by the keys. Values: text, numbers, True and False, paths; for lists also
// lists and tuples of them, and dicts ({"down_proj": 8} is "down_proj=8"). None leaves the default.
// Errors (InvalidInput): an unknown key, with the nearest known one; a value of another type.
void SetOptions(const pybind11::dict& keywords, OptionTable& table);

// Returns text that the library made; bytes that are not UTF-8 become U+FFFD.
pybind11::str Text(const std::string& text);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_KEYWORDS_H_
