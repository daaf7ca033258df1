#include "prompt/field_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr std::string_view kFlat =
    "templates read the fields of the record itself, none within them: write the text into one";

// Returns the field as text; empty when the field is absent, null, or an empty list.
std::string FieldText(const OrderedJson& record, const std::string& name) {
  const auto field = record.find(name);
  if (field == record.end() || field->empty()) return {};
  if (field->is_string()) return field->get<std::string>();
  if (field->is_structured()) {
    ThrowInvalidInput("field '{}': expected text, found {}; {}", name, field->type_name(), kFlat);
  }
  // Numbers and booleans as JSON writes them.
  return FormatJson(*field);
}

}  // namespace

// One pass from left to right. parts_ always ends with the part that is being read: "[[" and "]]"
// begin another one.
FieldTemplate::FieldTemplate(std::string_view source, std::string_view name) : parts_(1) {
  const auto fail = [name](std::size_t offset, std::string_view what) {
    ThrowInvalidInput("{}, column {}: {}", name, offset + 1, what);
  };
  for (std::size_t at = 0; at < source.size();) {
    const std::string_view two = source.substr(at, 2);
    if (two == "{{" || two == "}}") {
      AddText(two.substr(0, 1));
      at += 2;
    } else if (two == "[[" || two == "]]") {
      const bool opens = two == "[[";
      if (opens == parts_.back().optional) {
        fail(at, opens ? "'[[' within '[[ ]]'" : "']]' without '[['");
      }
      parts_.push_back({.optional = opens, .pieces = {}});
      at += 2;
    } else if (source[at] == '{') {
      // A name has one line: an open brace is reported where it is, instead of making a name of
      // all lines up to a later '}'.
      const std::size_t end = source.find_first_of("{}\n", at + 1);
      const bool closed = end != std::string_view::npos && source[end] == '}';
      const std::string_view inside = closed ? source.substr(at + 1, end - at - 1) : "";
      const bool is_condition = inside.starts_with('?') || inside.starts_with('!');
      if (inside.empty() || (is_condition && inside.size() == 1)) {
        fail(at, "expected '{name}', or '{{' for a brace");
      }
      if (is_condition && !parts_.back().optional) {
        fail(at, "a condition such as '{?name}' belongs within '[[ ]]'");
      }
      AddField(inside);
      at = end + 1;
    } else if (source[at] == '}') {
      fail(at, "'}' without '{'; write '}}' for a brace");
    } else {
      AddText(source.substr(at, 1));
      ++at;
    }
  }
  if (parts_.back().optional) fail(source.size(), "'[[' is not closed");
}

// Appends to the literal text at the end of the part, so that pieces alternate.
void FieldTemplate::AddText(std::string_view text) {
  std::vector<PieceOfPart>& pieces = parts_.back().pieces;
  if (pieces.empty() || pieces.back().kind != Piece::kText) pieces.push_back({Piece::kText, {}});
  pieces.back().text += text;
}

// "name", "?name" or "!name".
void FieldTemplate::AddField(std::string_view name) {
  Piece kind = Piece::kField;
  if (name.starts_with('?')) kind = Piece::kIfPresent;
  if (name.starts_with('!')) kind = Piece::kIfAbsent;
  if (kind != Piece::kField) name.remove_prefix(1);
  const bool is_required = !parts_.back().optional;
  // The main field takes the text that a person types: the first field that every record must have,
  // or the first of all. A system text has its own option.
  const bool is_better = main_field_.empty() || (is_required && !main_is_required_);
  if (kind == Piece::kField && is_better && name != "system") {
    main_field_ = name;
    main_is_required_ = is_required;
  }
  parts_.back().pieces.push_back({kind, std::string(name)});
}

// A part in brackets appears as a whole or not at all.
std::string FieldTemplate::Render(const OrderedJson& record) const {
  std::string text;
  for (const Part& part : parts_) {
    std::string rendered;
    bool holds = true;  // the conditions of the part, and none of its fields is empty
    for (const PieceOfPart& piece : part.pieces) {
      if (piece.kind == Piece::kText) {
        rendered += piece.text;
        continue;
      }
      const auto field = record.find(piece.text);
      if (!part.optional && (field == record.end() || field->empty())) {
        const bool nested = piece.text.find_first_of(".[") != std::string::npos;
        ThrowInvalidInput("field '{}' is {}{}{}", piece.text,
                          field == record.end() ? "missing"
                          : field->is_null()    ? "null"
                                                : "an empty list",
                          nested ? "; " : "", nested ? kFlat : "");
      }
      const std::string value = FieldText(record, piece.text);
      // One rule for three kinds: a field or {?name} needs a value, {!name} needs none.
      holds = holds && value.empty() == (piece.kind == Piece::kIfAbsent);
      if (piece.kind == Piece::kField) rendered += value;
    }
    if (holds || !part.optional) text += rendered;
  }
  return text;
}

bool FieldTemplate::main_field_suffices() const {
  return std::ranges::all_of(parts_, [this](const Part& part) {
    return part.optional || std::ranges::all_of(part.pieces, [this](const PieceOfPart& piece) {
             return piece.kind == Piece::kText || piece.text == main_field_;
           });
  });
}

bool FieldTemplate::Reads(std::string_view field) const {
  return std::ranges::any_of(parts_, [field](const Part& part) {
    return std::ranges::any_of(part.pieces, [field](const PieceOfPart& piece) {
      return piece.kind != Piece::kText && piece.text == field;
    });
  });
}

}  // namespace qlora
