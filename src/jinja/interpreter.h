// Renders a syntax tree. A Scope holds the variables of one block: {% set %} writes to the
// innermost scope, a name is looked up from there outwards.
//
//   variables and functions of the caller
//     the template
//       one pass of a for loop (with `loop`)     a macro's call (around it: where it was defined)
//
// An `if` has no scope. Scopes live as long as the rendering, since a macro refers to its own.
#ifndef QLORA_JINJA_INTERPRETER_H_
#define QLORA_JINJA_INTERPRETER_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/functions/call.h"
#include "jinja/syntax_tree.h"

namespace qlora::jinja {

struct Scope {
  Scope* parent;
  std::vector<std::pair<Symbol, Value>> variables;
};

// A loop that runs. An item is taken, and the loop's condition evaluated, when it is asked for: the
// condition may read variables that the body sets. loop.last and loop.nextitem take one item in
// advance.
struct Loop {
  const Expression* target;
  const Expression* condition;  // null: none, or all items meet it
  Scope* scope;                 // around the loop
  std::vector<Value> items;
  std::int64_t next = 0;  // the first of `items` that is not taken
  std::int64_t index0 = -1;
  Value previous;
  Value current;
  std::optional<Value> after;  // taken in advance
  Value changed;               // the arguments of the last loop.changed(...), a tuple
};

class Interpreter {
 public:
  Interpreter(const Syntax& syntax, const JinjaOptions& options)
      : syntax_(syntax), runtime_(options) {}

  // Renders once. Errors: Failure.
  JinjaOutput Run(std::span<const JinjaVariable> variables);

  std::size_t place() const { return at_; }  // in the source

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // statement_interpreter.cc
  Flow Execute(const Block& block, Scope* scope);
  Flow Execute(const Statement& statement, Scope* scope);
  Flow ExecuteIf(const Statement& statement, Scope* scope);
  Flow ExecuteFor(const Statement& statement, Scope* scope);
  void ExecuteCall(const Statement& statement, Scope* scope);
  void ExecuteGeneration(const Statement& statement, Scope* scope);
  Value Capture(const Block& block, Scope* scope);
  Value Filtered(const Statement& statement, Scope* scope);
  void Assign(const Expression& target, const Value& value, Scope* scope);
  void AssignAttribute(const Expression& target, const Value& value, Scope* scope);
  void Write(const Value& value);
  bool Advance(Loop& loop);
  std::optional<Value> TakeItem(Loop& loop);
  std::int64_t LoopLength(Loop& loop);
  std::optional<std::size_t> MessageIndex(const Scope* scope);
  Scope* NewScope(Scope* parent);
  Value* FindVariable(Scope& scope, Symbol symbol);
  void SetVariable(Scope& scope, Symbol symbol, Value value);
  Value Lookup(const Expression& variable, Scope* scope);

  // expression_interpreter.cc
  Value Evaluate(const Expression& e, Scope* scope);
  Value Operand(const Expression& e, int i, Scope* scope);
  Value EvaluateBinary(const Expression& e, Scope* scope);
  Value EvaluateCompare(const Expression& e, Scope* scope);
  Value EvaluateContainer(const Expression& e, Scope* scope);
  Value EvaluateFilter(const Expression& e, Scope* scope);
  Value Applied(const Function* method, std::string_view name, const Value& self,
                Arguments arguments);
  Value EvaluateItem(const Expression& e, Scope* scope);
  Value EvaluateCall(const Expression& e, Scope* scope, const Value* caller = nullptr);
  Value EvaluateCallee(const Expression& callee, Scope* scope);
  Arguments EvaluateArguments(const Expression& e, Scope* scope);
  Value AttributeOf(const Value& object, std::string_view name);
  Value LoopAttribute(Loop& loop, std::string_view name);
  Value CallMacro(const BoundMacro& bound, Arguments arguments);
  void SetMacroNames(const Macro& macro, Arguments& arguments, Scope& scope);

  const Syntax& syntax_;
  Runtime runtime_;
  std::deque<Scope> scopes_;
  std::deque<Loop> loops_;
  std::vector<const Loop*> running_;  // innermost last
  const List* messages_ = nullptr;    // the variable `messages`
  JinjaOutput output_;
  Marks output_marks_;
  // The text that is written, and its marks: of the output, or of a text that is captured.
  std::string* out_ = &output_.text;
  Marks* marks_ = &output_marks_;
  std::size_t at_ = 0;
};

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_INTERPRETER_H_
