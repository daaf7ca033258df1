#include "data/field_template.h"

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace qlora {
namespace {

// The field as text; empty when the field is absent or null.
std::string FieldText(const OrderedJson& record, const std::string& name) {
  const auto field = record.find(name);
  if (field == record.end() || field->is_null()) return {};
  if (field->is_string()) return field->get<std::string>();
  if (field->is_structured()) {
    ThrowInvalidInput("field '{}': expected text, found {}", name, field->type_name());
  }
  return field->dump();
}

}  // namespace

// One pass from left to right. parts_ always ends with the part that is being read: "[[" and "]]"
// begin another one.
FieldTemplate::FieldTemplate(std::string_view source, std::string_view name) : parts_(1) {
  const auto fail = [name](std::size_t offset, std::string_view what) {
    ThrowInvalidInput("{}, column {}: {}", name, offset + 1, what);
  };
  // Appends to the literal text at the end of the part, so that pieces alternate.
  const auto literal = [this](std::string_view text) {
    std::vector<Piece>& pieces = parts_.back().pieces;
    if (pieces.empty() || pieces.back().is_field) pieces.push_back({false, {}});
    pieces.back().text += text;
  };
  for (std::size_t at = 0; at < source.size();) {
    const std::string_view two = source.substr(at, 2);
    if (two == "{{" || two == "}}") {
      literal(two.substr(0, 1));
      at += 2;
    } else if (two == "[[" || two == "]]") {
      const bool opens = two == "[[";
      if (opens == parts_.back().optional) {
        fail(at, opens ? "'[[' within '[[ ]]'" : "']]' without '[['");
      }
      parts_.push_back({.optional = opens, .pieces = {}});
      at += 2;
    } else if (source[at] == '{') {
      const std::size_t end = source.find_first_of("{}\n", at + 1);
      if (end == std::string_view::npos || source[end] != '}' || end == at + 1) {
        fail(at, "expected '{name}', or '{{' for a brace");
      }
      parts_.back().pieces.push_back({true, std::string(source.substr(at + 1, end - at - 1))});
      at = end + 1;
    } else if (source[at] == '}') {
      fail(at, "'}' without '{'; write '}}' for a brace");
    } else {
      literal(source.substr(at, 1));
      ++at;
    }
  }
  if (parts_.back().optional) fail(source.size(), "'[[' is not closed");
}

// A part in brackets appears as a whole or not at all.
std::string FieldTemplate::Render(const OrderedJson& record) const {
  std::string text;
  for (const Part& part : parts_) {
    std::string rendered;
    bool complete = true;  // no field is empty
    for (const Piece& piece : part.pieces) {
      if (!piece.is_field) {
        rendered += piece.text;
        continue;
      }
      const auto field = record.find(piece.text);
      if (!part.optional && (field == record.end() || field->is_null())) {
        ThrowInvalidInput("field '{}' is missing", piece.text);
      }
      const std::string value = FieldText(record, piece.text);
      complete = complete && !value.empty();
      rendered += value;
    }
    if (complete || !part.optional) text += rendered;
  }
  return text;
}

}  // namespace qlora
