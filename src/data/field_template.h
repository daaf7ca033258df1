// Text built from the fields of a record: prompt_template and completion_template.
#ifndef QLORA_DATA_FIELD_TEMPLATE_H_
#define QLORA_DATA_FIELD_TEMPLATE_H_

#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// The layout of instruction / input / output records unless the user gives a template. The answer
// begins on its own line, so that no token joins prompt and answer.
inline constexpr std::string_view kInstructionPrompt =
    "[[{system}\n\n]]Instruction:\n{instruction}\n\n[[Input:\n{input}\n\n]]Answer:\n";
inline constexpr std::string_view kInstructionCompletion = "{output}";

// "{name}" inserts a field of the record, "{{" and "}}" insert braces, and a part in "[[ ]]" is
// left out when one of its fields is absent, null or empty. Numbers and booleans appear as JSON
// writes them.
class FieldTemplate {
 public:
  // Errors: InvalidInput with the column of `source`, which messages call `name`.
  FieldTemplate(std::string_view source, std::string_view name);

  // Errors: InvalidInput, without a place, when a field outside of "[[ ]]" is absent or null, or a
  // field is a list or an object.
  std::string Render(const OrderedJson& record) const;

 private:
  struct Piece {
    bool is_field;
    std::string text;  // literal text, or the name of the field
  };
  struct Part {
    bool optional = false;
    std::vector<Piece> pieces;
  };

  std::vector<Part> parts_;
};

}  // namespace qlora

#endif  // QLORA_DATA_FIELD_TEMPLATE_H_
