// Calls of filters, methods and global functions, and the tables that hold them.
#ifndef QLORA_JINJA_FUNCTIONS_CALL_H_
#define QLORA_JINJA_FUNCTIONS_CALL_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace qlora::jinja {

// The arguments of a call in the order of the parameters, as Python binds them.
class BoundArguments {
 public:
  // Errors: Failure, for `callee`, when an argument is unknown, given twice, or among the first
  // `required` and missing.
  BoundArguments(WorkBudget& budget, std::string_view callee, Arguments arguments,
                 std::span<const std::string_view> parameters, int required);

  bool Has(int i) const { return values_[i].has_value(); }
  bool IsGiven(int i) const { return Has(i) && !IsNone(*values_[i]); }
  const Value& operator[](int i) const { return *values_[i]; }
  Value Or(int i, Value otherwise) const { return Has(i) ? *values_[i] : std::move(otherwise); }
  bool Flag(int i) const;
  std::int64_t IntegerOr(int i, std::int64_t otherwise) const;
  const std::string& NeedTextAt(int i) const { return NeedText(*values_[i], callee_); }

 private:
  std::string_view callee_;
  std::vector<std::optional<Value>> values_;
};

// The arguments of a Function.
struct Call {
  Runtime& runtime;
  std::string_view name;
  const Value& self;  // the operand of a filter, the object of a method
  Arguments arguments;

  BoundArguments Take(std::initializer_list<std::string_view> parameters, int required = 0) {
    return {runtime, name, std::move(arguments), {parameters.begin(), parameters.size()}, required};
  }
};

std::span<const Function> TextFilters();      // text_filters.cc
std::span<const Function> ListFilters();      // list_filters.cc
std::span<const Function> LayoutFilters();    // layout_filters.cc
std::span<const Function> GlobalFunctions();  // global_functions.cc

// null: a value of this type has no method of this name (methods.cc).
const Function* FindMethod(const Value& object, std::string_view name);
const Function* FindFunction(std::span<const Function> functions, std::string_view name);

Value Invoke(Runtime& runtime, const Function& function, const Value& self, Arguments arguments);
// null: there is no filter of this name, not even one that is refused.
const Function* FindFilter(std::string_view name);
// self | name(arguments). Errors: Failure, also for an unknown filter.
Value ApplyFilter(Runtime& runtime, std::string_view name, const Value& self, Arguments arguments);

// Functions of texts that are methods and filters at once.
Value Capitalize(Call& call);
Value Center(Call& call);
Value Lower(Call& call);
Value Upper(Call& call);
Value Replace(Call& call);
Value Strip(Call& call);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_FUNCTIONS_CALL_H_
