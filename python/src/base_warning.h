// The warning of an adapter on another base than its own.
#ifndef QLORA_PYTHON_BASE_WARNING_H_
#define QLORA_PYTHON_BASE_WARNING_H_

#include <string>
#include <vector>

#include "python_calls.h"

namespace qlora::python {

// Warns of an adapter that was trained on other weights than those of the model, before the work
// begins, so that a user who makes warnings errors has lost nothing: throws Stopped then.
void WarnOfOtherBase(const std::string& model, const std::vector<std::string>& adapters,
                     PythonCalls& python);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_BASE_WARNING_H_
