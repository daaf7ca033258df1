// The values of a template, and what Python does with them.
#ifndef QLORA_JINJA_VALUE_H_
#define QLORA_JINJA_VALUE_H_

#include <fmt/format.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/jinja.h"

namespace qlora::jinja {

// What went wrong, and where in the template; without a place, where the interpreter is.
struct Failure {
  std::string what;
  std::optional<std::size_t> offset;
};

template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{fmt::format(format, std::forward<Args>(args)...), std::nullopt};
}

template <typename... Args>
[[noreturn]] void FailAt(std::size_t offset, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{fmt::format(format, std::forward<Args>(args)...), offset};
}

struct Undefined {
  std::string_view name;  // what was looked up; lives as long as the template. "" when not known
};
struct None {};
using Text = std::shared_ptr<const std::string>;  // valid UTF-8
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

// Containers belong to the Runtime: they may refer to each other in circles.
using Value = std::variant<Undefined, None, bool, std::int64_t, double, Text, List*, Dict*,
                           Namespace*, Loop*, Callable*>;

struct List {
  enum Kind {
    kList,
    kTuple,
    kRange,
    kView,       // keys(), values(), items() of a dict: has a length, but no elements by index
    kGenerator,  // what map, select and others give: always true, without length, read once
  };
  Kind kind = kList;
  std::vector<Value> items;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion; keys are distinct
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

// The arguments in the order of `names`, as Python binds them; nullopt where one is not given.
// Errors: Failure, for `callee`, when one is unknown, given twice, or among the first `required`
// and missing.
std::vector<std::optional<Value>> Bind(std::string_view callee, Arguments arguments,
                                       std::initializer_list<std::string_view> names,
                                       std::size_t required = 0);

struct Macro;
struct Scope;
enum class Builtin { kRange, kDict, kNamespace, kRaiseException, kStrftimeNow };
struct BoundMethod {
  Value self;
  std::string_view name;
};
struct BoundMacro {
  const Macro* macro;
  Scope* scope;  // where it was defined
};
struct Callable {
  std::variant<Builtin, BoundMethod, BoundMacro> target;
};

// What one rendering owns and may use up.
class Runtime {
 public:
  explicit Runtime(const JinjaOptions& options) : options_(options) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const JinjaOptions& options() const { return options_; }

  // Errors: Failure when the limit is reached.
  void Charge(std::size_t work) {
    if (work > options_.limits.work - work_) {
      Fail("the template does too much work (limit {})", options_.limits.work);
    }
    work_ += work;
  }

  Value MakeText(std::string text) {
    Charge(text.size() + kObjectWork);
    return std::make_shared<const std::string>(std::move(text));
  }
  List* NewList(std::vector<Value> items = {}, List::Kind kind = List::kList) {
    Charge(kObjectWork + items.size() * sizeof(Value));
    return &lists_.emplace_back(List{kind, std::move(items)});
  }
  Dict* NewDict() {
    Charge(kObjectWork);
    return &dicts_.emplace_back();
  }
  Namespace* NewNamespace() {
    Charge(kObjectWork);
    return &namespaces_.emplace_back();
  }
  Callable* NewCallable(Callable callable) {
    Charge(kObjectWork);
    return &callables_.emplace_back(std::move(callable));
  }

  // Held while one more call, statement or operator is entered.
  class Level {
   public:
    explicit Level(Runtime& runtime) : runtime_(runtime) {
      if (runtime.depth_ >= runtime.options_.limits.depth) {
        Fail("the template is nested too deeply (limit {})", runtime.options_.limits.depth);
      }
      ++runtime.depth_;
    }
    ~Level() { --runtime_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  static constexpr std::size_t kObjectWork = 64;  // about the bytes of an empty container

  JinjaOptions options_;
  std::size_t work_ = 0;
  int depth_ = 0;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> namespaces_;
  std::deque<Callable> callables_;
};

inline const std::string* AsText(const Value& value) {
  const Text* text = std::get_if<Text>(&value);
  return text == nullptr ? nullptr : text->get();
}
inline List* AsList(const Value& value) {
  List* const* list = std::get_if<List*>(&value);
  return list == nullptr ? nullptr : *list;
}
inline Dict* AsDict(const Value& value) {
  Dict* const* dict = std::get_if<Dict*>(&value);
  return dict == nullptr ? nullptr : *dict;
}
inline bool IsUndefined(const Value& value) { return std::holds_alternative<Undefined>(value); }
inline bool IsNone(const Value& value) { return std::holds_alternative<None>(value); }
// A bool counts as 0 or 1, as in Python.
std::optional<std::int64_t> AsInteger(const Value& value);
std::optional<double> AsNumber(const Value& value);

// All functions below: errors are Failures; they name Python's type of the value.
std::string_view TypeName(const Value& value);
[[noreturn]] void FailUndefined(const Undefined& value);
const std::string& NeedText(const Value& value, std::string_view what);
std::int64_t NeedInteger(const Value& value, std::string_view what);

Value FromJson(Runtime& runtime, const nlohmann::ordered_json& json);

bool Truth(const Value& value);
bool Equal(Runtime& runtime, const Value& a, const Value& b);
std::partial_ordering Compare(Runtime& runtime, const Value& a, const Value& b);
bool Contains(Runtime& runtime, const Value& container, const Value& item);
// list(value); a generator is used up.
std::vector<Value> Elements(Runtime& runtime, const Value& value);
std::int64_t Length(Runtime& runtime, const Value& value);

Value* Find(Runtime& runtime, Dict& dict, const Value& key);
Value* Find(Dict& dict, std::string_view key);
void Insert(Runtime& runtime, Dict& dict, const Value& key, Value value);

// object.name: a method, else an element. `name` outlives the rendering.
Value Attribute(Runtime& runtime, const Value& object, std::string_view name);
// object[key]: an element, else (for a text) a method. name: the key when it is a literal.
Value Item(Runtime& runtime, const Value& object, const Value& key, std::string_view name = "");
// object[begin:end:step]; None or undefined for a bound that is not given.
Value Slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step);

// str(value), repr(value) and json.dumps(value).
std::string Str(Runtime& runtime, const Value& value);
void AppendStr(Runtime& runtime, const Value& value, std::string& out);
void AppendRepr(Runtime& runtime, const Value& value, std::string& out);

struct JsonStyle {
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii = false;
  bool sort_keys = false;
};
std::string DumpJson(Runtime& runtime, const Value& value, const JsonStyle& style);

enum class Operator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
Value Arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b);
Value Negate(const Value& value);

bool HasMethod(const Value& object, std::string_view name);
Value CallMethod(Runtime& runtime, const Value& self, std::string_view name, Arguments arguments);

Value ApplyFilter(Runtime& runtime, std::string_view name, const Value& value, Arguments arguments);
bool ApplyTest(Runtime& runtime, std::string_view name, const Value& value, Arguments arguments);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_VALUE_H_
