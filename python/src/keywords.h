// Keyword arguments of Python as options of the library.
#ifndef QLORA_PYTHON_KEYWORDS_H_
#define QLORA_PYTHON_KEYWORDS_H_

#include <pybind11/pybind11.h>

#include <map>
#include <string>
#include <vector>

#include "qlora/data.h"
#include "qlora/options.h"
#include "qlora/train_options.h"

namespace qlora::python {

// Sets the options named by the keys. Values: text, numbers, True and False, paths; for lists also
// lists and tuples of them, and dicts ({"down_proj": 8} is "down_proj=8"). None leaves the default.
// Names and values of other trainers (foreign/foreign_option.h) are translated; what has nothing to
// set is a warning of Python. Errors (InvalidInput): an unknown key, with the nearest known one; a
// value of another type; two keys for one option; what a foreign name asks for and is not there.
void SetOptions(const pybind11::dict& keywords, OptionTable& table);

// Records in open files, by name.
std::vector<GivenRecords> ToGivenRecords(const std::map<std::string, int>& descriptors);

// The options of a training run, and the folder for its base in 4 bits ("": none).
struct RunKeywords {
  TrainOptions options;
  std::string save_quantized;
};
// Reads keywords as SetOptions, with defaults that follow from other options, as on the command
// line. given: as ToGivenRecords.
RunKeywords ReadRunKeywords(const pybind11::dict& keywords,
                            const std::map<std::string, int>& given);

// Warns the caller of the function of the package that is running. Throws what the user's filter
// makes of it.
void Warn(const std::string& text);

// json.dumps: values of Python as the library reads them; "" of None.
std::string JsonText(const pybind11::object& value);

// Returns text that the library made; bytes that are not UTF-8 become U+FFFD.
pybind11::str Text(const std::string& text);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_KEYWORDS_H_
