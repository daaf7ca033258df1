// The operations of a template on its values, with the results of Python. Each spends from the
// budget of the Runtime. Errors are Failures that name Python's types.
#ifndef QLORA_JINJA_OPERATIONS_H_
#define QLORA_JINJA_OPERATIONS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace qlora::jinja {

enum class Operator {
  kOr,
  kAnd,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
  kAdd,
  kSubtract,
  kConcatenate,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
};

// arithmetic.cc: + - * / // % ** of numbers, + of texts and lists, text * int, list * int,
// text % values.
Value Arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b);

// Sets the marks of `result`, the text of `a` and from byte `offset` on the text of `b`.
void JoinMarks(Runtime& runtime, const Value& a, const Value& b, std::size_t offset,
               const Value& result);

// comparison.cc
bool Truth(const Value& value);
// Of a condition, which may not be undefined where undefined values are errors.
bool Truth(const Runtime& runtime, const Value& condition);
bool Equal(Runtime& runtime, const Value& a, const Value& b);
std::partial_ordering Order(Runtime& runtime, const Value& a, const Value& b);
bool Contains(Runtime& runtime, const Value& container, const Value& item);
// a op b, op being a comparison, in, or not in.
bool Compare(Runtime& runtime, Operator op, const Value& a, const Value& b);

// containers.cc
// The elements of list(value); a generator is empty afterwards.
std::vector<Value> Elements(Runtime& runtime, const Value& value);
std::int64_t Length(Runtime& runtime, const Value& value);
// The value of `key`, or null.
Value* Find(Runtime& runtime, Dict& dict, const Value& key);
Value* FindName(Runtime& runtime, Dict& dict, std::string_view name);
void Insert(Runtime& runtime, Dict& dict, const Value& key, Value value);
// object.name: a method, otherwise an element, otherwise undefined.
Value Attribute(Runtime& runtime, const Value& object, std::string_view name);
// object[key]: an element, otherwise a method, otherwise undefined.
Value Item(Runtime& runtime, const Value& object, const Value& key);
// object[begin:end:step]; None or undefined for a bound that is not given.
Value Slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step);

// value_text.cc: str(value) and repr(value), and what {{ value }} writes.
std::string Str(Runtime& runtime, const Value& value);
void AppendOutput(Runtime& runtime, const Value& value, std::string& out);
void AppendStr(Runtime& runtime, const Value& value, std::string& out);
void AppendRepr(Runtime& runtime, const Value& value, std::string& out);

// markup.cc: the text for HTML, & < > " and ' escaped; Markup and values that are not text stay
// unchanged. The second form takes the elements of a tuple and the values of a dict.
Value Escaped(Runtime& runtime, const Value& value);
Value EscapedArguments(Runtime& runtime, const Value& value);

// The separator of texts that are joined: before all parts but the first.
class Joiner {
 public:
  Joiner(Runtime& runtime, std::string_view separator) : runtime_(runtime), separator_(separator) {}
  // Before the text of each part is added to `out`.
  void BeginPart(std::string& out) { runtime_.Append(out, std::exchange(before_, separator_)); }

 private:
  Runtime& runtime_;
  std::string_view separator_;
  std::string_view before_;  // the next part
};

// text_format.cc: format % value, format.format(arguments).
Value FormatPercent(Runtime& runtime, std::string_view format, const Value& value);
Value FormatBraces(Runtime& runtime, std::string_view format, const Arguments& arguments);

// tojson.cc: json.dumps(value).
struct JsonStyle {
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii = false;  // other characters as \uXXXX
  bool sort_keys = false;
};
Value DumpJson(Runtime& runtime, const Value& value, const JsonStyle& style);

// is_operator.cc: value is name(arguments).
bool ApplyTest(Runtime& runtime, std::string_view name, const Value& value,
               const Arguments& arguments);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_OPERATIONS_H_
