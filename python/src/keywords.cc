#include "keywords.h"

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/spelling.h"
#include "foreign/foreign_option.h"
#include "foreign/option_sources.h"
#include "foreign/yaml_options.h"

namespace qlora::python {
namespace {

namespace py = pybind11;

std::string ValueText(const py::handle& value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>() ? "true" : "false";
  // pathlib.Path and its like.
  if (py::hasattr(value, "__fspath__")) return py::str(value.attr("__fspath__")());
  // str(1e-4) reads back to the same double.
  std::string text = py::str(value);
  // A type of PyTorch, which options name without the library.
  if (!py::isinstance<py::str>(value) && text.starts_with("torch.")) return text.substr(6);
  return text;
}

YAML::Node NodeOf(const py::handle& value) {
  if (value.is_none()) return YAML::Node(YAML::NodeType::Null);
  if (py::isinstance<py::dict>(value)) {
    YAML::Node map(YAML::NodeType::Map);
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) {
      map[ValueText(key)] = NodeOf(item);
    }
    return map;
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    YAML::Node list(YAML::NodeType::Sequence);
    for (const py::handle& item : value) list.push_back(NodeOf(item));
    return list;
  }
  return YAML::Node(ValueText(value));
}

// Texts for the command line in the words of Python: options have no dashes, verbs are functions.
// Commands between backquotes stay as they are.
std::string InPython(const std::string& text) {
  static const std::regex option("(^|[ '(])--([a-z])");
  static const std::regex verb("\\bthis verb\\b");
  std::string out;
  bool is_command = false;
  for (std::size_t begin = 0; begin <= text.size(); is_command = !is_command) {
    const std::size_t end = std::min(text.find('`', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::string words = std::regex_replace(part, verb, "this function");
    out += is_command ? part : std::regex_replace(words, option, "$1$2");
    if (end < text.size()) out += '`';
    begin = end + 1;
  }
  return out;
}

[[noreturn]] void ThrowUnknown(const std::string& key, const OptionTable& table) {
  std::vector<std::string> names;
  for (const Option& option : table.options()) {
    names.push_back(option.name);
    names.insert(names.end(), option.aliases.begin(), option.aliases.end());
  }
  const std::string nearest = Nearest(key, names);
  if (!nearest.empty()) {
    ThrowInvalidInput("{}: unknown option '{}'; did you mean '{}'?", key, key, nearest);
  }
  if (IsTrainingOption(key)) {
    ThrowInvalidInput("{}: this function has no such option; it is an option of train", key);
  }
  ThrowInvalidInput("{}: unknown option '{}'", key, key);
}

class Setter {
 public:
  explicit Setter(OptionTable& table) : table_(table) {}

  void Set(const std::string& key, const py::handle& value) {
    const Option* option = table_.Find(key);
    if (option == nullptr && !IsForeignOption(key)) ThrowUnknown(key, table_);
    // As keyword arguments of Python do.
    if (value.is_none()) return;
    if (option != nullptr && TakesJson(*option) && !py::isinstance<py::str>(value)) {
      return SetOurs(key, {key, key},
                     YAML::Node(JsonText(py::reinterpret_borrow<py::object>(value))));
    }
    const YAML::Node node = NodeOf(value);
    const bool is_ours =
        option != nullptr && !(node.IsScalar() && IsForeignValue(table_, key, node.Scalar()));
    if (is_ours) return SetOurs(key, {key, key}, node);
    const ForeignOption foreign = TranslateOption(table_, key, node, key);
    for (const auto& [ours, setting] : foreign.settings) {
      SetOurs(ours, {key, key, foreign.yields}, setting);
    }
    notes_.insert(notes_.end(), foreign.notes.begin(), foreign.notes.end());
  }

  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void SetOurs(const std::string& key, const OptionSource& source, const YAML::Node& value) {
    sources_.Set(key, source, [&] { SetFromNode(table_, key, value, source.place); });
  }

  OptionTable& table_;
  std::vector<std::string> notes_;
  OptionSources sources_{table_, notes_};
};

}  // namespace

std::string JsonText(const py::object& value) {
  if (value.is_none()) return {};
  // Python's own encoder accepts every value that json.dumps takes.
  return py::str(py::module_::import("json").attr("dumps")(value));
}

std::vector<GivenRecords> ToGivenRecords(const std::map<std::string, int>& descriptors) {
  std::vector<GivenRecords> given;
  for (const auto& [name, descriptor] : descriptors) given.push_back({name, descriptor});
  return given;
}

void Warn(const std::string& text) {
  // 1 is the function of the package that called into the module.
  if (PyErr_WarnFormat(PyExc_UserWarning, 2, "%U", Text(InPython(text)).ptr()) != 0) {
    throw py::error_already_set();
  }
}

void SetOptions(const py::dict& keywords, OptionTable& table) {
  Setter setter(table);
  try {
    for (const auto& [name, value] : keywords) setter.Set(py::str(name), value);
  } catch (const Error& error) {
    throw Error(error.code(), InPython(error.what()));
  }
  for (const std::string& note : setter.notes()) Warn(note);
}

RunKeywords ReadRunKeywords(const py::dict& keywords, const std::map<std::string, int>& given) {
  RunKeywords run;
  run.options.data.reading.given = ToGivenRecords(given);
  OptionTable table;
  run.options.Declare(table);
  table.AddPath("save_quantized", &run.save_quantized, "folder for the base model in 4 bits");
  SetOptions(keywords, table);
  run.options.Complete(table);
  return run;
}

py::str Text(const std::string& text) {
  // A path or a message may hold bytes that are not UTF-8: an exception would hide the message.
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), std::ssize(text), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

}  // namespace qlora::python
