#include "jinja/functions/call.h"

#include <algorithm>

#include "jinja/operations.h"

namespace qlora::jinja {

// Positional arguments take the first parameters, named ones any that is left:
//   parameters (old, new, count), call replace('a', new='b')  ->  'a', 'b', nothing
BoundArguments::BoundArguments(WorkBudget& budget, std::string_view callee, Arguments arguments,
                               std::span<const std::string_view> parameters, int required)
    : callee_(callee), values_(parameters.size()) {
  budget.Charge(parameters.size() * (arguments.named.size() + 1), sizeof(Value));
  if (arguments.positional.size() > parameters.size()) {
    Fail("{} takes at most {} arguments, found {}", callee, parameters.size(),
         arguments.positional.size());
  }
  std::move(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (auto& [name, value] : arguments.named) {
    const auto known = std::find(parameters.begin(), parameters.end(), name);
    if (known == parameters.end()) Fail("{} has no argument '{}'", callee, name);
    auto& place = values_[known - parameters.begin()];
    if (place) Fail("{}: argument '{}' is given twice", callee, name);
    place = std::move(value);
  }
  for (int i = 0; i < required; ++i) {
    if (!Has(i)) Fail("{}: argument '{}' is missing", callee, parameters[i]);
  }
}

bool BoundArguments::Flag(int i) const { return Has(i) && Truth(*values_[i]); }

std::int64_t BoundArguments::IntegerOr(int i, std::int64_t otherwise) const {
  return Has(i) ? NeedInteger(*values_[i], callee_) : otherwise;
}

// The tables have at most some twenty names, so they are searched from the front.
const Function* FindFunction(std::span<const Function> functions, std::string_view name) {
  const auto found = std::find_if(functions.begin(), functions.end(),
                                  [&](const Function& f) { return f.name == name; });
  return found == functions.end() ? nullptr : &*found;
}

// Pays for one pass over a text; the function pays for more than that.
Value Invoke(Runtime& runtime, const Function& function, const Value& self, Arguments arguments) {
  if (const std::string* text = AsText(self)) runtime.Charge(text->size());
  Call call{runtime, function.name, self, std::move(arguments)};
  return function.run(call);
}

const Function* FindFilter(std::string_view name) {
  for (const auto& filters : {TextFilters(), ListFilters(), LayoutFilters()}) {
    if (const Function* filter = FindFunction(filters, name)) return filter;
  }
  return nullptr;
}

// Looked up when it is reached, not when it is parsed: a template may name a filter that it does
// not need for this conversation.
Value ApplyFilter(Runtime& runtime, std::string_view name, const Value& self, Arguments arguments) {
  const Function* filter = FindFilter(name);
  if (filter == nullptr)
    Fail("filter '{}' is not supported, nor known to Jinja2; write a template without it", name);
  return Invoke(runtime, *filter, self, std::move(arguments));
}

}  // namespace qlora::jinja
