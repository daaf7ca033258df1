// A parsed template.
#ifndef QLORA_JINJA_SYNTAX_TREE_H_
#define QLORA_JINJA_SYNTAX_TREE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "jinja/operations.h"

namespace qlora::jinja {

using Symbol = int;  // a variable's name in Syntax::symbols

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
    kItem,         // items[0][items[1]]
    kSlice,        // items[0][items[1]:items[2]:items[3]]; null where left out
    kCall,         // items[0](items[1], ..., keywords)
    kSpread,       // *items[0], an argument of a call
    kFilter,       // items[0] | name(items[1], ..., keywords)
    kTest,         // items[0] is name(items[1], ..., keywords)
    kNot,          // not items[0]
    kNegative,     // -items[0]
    kPositive,     // +items[0]
    kConditional,  // items[0] if items[1] else items[2]; the last may be null
    kBinary,       // items[0] operators[0] items[1]
    kCompare,      // items[0] operators[0] items[1] operators[1] items[2] ..., as 1 < x < 3
  };
  Kind kind;
  std::size_t offset = 0;  // in the source
  int height = 1;          // of the tree
  Symbol symbol = -1;
  Value value;
  std::string name;
  std::vector<ExpressionPtr> items;
  std::vector<Operator> operators;
  std::vector<std::string> keywords;  // names of the last items of a call, filter or test
};

struct Statement;
using Block = std::vector<Statement>;

// Names that a macro defines in addition to its parameters: those that its body mentions.
struct MacroNames {
  bool caller = false;
  bool varargs = false;
  bool kwargs = false;
};

struct Macro {
  std::string name;
  std::vector<Symbol> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Block body;
  MacroNames mentioned;
};

struct Statement {
  enum Kind {
    kText,        // name
    kOutput,      // {{ expressions[0] }}
    kIf,          // expressions[i] -> blocks[i]; one block more: else
    kFor,         // for target in expressions[0] if expressions[1] (or null); blocks: body, else
    kSet,         // set target = expressions[0]
    kSetBlock,    // set target; expressions[0] of the text that blocks[0] writes
    kFilter,      // filter; expressions[0] of the text that blocks[0] writes
    kWith,        // with target = expressions[0], both tuples; blocks[0]
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
  std::unordered_map<std::string, Symbol> symbols;
  bool has_generation = false;
};

// Symbols that the interpreter sets.
inline constexpr Symbol kLoopSymbol = 0;
inline constexpr Symbol kCallerSymbol = 1;
inline constexpr Symbol kVarargsSymbol = 2;
inline constexpr Symbol kKwargsSymbol = 3;
inline constexpr Symbol kCapturedSymbol = 4;  // the text that a block has written

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_SYNTAX_TREE_H_
