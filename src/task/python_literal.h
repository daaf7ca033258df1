// Values as Python writes them, which templates of evaluation tasks print for lists.
#ifndef QLORA_TASK_PYTHON_LITERAL_H_
#define QLORA_TASK_PYTHON_LITERAL_H_

#include <optional>
#include <string_view>

#include "io/json_fwd.h"

namespace qlora {

// ast.literal_eval(text) where it is a text, a number, True, False, None, or a list or tuple of
// such; nothing for other texts.
std::optional<OrderedJson> ParsePythonLiteral(std::string_view text);

}  // namespace qlora

#endif  // QLORA_TASK_PYTHON_LITERAL_H_
