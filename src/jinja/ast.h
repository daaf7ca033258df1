// A parsed template.
#ifndef QLORA_JINJA_AST_H_
#define QLORA_JINJA_AST_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace qlora::jinja {

using Symbol = int;  // index of a variable's name in Syntax::symbols

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum Kind {
    kLiteral,      // value
    kVariable,     // symbol, name
    kList,         // items
    kTuple,        // items
    kDict,         // items: key, value, key, value ...
    kAttribute,    // items[0].name
    kItem,         // items[0][items[1]]; name: the key when it is a literal text
    kSlice,        // items[0][items[1]:items[2]:items[3]]; null where left out
    kCall,         // items[0](items[1], ..., keywords)
    kFilter,       // items[0] | name(items[1], ..., keywords)
    kTest,         // items[0] is name(items[1], ..., keywords)
    kCaptured,     // what a block set or a filter block has written
    kNot,          // not items[0]
    kNegative,     // -items[0]
    kPositive,     // +items[0]
    kAnd,          // items[0] and items[1]
    kOr,           // items[0] or items[1]
    kConditional,  // items[0] if items[1] else items[2]; the last may be null
    kConcatenate,  // items[0] ~ items[1] ~ ...
    kArithmetic,   // items[0] op items[1]
    kCompare,      // items[0] name items[1]: == != < <= > >= in not in
    kChain,        // items are kCompare; the right side of each is the left side of the next
  };
  Kind kind;
  std::size_t offset = 0;  // in the source
  int height = 1;          // of the tree
  Symbol symbol = -1;
  Operator op = Operator::kAdd;
  Value value;
  std::string name;
  std::vector<ExpressionPtr> items;
  std::vector<std::string> keywords;  // names of the last items of a call, filter or test
};

struct Statement;
using Block = std::vector<Statement>;

struct Macro {
  std::string name;
  std::vector<Symbol> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Block body;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Statement {
  enum Kind {
    kText,        // name
    kOutput,      // {{ expressions[0] }}
    kIf,          // expressions[i] -> blocks[i]; one block more: else
    kFor,         // for target in expressions[0] if expressions[1] (or null); blocks: body, else
    kSet,         // set target = expressions[0]
    kSetBlock,    // set target; expressions[0] of what blocks[0] writes
    kFilter,      // filter; expressions[0] of what blocks[0] writes
    kWith,        // with target.items[i] = expressions[i]; blocks[0]
    kMacro,       // target (a variable) = macro
    kCall,        // call(macro's parameters) expressions[0]; macro's body is the caller
    kGeneration,  // blocks[0]
    kBreak,
    kContinue,
  };
  Kind kind;
  std::size_t offset = 0;
  std::string name;
  ExpressionPtr target;  // kVariable, kTuple of targets, or kAttribute of a namespace
  std::vector<ExpressionPtr> expressions;
  std::vector<Block> blocks;
  std::unique_ptr<Macro> macro;
};

struct Syntax {
  Block body;
  std::vector<std::string> symbols;
  bool has_generation = false;
};

// Symbols with a meaning of their own, at these places in Syntax::symbols.
inline constexpr Symbol kLoopSymbol = 0;
inline constexpr Symbol kCallerSymbol = 1;
inline constexpr Symbol kVarargsSymbol = 2;
inline constexpr Symbol kKwargsSymbol = 3;

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_AST_H_
