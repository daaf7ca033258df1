#include "command/config_schema.h"

#include "command/config_file.h"
#include "foreign/yaml_options.h"
#include "io/json.h"

namespace qlora {
namespace {

// YAML 1.1 readers take 2e-4 (without a point) for text.
constexpr const char* kNumberText = R"(^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$)";

// YAML reads an unquoted 8 or true as a number or boolean, though the option is a text: "dataset:
// 8".
const OrderedJson kScalar = OrderedJson::array({"string", "number", "boolean"});

// Null leaves the default.
OrderedJson WithNull(OrderedJson types) {
  if (!types.is_array()) types = OrderedJson::array({types});
  types.push_back("null");
  return types;
}

struct TypeOf {
  const Option& option;

  OrderedJson operator()(const bool* value) const {
    // "key:" without a value is null in YAML.
    return {{"type", WithNull("boolean")}, {"default", *value}};
  }
  OrderedJson operator()(const std::int64_t* value) const {
    return {{"type", WithNull("integer")}, {"default", *value}};
  }
  OrderedJson operator()(const double* value) const {
    return {{"type", WithNull(OrderedJson::array({"number", "string"}))},
            {"pattern", kNumberText},
            {"default", *value}};
  }
  OrderedJson operator()(const std::string* value) const {
    OrderedJson json = OrderedJson::object();
    if (option.choices.empty()) {
      OrderedJson types = kScalar;
      if (TakesJson(option)) types.push_back("object");
      json["type"] = WithNull(types);
    } else {
      json["enum"] = option.choices;
      // The choices "true" and "false" arrive as booleans unless they are quoted.
      for (const std::string& choice : option.choices) {
        if (choice == "true" || choice == "false") json["enum"].push_back(choice == "true");
      }
      json["enum"].push_back(nullptr);
    }
    json["default"] = *value;
    return json;
  }
  OrderedJson operator()(const std::vector<std::string>* value) const {
    OrderedJson item = {{"type", kScalar}};
    // Axolotl's form of data sets: a list of {path, type}.
    if (TakesDatasetMaps(option)) {
      const OrderedJson map = {
          {"type", "object"},
          {"properties", {{"path", {{"type", "string"}}}, {"type", {{"type", "string"}}}}},
          {"required", OrderedJson::array({"path"})},
          {"additionalProperties", false}};
      item = {{"anyOf", OrderedJson::array({item, map})}};
    }
    OrderedJson types = {"array", "string", "number", "boolean"};
    if (TakesPairs(option)) types.push_back("object");
    return {{"type", WithNull(types)}, {"items", item}, {"default", *value}};
  }
};

}  // namespace

OrderedJson ConfigSchema(const OptionTable& table, const std::string& title) {
  OrderedJson properties = OrderedJson::object();
  for (const Option& option : table.options()) {
    OrderedJson property = {{"description", option.help}};
    property.update(std::visit(TypeOf{option}, option.value));
    properties[option.name] = std::move(property);
    for (const std::string& alias : option.aliases) {
      properties[alias] = {{"$ref", "#/properties/" + option.name},
                           {"description", "the same as " + option.name}};
    }
  }
  // An editor underlines an unknown key while it is typed, as the program would refuse it.
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", title},
          {"type", WithNull("object")},
          {"properties", std::move(properties)},
          {"additionalProperties", false}};
}

}  // namespace qlora
