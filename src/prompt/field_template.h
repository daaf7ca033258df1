// Text built from the fields of a record: prompt_template and completion_template.
#ifndef QLORA_PROMPT_FIELD_TEMPLATE_H_
#define QLORA_PROMPT_FIELD_TEMPLATE_H_

#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// "{name}" inserts a field of the record, "{{" and "}}" insert braces, and a part in "[[ ]]" is
// left out when one of its fields is absent, null or empty. Within "[[ ]]", "{?name}" inserts
// nothing and leaves the part out when the field is absent or empty, and "{!name}" leaves the part
// out when the field is there. Numbers and booleans appear as JSON writes them.
class FieldTemplate {
 public:
  // Errors: InvalidInput with the column of `source`, which messages call `name`.
  FieldTemplate(std::string_view source, std::string_view name);

  // Errors: InvalidInput, without a place, when a field outside of "[[ ]]" is absent or null, or a
  // field is a list or an object.
  std::string Render(const OrderedJson& record) const;

  // Returns the field that a person types as the prompt: the first field outside of "[[ ]]", or the
  // first of all, not counting `system`. "" when there is no such field.
  const std::string& main_field() const { return main_field_; }
  // True when all fields but the main one may be absent: the main field alone makes a text.
  bool main_field_suffices() const;
  // True when the text depends on the field.
  bool Reads(std::string_view field) const;

 private:
  enum class Piece { kText, kField, kIfPresent, kIfAbsent };
  struct PieceOfPart {
    Piece kind;
    std::string text;  // literal text, or the name of the field
  };
  struct Part {
    bool optional = false;
    std::vector<PieceOfPart> pieces;
  };

  void AddText(std::string_view text);
  void AddField(std::string_view name);

  std::vector<Part> parts_;
  std::string main_field_;
  bool main_is_required_ = false;
};

}  // namespace qlora

#endif  // QLORA_PROMPT_FIELD_TEMPLATE_H_
