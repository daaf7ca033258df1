// The values of a template: the types of Python that templates meet.
#ifndef QLORA_JINJA_VALUE_H_
#define QLORA_JINJA_VALUE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/jinja.h"
#include "jinja/text_marks.h"
#include "jinja/work_budget.h"

namespace qlora::jinja {

struct Undefined {
  std::string_view name;  // of the missing thing, owned by the syntax tree; "" when not known
};
struct None {};
struct Text {
  std::shared_ptr<const std::string> text;  // valid UTF-8
  // The result of `safe`, Python's Markup: text that is added to it is escaped for HTML
  // (markup.cc).
  bool is_markup = false;
};
// A whole number beyond 64 bits, which is printed and compared, and counts as a float to
// arithmetic.
struct WideInteger {
  std::shared_ptr<const std::string> digits;
};
struct List;
struct Dict;
struct Namespace;
struct Loop;      // interpreter.h
struct Callable;  // interpreter.h

// Lists, dicts, namespaces and callables belong to the Runtime, as they may form circles.
using Value = std::variant<Undefined, None, bool, std::int64_t, double, WideInteger, Text, List*,
                           Dict*, Namespace*, Loop*, Callable*>;

// A sequence, which nothing changes once it is made. The kinds differ in what they allow:
//
//               has a length   items by index   shown as text, tojson
//   kList            yes             yes              yes
//   kTuple           yes             yes              yes
//   kRange           yes             yes              no
//   kView            yes             no               no     keys(), values(), items() of a dict
//   kGenerator       no              no               no     result of map, select ...: read once
struct List {
  enum Kind { kList, kTuple, kRange, kView, kGenerator };
  Kind kind = kList;
  std::vector<Value> items;

  bool IsPlain() const { return kind <= kTuple; }
  bool IsIndexed() const { return kind <= kRange; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion; keys are distinct
};

// The one kind of object that a template changes: {% set ns.name = value %}.
struct Namespace {
  Dict values;
};

// One call of a filter, a method, a global function or a macro.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};
struct Call;
struct Function {
  std::string_view name;
  Value (*run)(Call& call);
};
struct BoundFunction {
  const Function* function;
  Value self;  // the object of a method
};
struct Macro;
struct Scope;
struct BoundMacro {
  const Macro* macro;
  Scope* scope;  // where the macro was defined
};
struct Callable {
  std::variant<BoundFunction, BoundMacro> target;
};

// The objects of one rendering, and the budget that pays for them.
class Runtime : public WorkBudget {
 public:
  explicit Runtime(const JinjaOptions& options)
      : WorkBudget(options.limits),
        now_(options.now),
        is_llama_cpp_(options.dialect == JinjaDialect::kLlamaCpp),
        is_strict_(options.dialect == JinjaDialect::kStrict) {}

  const std::optional<std::tm>& now() const { return now_; }
  bool is_llama_cpp() const { return is_llama_cpp_; }
  bool is_strict() const { return is_strict_; }
  TextMarks& marks() { return marks_; }

  Value NewText(std::string text, bool is_markup = false) {
    Charge(kObjectWork + text.size());
    return Text{std::make_shared<const std::string>(std::move(text)), is_markup};
  }
  // A text that is Markup if `like` is: the result of a method of a text.
  Value NewTextLike(const Value& like, std::string text) {
    const Text* object = std::get_if<Text>(&like);
    return NewText(std::move(text), object != nullptr && object->is_markup);
  }
  List* NewList(std::vector<Value> items, List::Kind kind = List::kList) {
    Charge(items.size() * sizeof(Value));
    return New(List{kind, std::move(items)});
  }
  template <typename Object>  // List, Dict, Namespace, Callable
  Object* New(Object object = {}) {
    Charge(kObjectWork);
    return &std::get<std::deque<Object>>(objects_).emplace_back(std::move(object));
  }

 private:
  const std::optional<std::tm> now_;
  const bool is_llama_cpp_;
  const bool is_strict_;
  TextMarks marks_;
  std::tuple<std::deque<List>, std::deque<Dict>, std::deque<Namespace>, std::deque<Callable>>
      objects_;  // a deque leaves its elements where they are
};

inline const std::string* AsText(const Value& value) {
  const Text* text = std::get_if<Text>(&value);
  return text == nullptr ? nullptr : text->text.get();
}
inline bool IsMarkup(const Value& value) {
  const Text* text = std::get_if<Text>(&value);
  return text != nullptr && text->is_markup;
}
inline List* AsList(const Value& value) {
  List* const* list = std::get_if<List*>(&value);
  return list == nullptr ? nullptr : *list;
}
inline Dict* AsDict(const Value& value) {
  Dict* const* dict = std::get_if<Dict*>(&value);
  return dict == nullptr ? nullptr : *dict;
}
// null: nothing of the value, which need not be a text, is marked.
inline const Marks* MarksOf(Runtime& runtime, const Value& value) {
  const Text* text = runtime.marks().empty() ? nullptr : std::get_if<Text>(&value);
  return text == nullptr ? nullptr : runtime.marks().Of(text->text);
}
// Sets the marks of a text that was just made; nothing for other values.
void SetMarks(Runtime& runtime, const Value& text, Marks marks);
// True for a marked text, and for a list with one.
bool HasMarks(Runtime& runtime, const Value& value);
// Says of a text, and of the texts of a list, that marks went into it whose place is not known.
void LoseMarks(Runtime& runtime, const Value& value);
inline bool IsUndefined(const Value& value) { return std::holds_alternative<Undefined>(value); }
inline bool IsNone(const Value& value) { return std::holds_alternative<None>(value); }
// A bool counts as 0 or 1, as in Python.
std::optional<std::int64_t> AsInteger(const Value& value);
std::optional<double> AsNumber(const Value& value);

std::string_view TypeName(const Value& value);  // as Python calls it

// Errors: Failure, which says for `use` which type is expected and which is found.
const std::string& NeedText(const Value& value, std::string_view use);
std::int64_t NeedInteger(const Value& value, std::string_view use);
void NeedDefined(const Value& value);

Value FromJson(Runtime& runtime, const nlohmann::ordered_json& json);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_VALUE_H_
