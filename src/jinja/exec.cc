// Statements of a template.
#include <algorithm>
#include <array>
#include <utility>

#include "jinja/eval.h"

namespace qlora::jinja {

Interpreter::Interpreter(const Syntax& syntax, const JinjaOptions& options)
    : syntax_(syntax), runtime_(options) {}

JinjaOutput Interpreter::Run(std::span<const JinjaVariable> variables) {
  constexpr std::array<std::pair<std::string_view, Builtin>, 5> kBuiltins = {{
      {"range", Builtin::kRange},
      {"dict", Builtin::kDict},
      {"namespace", Builtin::kNamespace},
      {"raise_exception", Builtin::kRaiseException},
      {"strftime_now", Builtin::kStrftimeNow},
  }};
  Scope* global = NewScope(nullptr);
  for (std::size_t s = 0; s < syntax_.symbols.size(); ++s) {
    const std::string& name = syntax_.symbols[s];
    const auto symbol = static_cast<Symbol>(s);
    const auto given = std::find_if(variables.begin(), variables.end(),
                                    [&](const JinjaVariable& v) { return v.name == name; });
    const auto builtin = std::find_if(kBuiltins.begin(), kBuiltins.end(),
                                      [&](const auto& b) { return b.first == name; });
    if (given != variables.end()) {
      const Value value = FromJson(runtime_, *given->value);
      if (name == "messages") messages_ = AsList(value);
      global->variables.emplace_back(symbol, value);
    } else if (builtin != kBuiltins.end()) {
      global->variables.emplace_back(symbol, runtime_.NewCallable({builtin->second}));
    }
  }
  Execute(syntax_.body, NewScope(global));
  return std::move(output_);
}

Scope* Interpreter::NewScope(Scope* parent) {
  runtime_.Charge(sizeof(Scope));
  return &scopes_.emplace_back(Scope{parent, {}});
}

Interpreter::Flow Interpreter::Execute(const Block& block, Scope* scope) {
  for (const Statement& statement : block) {
    const Flow flow = Execute(statement, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Execute(const Statement& statement, Scope* scope) {
  at_ = statement.offset;
  const Runtime::Level level(runtime_);
  runtime_.Charge(1);
  switch (statement.kind) {
    case Statement::kText:
      runtime_.Charge(statement.name.size());
      *out_ += statement.name;
      CheckOutput();
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
    case Statement::kFilter: {
      Value text = Capture(statement.blocks[0], NewScope(scope));
      const Value outer = std::exchange(captured_, std::move(text));
      const Value value = Evaluate(*statement.expressions[0], scope);
      captured_ = outer;
      statement.kind == Statement::kFilter ? Write(value) : Assign(*statement.target, value, scope);
      break;
    }
    case Statement::kWith:
      ExecuteWith(statement, scope);
      break;
    case Statement::kMacro:
      Assign(*statement.target, runtime_.NewCallable({BoundMacro{statement.macro.get(), scope}}),
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

void Interpreter::Write(const Value& value) {
  AppendStr(runtime_, value, *out_);
  CheckOutput();
}

void Interpreter::CheckOutput() const {
  if (out_->size() > runtime_.options().limits.output) {
    Fail("the output is too large (limit {} bytes)", runtime_.options().limits.output);
  }
}

Interpreter::Flow Interpreter::ExecuteIf(const Statement& statement, Scope* scope) {
  for (std::size_t i = 0; i < statement.expressions.size(); ++i) {
    if (Truth(Evaluate(*statement.expressions[i], scope))) {
      return Execute(statement.blocks[i], scope);
    }
  }
  const bool has_else = statement.blocks.size() > statement.expressions.size();
  return has_else ? Execute(statement.blocks.back(), scope) : Flow::kNext;
}

std::optional<Value> Interpreter::TakeItem(Loop& loop) {
  while (loop.next < loop.items.size()) {
    Value item = loop.items[loop.next++];
    if (loop.statement == nullptr) return item;
    Scope* scope = NewScope(loop.scope);
    Assign(*loop.statement->target, item, scope);
    if (Truth(Evaluate(*loop.statement->expressions[1], scope))) return item;
  }
  return std::nullopt;
}

bool Interpreter::Advance(Loop& loop) {
  std::optional<Value> item = std::exchange(loop.after, std::nullopt);
  if (!item) item = TakeItem(loop);
  if (!item) return false;
  ++loop.index0;
  loop.before = std::exchange(loop.current, std::move(*item));
  return true;
}

Interpreter::Flow Interpreter::ExecuteFor(const Statement& statement, Scope* scope) {
  const Value iterable = Evaluate(*statement.expressions[0], scope);
  at_ = statement.offset;
  const bool has_condition = statement.expressions[1] != nullptr;
  runtime_.Charge(sizeof(Loop));
  Loop& loop = loops_.emplace_back();
  loop.items = Elements(runtime_, iterable);
  loop.statement = has_condition ? &statement : nullptr;
  loop.scope = scope;
  if (!has_condition) loop.length = static_cast<std::int64_t>(loop.items.size());
  running_.push_back(&loop);
  while (Advance(loop)) {
    Scope* inner = NewScope(scope);
    Assign(*statement.target, loop.current, inner);
    inner->variables.emplace_back(kLoopSymbol, &loop);
    if (Execute(statement.blocks[0], inner) == Flow::kBreak) break;
  }
  running_.pop_back();
  loop.items.clear();
  if (loop.index0 >= 0 || statement.blocks.size() < 2) return Flow::kNext;
  return Execute(statement.blocks[1], NewScope(scope));
}

void Interpreter::ExecuteWith(const Statement& statement, Scope* scope) {
  Scope* inner = NewScope(scope);
  for (std::size_t i = 0; i < statement.expressions.size(); ++i) {
    Assign(*statement.target->items[i], Evaluate(*statement.expressions[i], scope), inner);
  }
  Execute(statement.blocks[0], inner);
}

void Interpreter::ExecuteCall(const Statement& statement, Scope* scope) {
  const Value caller = runtime_.NewCallable({BoundMacro{statement.macro.get(), scope}});
  Write(EvaluateCall(*statement.expressions[0], scope, &caller));
}

std::optional<std::size_t> Interpreter::MessageIndex() {
  if (messages_ == nullptr) return std::nullopt;
  for (auto loop = running_.rbegin(); loop != running_.rend(); ++loop) {
    const Dict* current = AsDict((*loop)->current);
    if (current == nullptr) continue;
    runtime_.Charge(messages_->items.size());
    const auto message = std::find_if(messages_->items.begin(), messages_->items.end(),
                                      [&](const Value& value) { return AsDict(value) == current; });
    if (message != messages_->items.end()) {
      return static_cast<std::size_t>(message - messages_->items.begin());
    }
  }
  return std::nullopt;
}

void Interpreter::ExecuteGeneration(const Statement& statement, Scope* scope) {
  const std::size_t begin = out_->size();
  Execute(statement.blocks[0], NewScope(scope));
  if (captures_ > 0) {
    output_.generation_lost = true;
  } else if (out_->size() > begin) {
    output_.generation.push_back({begin, out_->size(), MessageIndex()});
  }
}

Value Interpreter::Capture(const Block& block, Scope* scope) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  ++captures_;
  Execute(block, scope);
  --captures_;
  out_ = outer;
  return runtime_.MakeText(std::move(text));
}

void Interpreter::Assign(const Expression& target, const Value& value, Scope* scope) {
  if (target.kind == Expression::kTuple) {
    const std::vector<Value> items = Elements(runtime_, value);
    if (items.size() != target.items.size()) {
      Fail("{} values cannot be unpacked into {} names", items.size(), target.items.size());
    }
    for (std::size_t i = 0; i < items.size(); ++i) Assign(*target.items[i], items[i], scope);
  } else if (target.kind == Expression::kAttribute) {
    at_ = target.offset;
    const Value object = Lookup(*target.items[0], scope);
    Namespace* const* space = std::get_if<Namespace*>(&object);
    if (space == nullptr) {
      Fail("'{}' is not a namespace, so '.{}' cannot be set", target.items[0]->name, target.name);
    }
    auto& items = (*space)->items;
    const auto known = std::find_if(items.begin(), items.end(),
                                    [&](const auto& item) { return item.first == target.name; });
    if (known != items.end()) {
      known->second = value;
    } else {
      items.emplace_back(target.name, value);
    }
  } else {
    auto& variables = scope->variables;
    const auto known = std::find_if(variables.begin(), variables.end(), [&](const auto& variable) {
      return variable.first == target.symbol;
    });
    if (known != variables.end()) {
      known->second = value;
    } else {
      variables.emplace_back(target.symbol, value);
    }
  }
}

}  // namespace qlora::jinja
