#include "base_warning.h"

#include "keywords.h"
#include "qlora/other_base.h"

namespace qlora::python {

void WarnOfOtherBase(const std::string& model, const std::string& adapter, PythonCalls& python) {
  const std::string other_base = DescribeOtherBase(model, adapter);
  if (!other_base.empty()) python([&] { Warn(other_base); });
  if (python.stopped()) throw Stopped();
}

}  // namespace qlora::python
