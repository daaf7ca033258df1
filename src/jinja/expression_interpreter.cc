// The interpreter's expressions and calls of macros.
#include <algorithm>
#include <optional>
#include <utility>

#include "jinja/interpreter.h"

namespace qlora::jinja {
namespace {

// loop.cycle('a', 'b'): the arguments in turn, one in each pass.
Value Cycle(Call& call) {
  const auto& values = call.arguments.positional;
  if (values.empty()) Fail("loop.cycle: expected at least one argument");
  return values[std::get<Loop*>(call.self)->index0 % std::ssize(values)];
}

// loop.changed(value): whether the value differs from the value of the last call.
Value Changed(Call& call) {
  Value now = call.runtime.NewList(std::move(call.arguments.positional), List::kTuple);
  const Value last = std::exchange(std::get<Loop*>(call.self)->changed, now);
  return !Equal(call.runtime, now, last);
}

// Gives `result`, made of `text`, the marks that text_marks.h can follow.
void FollowMarks(Runtime& runtime, const Value& text, const Value& result,
                 const TextMarks::Apply& apply) {
  if (MarksOf(runtime, text) == nullptr) return;
  const Text* made = std::get_if<Text>(&result);
  if (made == nullptr) return LoseMarks(runtime, result);
  runtime.Charge(made->text->size());
  runtime.marks().Follow(std::get<Text>(text).text, made->text, apply);
}

constexpr Function kLoopMethods[] = {{"changed", Changed}, {"cycle", Cycle}};

}  // namespace

// One step of the budget, and one level of the stack, for each node of the tree.
Value Interpreter::Evaluate(const Expression& e, Scope* scope) {
  at_ = e.offset;
  const DepthLevel level = runtime_.Enter();
  runtime_.Charge(WorkBudget::kStepWork);
  switch (e.kind) {
    case Expression::kLiteral:
      return e.value;
    case Expression::kVariable:
      return Lookup(e, scope);
    case Expression::kList:
    case Expression::kTuple:
    case Expression::kDict:
      return EvaluateContainer(e, scope);
    case Expression::kAttribute:
      return AttributeOf(Operand(e, 0, scope), e.name);
    case Expression::kItem:
      return EvaluateItem(e, scope);
    case Expression::kSlice: {
      const Value object = Operand(e, 0, scope);
      const Value begin = Operand(e, 1, scope);
      const Value end = Operand(e, 2, scope);
      Value part = Slice(runtime_, object, begin, end, Operand(e, 3, scope));
      FollowMarks(runtime_, object, part, nullptr);
      return part;
    }
    case Expression::kCall:
      return EvaluateCall(e, scope);
    case Expression::kSpread:
      return Operand(e, 0, scope);
    case Expression::kFilter:
    case Expression::kTest:
      return EvaluateFilter(e, scope);
    case Expression::kNot:
      return !Truth(runtime_, Operand(e, 0, scope));
    case Expression::kNegative:
    case Expression::kPositive: {
      const Value value = Operand(e, 0, scope);
      NeedDefined(value);
      if (!AsNumber(value)) Fail("'{}' cannot have a sign", TypeName(value));
      const std::int64_t sign = e.kind == Expression::kNegative ? -1 : 1;
      return Arithmetic(runtime_, Operator::kMultiply, value, sign);
    }
    case Expression::kConditional:
      return Operand(e, Truth(runtime_, Operand(e, 1, scope)) ? 0 : 2, scope);
    case Expression::kBinary:
      return EvaluateBinary(e, scope);
    case Expression::kCompare:
      return EvaluateCompare(e, scope);
  }
  return Value();
}

// Item i of `e`, undefined where it is left out. An error names the place at_, which the item has
// moved; the caller's errors are about `e` again.
Value Interpreter::Operand(const Expression& e, int i, Scope* scope) {
  Value value = e.items[i] == nullptr ? Value() : Evaluate(*e.items[i], scope);
  at_ = e.offset;
  return value;
}

// Searches from the innermost scope outwards (interpreter.h).
Value Interpreter::Lookup(const Expression& variable, Scope* scope) {
  for (; scope != nullptr; scope = scope->parent) {
    if (const Value* value = FindVariable(*scope, variable.symbol)) return *value;
  }
  return Undefined{variable.name};
}

// `and` and `or` give one of their operands, and evaluate the right one only when they need it.
Value Interpreter::EvaluateBinary(const Expression& e, Scope* scope) {
  const Operator op = e.operators[0];
  const Value left = Operand(e, 0, scope);
  if (op == Operator::kAnd && !Truth(runtime_, left)) return left;
  if (op == Operator::kOr && Truth(runtime_, left)) return left;
  const Value right = Operand(e, 1, scope);
  if (op == Operator::kAnd || op == Operator::kOr) return right;
  if (op != Operator::kConcatenate) {
    Value result = Arithmetic(runtime_, op, left, right);
    const bool joins = op == Operator::kAdd;  // which has followed the marks
    if (!joins && (HasMarks(runtime_, left) || HasMarks(runtime_, right))) {
      LoseMarks(runtime_, result);
    }
    return result;
  }
  const auto is_nothing = [&](const Value& v) { return IsNone(v) && runtime_.is_llama_cpp(); };
  std::string text = is_nothing(left) ? "" : Str(runtime_, left);
  const std::size_t offset = text.size();
  if (!is_nothing(right)) AppendStr(runtime_, right, text);
  const Value result = runtime_.NewText(std::move(text));
  JoinMarks(runtime_, left, right, offset, result);
  return result;
}

// Stops at the first link of the chain that does not hold.
Value Interpreter::EvaluateCompare(const Expression& e, Scope* scope) {
  Value left = Operand(e, 0, scope);
  for (int i = 0; i < std::ssize(e.operators); ++i) {
    Value right = Operand(e, i + 1, scope);
    if (!Compare(runtime_, e.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::EvaluateContainer(const Expression& e, Scope* scope) {
  if (e.kind == Expression::kDict) {
    Dict* dict = runtime_.New<Dict>();
    for (int i = 0; i < std::ssize(e.items); i += 2) {
      const Value key = Operand(e, i, scope);
      Insert(runtime_, *dict, key, Operand(e, i + 1, scope));
    }
    return dict;
  }
  std::vector<Value> items;
  for (int i = 0; i < std::ssize(e.items); ++i) items.push_back(Operand(e, i, scope));
  const bool is_tuple = e.kind == Expression::kTuple;
  return runtime_.NewList(std::move(items), is_tuple ? List::kTuple : List::kList);
}

Value Interpreter::EvaluateFilter(const Expression& e, Scope* scope) {
  const Value operand = Operand(e, 0, scope);
  Arguments arguments = EvaluateArguments(e, scope);
  if (e.kind == Expression::kTest) return ApplyTest(runtime_, e.name, operand, arguments);
  return Applied(nullptr, e.name, operand, std::move(arguments));
}

// The result of a method, or of the filter `name`, with the marks of the text that it is made of.
Value Interpreter::Applied(const Function* method, std::string_view name, const Value& self,
                           Arguments arguments) {
  const auto apply = [&](const Value& operand, Arguments given) {
    return method != nullptr ? Invoke(runtime_, *method, operand, std::move(given))
                             : ApplyFilter(runtime_, name, operand, std::move(given));
  };
  if (runtime_.marks().empty()) return apply(self, std::move(arguments));
  bool marked = AsText(self) == nullptr && HasMarks(runtime_, self);
  for (const Value& value : arguments.positional) marked = marked || HasMarks(runtime_, value);
  for (const auto& argument : arguments.named) {
    marked = marked || HasMarks(runtime_, argument.second);
  }
  Value result = apply(self, arguments);
  // An element or an attribute that the function looks up has its own marks.
  if (marked && (AsText(self) == nullptr || AsText(result) != AsText(self))) {
    LoseMarks(runtime_, result);
  }
  const auto of_part = [&](std::string_view part) -> std::optional<std::string> {
    try {
      return Str(runtime_, apply(runtime_.NewTextLike(self, std::string(part)), arguments));
    } catch (const Failure&) {  // such as a format whose values belong to another part
      return std::nullopt;
    }
  };
  FollowMarks(runtime_, self, result, of_part);
  return result;
}

// A missing element takes the name of its key where the template spells the key out, for errors.
Value Interpreter::EvaluateItem(const Expression& e, Scope* scope) {
  const Value object = Operand(e, 0, scope);
  Value item = Item(runtime_, object, Operand(e, 1, scope));
  FollowMarks(runtime_, object, item, nullptr);
  const std::string* name = AsText(e.items[1]->value);  // of a literal key
  return IsUndefined(item) && name != nullptr ? Value(Undefined{*name}) : item;
}

Value Interpreter::AttributeOf(const Value& object, std::string_view name) {
  Loop* const* loop = std::get_if<Loop*>(&object);
  return loop != nullptr ? LoopAttribute(**loop, name) : Attribute(runtime_, object, name);
}

// previtem and nextitem are undefined at the ends of the loop.
Value Interpreter::LoopAttribute(Loop& loop, std::string_view name) {
  if (name == "index0") return loop.index0;
  if (name == "index") return loop.index0 + 1;
  if (name == "first") return loop.index0 == 0;
  if (name == "previtem") return loop.index0 == 0 ? Value(Undefined{name}) : loop.previous;
  if (name == "last" || name == "nextitem") {
    if (!loop.after) loop.after = TakeItem(loop);
    if (name == "last") return !loop.after.has_value();
    return loop.after ? *loop.after : Value(Undefined{name});
  }
  if (name == "length") return LoopLength(loop);
  if (name == "revindex") return LoopLength(loop) - loop.index0;
  if (name == "revindex0") return LoopLength(loop) - loop.index0 - 1;
  if (name == "depth" || name == "depth0") return std::int64_t{name == "depth"};
  const Function* method = FindFunction(kLoopMethods, name);
  if (method == nullptr) return Undefined{name};
  return runtime_.New(Callable{BoundFunction{method, &loop}});
}

// The number of items is known only once the loop's condition has been evaluated for all of them.
//
//   items   0 1 2 3 | 4 5 6 7       index0 + 1 passes, of which the last one is running;
//             taken | left          1 more when an item is taken in advance
std::int64_t Interpreter::LoopLength(Loop& loop) {
  if (loop.condition != nullptr) {
    std::vector<Value> left;
    while (std::optional<Value> item = TakeItem(loop)) left.push_back(std::move(*item));
    loop.items = std::move(left);
    loop.next = 0;
    loop.condition = nullptr;
  }
  return loop.index0 + 1 + (loop.after ? 1 : 0) + std::ssize(loop.items) - loop.next;
}

// Collects positional arguments, of which *list gives several, then named ones.
Arguments Interpreter::EvaluateArguments(const Expression& e, Scope* scope) {
  Arguments arguments;
  const std::size_t first_named = e.items.size() - e.keywords.size();
  for (std::size_t i = 1; i < e.items.size(); ++i) {
    Value value = Operand(e, i, scope);
    if (i >= first_named) {
      arguments.named.emplace_back(e.keywords[i - first_named], std::move(value));
    } else if (e.items[i]->kind == Expression::kSpread) {
      for (Value& item : Elements(runtime_, value)) arguments.positional.push_back(std::move(item));
    } else {
      arguments.positional.push_back(std::move(value));
    }
  }
  return arguments;
}

// The function that a call names. Calling an attribute that does not exist names the method.
Value Interpreter::EvaluateCallee(const Expression& callee, Scope* scope) {
  if (callee.kind != Expression::kAttribute) return Evaluate(callee, scope);
  const Value object = Operand(callee, 0, scope);
  Value function = AttributeOf(object, callee.name);
  if (IsUndefined(function)) {
    Fail("method '{}' of {} is not supported", callee.name, TypeName(object));
  }
  return function;
}

// caller: the body of a {% call %} block, which the callee receives as an argument of this name.
Value Interpreter::EvaluateCall(const Expression& e, Scope* scope, const Value* caller) {
  const Value callee = EvaluateCallee(*e.items[0], scope);
  Arguments arguments = EvaluateArguments(e, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  const bool is_method = e.items[0]->kind == Expression::kAttribute;
  at_ = is_method ? e.items[0]->offset : e.offset;
  NeedDefined(callee);
  Callable* const* callable = std::get_if<Callable*>(&callee);
  if (callable == nullptr) Fail("'{}' cannot be called", TypeName(callee));
  if (const auto* macro = std::get_if<BoundMacro>(&(*callable)->target)) {
    return CallMacro(*macro, std::move(arguments));
  }
  const auto& [function, self] = std::get<BoundFunction>((*callable)->target);
  return Applied(function, function->name, self, std::move(arguments));
}

// A call of {% macro m(a, b=a) %} gives the text of its body, rendered in a new scope:
//
//   scope of the definition <- new scope: caller, a, b <- scopes of the body
//
// A default may refer to the parameters before it, so they are set one after the other.
Value Interpreter::CallMacro(const BoundMacro& bound, Arguments arguments) {
  const Macro& macro = *bound.macro;
  const std::vector<std::string_view> names(macro.parameter_names.begin(),
                                            macro.parameter_names.end());
  const std::size_t place = at_;
  Scope* scope = NewScope(bound.scope);
  SetMacroNames(macro, arguments, *scope);
  const BoundArguments args(runtime_, macro.name, std::move(arguments), names, /*required=*/0);
  const std::size_t first_default = names.size() - macro.defaults.size();
  for (std::size_t i = 0; i < names.size(); ++i) {
    Value value = Undefined{names[i]};
    if (args.Has(i)) {
      value = args[i];
    } else if (i >= first_default) {
      value = Evaluate(*macro.defaults[i - first_default], scope);
    }
    SetVariable(*scope, macro.parameters[i], std::move(value));
  }
  Value text = Capture(macro.body, scope);
  at_ = place;
  return text;
}

// Takes the arguments that have no parameter. They become the variables caller, varargs and kwargs,
// when the macro mentions these; otherwise they stay, and are refused as unknown.
void Interpreter::SetMacroNames(const Macro& macro, Arguments& arguments, Scope& scope) {
  const auto& names = macro.parameter_names;
  auto& [positional, named] = arguments;
  runtime_.Charge((names.size() + 1) * (named.size() + 1), sizeof(Value));
  Value caller = Undefined{"caller"};
  Dict* kwargs = macro.mentioned.kwargs ? runtime_.New<Dict>() : nullptr;
  const auto take = [&](auto& argument) {
    if (std::find(names.begin(), names.end(), argument.first) != names.end()) return false;
    if (argument.first == "caller" && macro.mentioned.caller) {
      caller = argument.second;
      return true;
    }
    if (kwargs == nullptr) return false;
    Insert(runtime_, *kwargs, runtime_.NewText(std::string(argument.first)), argument.second);
    return true;
  };
  named.erase(std::remove_if(named.begin(), named.end(), take), named.end());
  if (macro.mentioned.caller) SetVariable(scope, kCallerSymbol, caller);
  if (kwargs != nullptr) SetVariable(scope, kKwargsSymbol, kwargs);
  if (!macro.mentioned.varargs) return;
  const auto extra = positional.begin() + std::min(positional.size(), names.size());
  SetVariable(scope, kVarargsSymbol, runtime_.NewList({extra, positional.end()}, List::kTuple));
  positional.erase(extra, positional.end());
}

}  // namespace qlora::jinja
