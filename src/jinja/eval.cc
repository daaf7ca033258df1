// Expressions of a template.
#include "jinja/eval.h"

#include <algorithm>
#include <array>
#include <utility>

namespace qlora::jinja {

Value Interpreter::Evaluate(const Expression& e, Scope* scope) {
  at_ = e.offset;
  const Runtime::Level level(runtime_);
  runtime_.Charge(1);
  switch (e.kind) {
    case Expression::kLiteral:
      return e.value;
    case Expression::kVariable:
      return Lookup(e, scope);
    case Expression::kCaptured:
      return captured_;
    case Expression::kList:
    case Expression::kTuple:
    case Expression::kDict:
      return EvaluateContainer(e, scope);
    case Expression::kAttribute:
    case Expression::kItem:
    case Expression::kSlice:
      return EvaluateAccess(e, scope);
    case Expression::kCall:
      return EvaluateCall(e, scope);
    case Expression::kFilter:
    case Expression::kTest: {
      const Value operand = Evaluate(*e.items[0], scope);
      Arguments arguments = EvaluateArguments(e, scope);
      at_ = e.offset;
      if (e.kind == Expression::kTest) {
        return ApplyTest(runtime_, e.name, operand, std::move(arguments));
      }
      return ApplyFilter(runtime_, e.name, operand, std::move(arguments));
    }
    case Expression::kConditional:
      if (Truth(Evaluate(*e.items[1], scope))) return Evaluate(*e.items[0], scope);
      return EvaluateOptional(e.items[2], scope);
    default:
      return EvaluateOperator(e, scope);
  }
}

Value Interpreter::EvaluateOptional(const ExpressionPtr& e, Scope* scope) {
  return e == nullptr ? Value() : Evaluate(*e, scope);
}

Value Interpreter::EvaluateOperator(const Expression& e, Scope* scope) {
  if (e.kind == Expression::kChain) return EvaluateChain(e, scope);
  Value left = Evaluate(*e.items[0], scope);
  switch (e.kind) {
    case Expression::kNot:
      return !Truth(left);
    case Expression::kAnd:
      return Truth(left) ? Evaluate(*e.items[1], scope) : left;
    case Expression::kOr:
      return Truth(left) ? left : Evaluate(*e.items[1], scope);
    case Expression::kNegative:
      at_ = e.offset;
      return Negate(left);
    case Expression::kPositive:
      at_ = e.offset;
      return Arithmetic(runtime_, Operator::kMultiply, left, std::int64_t{1});
    case Expression::kConcatenate: {
      std::string text = Str(runtime_, left);
      for (std::size_t i = 1; i < e.items.size(); ++i) {
        AppendStr(runtime_, Evaluate(*e.items[i], scope), text);
      }
      return runtime_.MakeText(std::move(text));
    }
    default:
      break;
  }
  const Value right = Evaluate(*e.items[1], scope);
  at_ = e.offset;
  if (e.kind == Expression::kCompare) return CompareWith(e.name, left, right);
  return Arithmetic(runtime_, e.op, left, right);
}

bool Interpreter::CompareWith(const std::string& op, const Value& left, const Value& right) {
  if (op == "==") return Equal(runtime_, left, right);
  if (op == "!=") return !Equal(runtime_, left, right);
  if (op == "in") return Contains(runtime_, right, left);
  if (op == "not in") return !Contains(runtime_, right, left);
  const auto order = Compare(runtime_, left, right);
  return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
}

Value Interpreter::EvaluateChain(const Expression& e, Scope* scope) {
  Value left = Evaluate(*e.items[0]->items[0], scope);
  for (const ExpressionPtr& link : e.items) {
    Value right = Evaluate(*link->items[1], scope);
    at_ = link->offset;
    if (!CompareWith(link->name, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::EvaluateContainer(const Expression& e, Scope* scope) {
  if (e.kind == Expression::kDict) {
    Dict* dict = runtime_.NewDict();
    for (std::size_t i = 0; i < e.items.size(); i += 2) {
      const Value key = Evaluate(*e.items[i], scope);
      Insert(runtime_, *dict, key, Evaluate(*e.items[i + 1], scope));
    }
    return dict;
  }
  std::vector<Value> items;
  for (const ExpressionPtr& item : e.items) items.push_back(Evaluate(*item, scope));
  return runtime_.NewList(std::move(items),
                          e.kind == Expression::kTuple ? List::kTuple : List::kList);
}

Value Interpreter::EvaluateAccess(const Expression& e, Scope* scope) {
  const Value object = Evaluate(*e.items[0], scope);
  if (e.kind == Expression::kAttribute) {
    at_ = e.offset;
    if (Loop* const* loop = std::get_if<Loop*>(&object)) return LoopAttribute(**loop, e.name);
    return Attribute(runtime_, object, e.name);
  }
  if (e.kind == Expression::kItem) {
    const Value key = Evaluate(*e.items[1], scope);
    at_ = e.offset;
    return Item(runtime_, object, key, e.name);
  }
  const Value begin = EvaluateOptional(e.items[1], scope);
  const Value end = EvaluateOptional(e.items[2], scope);
  const Value step = EvaluateOptional(e.items[3], scope);
  at_ = e.offset;
  return Slice(runtime_, object, begin, end, step);
}

Arguments Interpreter::EvaluateArguments(const Expression& e, Scope* scope) {
  Arguments arguments;
  const std::size_t first_named = e.items.size() - e.keywords.size();
  for (std::size_t i = 1; i < e.items.size(); ++i) {
    Value value = Evaluate(*e.items[i], scope);
    if (i < first_named) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(e.keywords[i - first_named], std::move(value));
    }
  }
  return arguments;
}

Value Interpreter::EvaluateCall(const Expression& e, Scope* scope, const Value* caller) {
  const Expression& callee = *e.items[0];
  if (callee.kind == Expression::kAttribute) {
    const Value object = Evaluate(*callee.items[0], scope);
    Loop* const* loop = std::get_if<Loop*>(&object);
    if (loop != nullptr || HasMethod(object, callee.name)) {
      Arguments arguments = EvaluateArguments(e, scope);
      at_ = callee.offset;
      if (loop != nullptr) return CallLoop(**loop, callee.name, std::move(arguments));
      return CallMethod(runtime_, object, callee.name, std::move(arguments));
    }
  }
  const Value function = Evaluate(callee, scope);
  Arguments arguments = EvaluateArguments(e, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  at_ = e.offset;
  return Call(function, std::move(arguments));
}

Value Interpreter::Lookup(const Expression& variable, Scope* scope) const {
  for (; scope != nullptr; scope = scope->parent) {
    for (const auto& [symbol, value] : scope->variables) {
      if (symbol == variable.symbol) return value;
    }
  }
  return Undefined{variable.name};
}

std::int64_t Interpreter::LoopLength(Loop& loop) {
  if (!loop.length) {
    std::vector<Value> rest;
    while (auto item = TakeItem(loop)) rest.push_back(std::move(*item));
    loop.length = static_cast<std::int64_t>(rest.size()) + loop.index0 + 1 + (loop.after ? 1 : 0);
    loop.items = std::move(rest);
    loop.next = 0;
    loop.statement = nullptr;
  }
  return *loop.length;
}

Value Interpreter::LoopAttribute(Loop& loop, std::string_view name) {
  if (name == "index0") return loop.index0;
  if (name == "index") return loop.index0 + 1;
  if (name == "first") return loop.index0 == 0;
  if (name == "length") return LoopLength(loop);
  if (name == "revindex0") return LoopLength(loop) - loop.index0 - 1;
  if (name == "revindex") return LoopLength(loop) - loop.index0;
  if (name == "depth0") return std::int64_t{0};
  if (name == "depth") return std::int64_t{1};
  if (name == "previtem") return loop.index0 == 0 ? Value(Undefined{name}) : loop.before;
  if (name == "last" || name == "nextitem") {
    if (!loop.after) loop.after = TakeItem(loop);
    if (name == "last") return !loop.after.has_value();
    return loop.after ? *loop.after : Value(Undefined{name});
  }
  return Undefined{name};
}

Value Interpreter::CallLoop(Loop& loop, std::string_view name, Arguments arguments) {
  if (!arguments.named.empty()) Fail("loop.{} takes no named arguments", name);
  std::vector<Value>& values = arguments.positional;
  if (name == "cycle") {
    if (values.empty()) Fail("loop.cycle: expected at least one argument");
    return values[static_cast<std::size_t>(loop.index0) % values.size()];
  }
  if (name != "changed") Fail("loop.{} is not supported", name);
  const bool same =
      loop.changed &&
      std::equal(values.begin(), values.end(), loop.changed->begin(), loop.changed->end(),
                 [&](const Value& a, const Value& b) { return Equal(runtime_, a, b); });
  loop.changed = std::move(values);
  return !same;
}

Value Interpreter::Call(const Value& callee, Arguments arguments) {
  if (const auto* undefined = std::get_if<Undefined>(&callee)) FailUndefined(*undefined);
  Callable* const* callable = std::get_if<Callable*>(&callee);
  if (callable == nullptr) Fail("'{}' cannot be called", TypeName(callee));
  const auto& target = (*callable)->target;
  if (const auto* method = std::get_if<BoundMethod>(&target)) {
    return CallMethod(runtime_, method->self, method->name, std::move(arguments));
  }
  if (const auto* macro = std::get_if<BoundMacro>(&target)) {
    return CallMacro(*macro, std::move(arguments));
  }
  return CallBuiltin(std::get<Builtin>(target), std::move(arguments));
}

Value Interpreter::CallMacro(const BoundMacro& bound, Arguments arguments) {
  const Macro& macro = *bound.macro;
  Scope* scope = NewScope(bound.scope);
  std::vector<Value> varargs;
  const std::size_t count = macro.parameters.size();
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i >= count) {
      varargs.push_back(std::move(arguments.positional[i]));
    } else {
      scope->variables.emplace_back(macro.parameters[i], std::move(arguments.positional[i]));
    }
  }
  if (!varargs.empty() && !macro.uses_varargs) {
    Fail("macro '{}' takes at most {} arguments, found {}", macro.name, count,
         arguments.positional.size());
  }
  Dict* kwargs = runtime_.NewDict();
  std::vector<std::optional<Value>> named(count);
  for (auto& [name, value] : arguments.named) {
    const auto known = std::find(macro.parameter_names.begin(), macro.parameter_names.end(), name);
    const auto index = static_cast<std::size_t>(known - macro.parameter_names.begin());
    if (index < count) {
      if (index < arguments.positional.size()) {
        Fail("macro '{}': argument '{}' is given twice", macro.name, name);
      }
      named[index] = std::move(value);
    } else if (name == "caller" && macro.uses_caller) {
      scope->variables.emplace_back(kCallerSymbol, std::move(value));
    } else if (macro.uses_kwargs) {
      Insert(runtime_, *kwargs, runtime_.MakeText(std::string(name)), std::move(value));
    } else {
      Fail("macro '{}' has no argument '{}'", macro.name, name);
    }
  }
  const std::size_t first_default = count - macro.defaults.size();
  for (std::size_t i = arguments.positional.size(); i < count; ++i) {
    Value value = Undefined{macro.parameter_names[i]};
    if (named[i]) {
      value = std::move(*named[i]);
    } else if (i >= first_default) {
      value = Evaluate(*macro.defaults[i - first_default], scope);
    }
    scope->variables.emplace_back(macro.parameters[i], std::move(value));
  }
  if (macro.uses_varargs) {
    scope->variables.emplace_back(kVarargsSymbol,
                                  runtime_.NewList(std::move(varargs), List::kTuple));
  }
  if (macro.uses_kwargs) scope->variables.emplace_back(kKwargsSymbol, kwargs);
  const std::size_t place = at_;
  Value text = Capture(macro.body, scope);
  at_ = place;
  return text;
}

}  // namespace qlora::jinja
