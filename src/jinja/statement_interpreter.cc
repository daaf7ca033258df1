// The interpreter's statements, and the scopes of variables.
#include <algorithm>
#include <utility>

#include "jinja/interpreter.h"

namespace qlora::jinja {

// Converts only the variables that the template names.
JinjaOutput Interpreter::Run(std::span<const JinjaVariable> variables) {
  Scope* global = NewScope(nullptr);
  // Defines a name once, so that a variable hides a function of its name.
  const auto define = [&](std::string_view name, auto make_value) {
    runtime_.Charge(WorkBudget::kStepWork);
    const auto symbol = syntax_.symbols.find(std::string(name));
    if (symbol == syntax_.symbols.end()) return;
    if (FindVariable(*global, symbol->second) != nullptr) return;
    SetVariable(*global, symbol->second, make_value());
  };
  for (const JinjaVariable& variable : variables) {
    define(variable.name, [&] {
      const Value value = FromJson(runtime_, *variable.value);
      if (variable.name == "messages") messages_ = AsList(value);
      return value;
    });
  }
  for (const Function& function : GlobalFunctions()) {
    define(function.name, [&] { return runtime_.New(Callable{BoundFunction{&function, None()}}); });
  }
  Execute(syntax_.body, NewScope(global));
  output_.generation = std::move(output_marks_.spans);
  output_.generation_lost = output_marks_.lost;
  return std::move(output_);
}

// Scopes live until the end of the rendering (interpreter.h), so each costs work.
Scope* Interpreter::NewScope(Scope* parent) {
  runtime_.Charge(WorkBudget::kObjectWork);
  return &scopes_.emplace_back(Scope{parent, {}});
}

// A scope holds few variables, so they are searched one after the other.
Value* Interpreter::FindVariable(Scope& scope, Symbol symbol) {
  runtime_.Charge(scope.variables.size() + 1);
  for (auto& [known, value] : scope.variables) {
    if (known == symbol) return &value;
  }
  return nullptr;
}

void Interpreter::SetVariable(Scope& scope, Symbol symbol, Value value) {
  if (Value* known = FindVariable(scope, symbol)) {
    *known = std::move(value);
  } else {
    runtime_.Charge(sizeof(scope.variables[0]));
    scope.variables.emplace_back(symbol, std::move(value));
  }
}

// break and continue pass through the blocks around them up to the loop.
Interpreter::Flow Interpreter::Execute(const Block& block, Scope* scope) {
  for (const Statement& statement : block) {
    const Flow flow = Execute(statement, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Execute(const Statement& statement, Scope* scope) {
  at_ = statement.offset;
  const DepthLevel level = runtime_.Enter();
  runtime_.Charge(WorkBudget::kStepWork);
  switch (statement.kind) {
    case Statement::kText:
      runtime_.Append(*out_, statement.name);
      runtime_.CheckOutput(out_->size());
      break;
    case Statement::kOutput:
      Write(Evaluate(*statement.expressions[0], scope));
      break;
    case Statement::kIf:
      return ExecuteIf(statement, scope);
    case Statement::kFor:
      return ExecuteFor(statement, scope);
    case Statement::kSet:
      Assign(*statement.target, Evaluate(*statement.expressions[0], scope), scope);
      break;
    case Statement::kSetBlock:
      Assign(*statement.target, Filtered(statement, scope), scope);
      break;
    case Statement::kFilter:
      Write(Filtered(statement, scope));
      break;
    case Statement::kWith: {
      Scope* inner = NewScope(scope);
      Assign(*statement.target, Evaluate(*statement.expressions[0], scope), inner);
      return Execute(statement.blocks[0], inner);
    }
    case Statement::kMacro:
      Assign(*statement.target, runtime_.New(Callable{BoundMacro{statement.macro.get(), scope}}),
             scope);
      break;
    case Statement::kCall:
      ExecuteCall(statement, scope);
      break;
    case Statement::kGeneration:
      ExecuteGeneration(statement, scope);
      break;
    case Statement::kBreak:
      return Flow::kBreak;
    case Statement::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

// The output has a separate limit, because the caller holds it in memory.
void Interpreter::Write(const Value& value) {
  if (const Marks* marks = MarksOf(runtime_, value)) {
    marks_->Append(*marks, out_->size());
  } else if (HasMarks(runtime_, value)) {  // a list that is shown
    marks_->lost = true;
  }
  AppendOutput(runtime_, value, *out_);
  runtime_.CheckOutput(out_->size());
}

// Takes the first branch whose condition holds; an `if` has no scope, so variables that it sets
// stay set.
Interpreter::Flow Interpreter::ExecuteIf(const Statement& statement, Scope* scope) {
  for (std::size_t i = 0; i < statement.expressions.size(); ++i) {
    if (Truth(runtime_, Evaluate(*statement.expressions[i], scope))) {
      return Execute(statement.blocks[i], scope);
    }
  }
  const bool has_else = statement.blocks.size() > statement.expressions.size();
  return has_else ? Execute(statement.blocks.back(), scope) : Flow::kNext;
}

// The next item that meets the loop's condition.
std::optional<Value> Interpreter::TakeItem(Loop& loop) {
  while (loop.next < std::ssize(loop.items)) {
    Value item = loop.items[loop.next++];
    if (loop.condition == nullptr) return item;
    Scope* scope = NewScope(loop.scope);
    Assign(*loop.target, item, scope);
    if (Truth(runtime_, Evaluate(*loop.condition, scope))) return item;
  }
  return std::nullopt;
}

// Makes the next item the current one; false behind the last.
bool Interpreter::Advance(Loop& loop) {
  std::optional<Value> item = std::exchange(loop.after, std::nullopt);
  if (!item) item = TakeItem(loop);
  if (!item) return false;
  ++loop.index0;
  loop.previous = std::exchange(loop.current, std::move(*item));
  return true;
}

// Each pass has a scope, and `loop` in it; the `else` block runs when there was no pass.
Interpreter::Flow Interpreter::ExecuteFor(const Statement& statement, Scope* scope) {
  const Expression& source = *statement.expressions[0];
  const Value iterable = Evaluate(source, scope);
  at_ = statement.offset;
  // Says which field is missing: templates loop over tools that a conversation need not have.
  const bool has_name =
      source.kind == Expression::kVariable || source.kind == Expression::kAttribute;
  if (IsNone(iterable) && has_name) {
    Fail("'{}' is None and cannot be iterated over", source.name);
  }
  runtime_.Charge(sizeof(Loop));
  Loop& loop = loops_.emplace_back();
  loop.target = statement.target.get();
  loop.condition = statement.expressions[1].get();
  loop.scope = scope;
  loop.items = Elements(runtime_, iterable);
  running_.push_back(&loop);
  while (Advance(loop)) {
    Scope* inner = NewScope(scope);
    Assign(*statement.target, loop.current, inner);
    SetVariable(*inner, kLoopSymbol, &loop);
    if (Execute(statement.blocks[0], inner) == Flow::kBreak) break;
  }
  running_.pop_back();
  loop.items = std::vector<Value>();  // gives its memory back
  if (loop.index0 >= 0 || statement.blocks.size() < 2) return Flow::kNext;
  return Execute(statement.blocks[1], NewScope(scope));
}

// The body becomes a macro that the called one knows as caller().
void Interpreter::ExecuteCall(const Statement& statement, Scope* scope) {
  const Value caller = runtime_.New(Callable{BoundMacro{statement.macro.get(), scope}});
  Write(EvaluateCall(*statement.expressions[0], scope, &caller));
}

// The place in `messages` of the message that the innermost loop over messages is at. A loop may
// run over a part of them (messages[1:]), but its elements are the same objects. Without such a
// loop, the message that a variable holds: the parameter of a macro, or messages[i].
std::optional<std::size_t> Interpreter::MessageIndex(const Scope* scope) {
  if (messages_ == nullptr) return std::nullopt;
  const auto& items = messages_->items;
  const auto index_of = [&](const Value& value) -> std::optional<std::size_t> {
    const Dict* dict = AsDict(value);
    if (dict == nullptr) return std::nullopt;
    runtime_.Charge(items.size());
    const auto message = std::find_if(items.begin(), items.end(),
                                      [&](const Value& item) { return AsDict(item) == dict; });
    return message == items.end() ? std::nullopt : std::optional(message - items.begin());
  };
  for (auto loop = running_.rbegin(); loop != running_.rend(); ++loop) {
    if (const auto index = index_of((*loop)->current)) return index;
  }
  for (; scope != nullptr; scope = scope->parent) {
    for (auto variable = scope->variables.rbegin(); variable != scope->variables.rend();
         ++variable) {
      if (const auto index = index_of(variable->second)) return index;
    }
  }
  return std::nullopt;
}

// Marks the bytes that the block writes, and with them what blocks within it have marked.
void Interpreter::ExecuteGeneration(const Statement& statement, Scope* scope) {
  const std::size_t begin = out_->size();
  const bool lost = marks_->lost;
  Scope* inner = NewScope(scope);
  Execute(statement.blocks[0], inner);
  if (out_->size() == begin) return;
  std::erase_if(marks_->spans, [begin](const JinjaSpan& span) { return span.begin >= begin; });
  marks_->lost = lost;
  marks_->spans.push_back({begin, out_->size(), MessageIndex(inner)});
}

// The text that a block writes.
Value Interpreter::Capture(const Block& block, Scope* scope) {
  std::string text;
  Marks marks;
  std::string* outer = std::exchange(out_, &text);
  Marks* outer_marks = std::exchange(marks_, &marks);
  Execute(block, scope);
  out_ = outer;
  marks_ = outer_marks;
  Value captured = runtime_.NewText(std::move(text));
  SetMarks(runtime_, captured, std::move(marks));
  return captured;
}

// The text that a block writes, passed through the statement's filters.
Value Interpreter::Filtered(const Statement& statement, Scope* scope) {
  Scope* inner = NewScope(scope);
  Value text = Capture(statement.blocks[0], inner);
  SetVariable(*inner, kCapturedSymbol, std::move(text));
  return Evaluate(*statement.expressions[0], inner);
}

// Assigns to a variable of the innermost scope, to an attribute of a namespace, or to a tuple.
void Interpreter::Assign(const Expression& target, const Value& value, Scope* scope) {
  if (target.kind == Expression::kVariable) return SetVariable(*scope, target.symbol, value);
  if (target.kind == Expression::kAttribute) return AssignAttribute(target, value, scope);
  const std::vector<Value> items = Elements(runtime_, value);
  if (items.size() != target.items.size()) {
    Fail("{} values cannot be unpacked into {} names", items.size(), target.items.size());
  }
  for (std::size_t i = 0; i < items.size(); ++i) Assign(*target.items[i], items[i], scope);
}

void Interpreter::AssignAttribute(const Expression& target, const Value& value, Scope* scope) {
  at_ = target.offset;
  const Value object = Lookup(*target.items[0], scope);
  Namespace* const* space = std::get_if<Namespace*>(&object);
  if (space == nullptr) {
    Fail("'{}' is not a namespace, so '.{}' cannot be set", target.items[0]->name, target.name);
  }
  Dict& values = (*space)->values;
  if (Value* known = FindName(runtime_, values, target.name)) {
    *known = value;
  } else {
    Insert(runtime_, values, runtime_.NewText(target.name), value);
  }
}

}  // namespace qlora::jinja
