// Renders a syntax tree.
#ifndef QLORA_JINJA_EVAL_H_
#define QLORA_JINJA_EVAL_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/value.h"

namespace qlora::jinja {

struct Scope {
  Scope* parent;
  std::vector<std::pair<Symbol, Value>> variables;
};

// A loop that runs. Elements are taken when they are asked for, since the loop's condition may read
// what its body sets.
struct Loop {
  std::vector<Value> items;
  std::size_t next = 0;        // the first item not yet taken
  const Statement* statement;  // null once the condition has been applied to all items
  Scope* scope;                // around the loop
  std::int64_t index0 = -1;
  Value before;
  Value current;
  std::optional<Value> after;  // taken already
  std::optional<std::int64_t> length;
  std::optional<std::vector<Value>> changed;
};

class Interpreter {
 public:
  Interpreter(const Syntax& syntax, const JinjaOptions& options);

  // Renders once. Errors: Failure.
  JinjaOutput Run(std::span<const JinjaVariable> variables);

  std::size_t place() const { return at_; }  // in the source

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Statements: jinja_exec.cc.
  Flow Execute(const Block& block, Scope* scope);
  Flow Execute(const Statement& statement, Scope* scope);
  Flow ExecuteIf(const Statement& statement, Scope* scope);
  Flow ExecuteFor(const Statement& statement, Scope* scope);
  void ExecuteWith(const Statement& statement, Scope* scope);
  void ExecuteCall(const Statement& statement, Scope* scope);
  void ExecuteGeneration(const Statement& statement, Scope* scope);
  Value Capture(const Block& block, Scope* scope);
  void Assign(const Expression& target, const Value& value, Scope* scope);
  void Write(const Value& value);
  void CheckOutput() const;
  bool Advance(Loop& loop);
  std::optional<Value> TakeItem(Loop& loop);
  std::optional<std::size_t> MessageIndex();
  Scope* NewScope(Scope* parent);

  // Expressions: jinja_eval.cc.
  Value Evaluate(const Expression& e, Scope* scope);
  Value EvaluateOperator(const Expression& e, Scope* scope);
  Value EvaluateContainer(const Expression& e, Scope* scope);
  Value EvaluateAccess(const Expression& e, Scope* scope);
  Value EvaluateChain(const Expression& e, Scope* scope);
  Value EvaluateCall(const Expression& e, Scope* scope, const Value* caller = nullptr);
  Value EvaluateOptional(const ExpressionPtr& e, Scope* scope);
  bool CompareWith(const std::string& op, const Value& left, const Value& right);
  Arguments EvaluateArguments(const Expression& e, Scope* scope);
  Value Lookup(const Expression& variable, Scope* scope) const;
  Value LoopAttribute(Loop& loop, std::string_view name);
  Value CallLoop(Loop& loop, std::string_view name, Arguments arguments);
  Value Call(const Value& callee, Arguments arguments);
  Value CallBuiltin(Builtin builtin, Arguments arguments);
  Value CallMacro(const BoundMacro& bound, Arguments arguments);
  std::int64_t LoopLength(Loop& loop);

  const Syntax& syntax_;
  Runtime runtime_;
  std::deque<Scope> scopes_;
  std::deque<Loop> loops_;
  std::vector<const Loop*> running_;  // innermost last
  const List* messages_ = nullptr;
  JinjaOutput output_;
  std::string* out_ = &output_.text;
  int captures_ = 0;  // how many texts are being captured
  Value captured_;    // for kCaptured
  std::size_t at_ = 0;
};

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_EVAL_H_
