#include "base_warning.h"

#include "keywords.h"
#include "qlora/other_base.h"

namespace qlora::python {

void WarnOfOtherBase(const std::string& model, const std::vector<std::string>& adapters,
                     PythonCalls& python) {
  for (const std::string& other_base : DescribeOtherBases(model, adapters)) {
    python([&] { Warn(other_base); });
  }
  if (python.stopped()) throw Stopped();
}

}  // namespace qlora::python
