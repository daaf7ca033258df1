// Tokens -> syntax tree.
#ifndef QLORA_JINJA_PARSER_H_
#define QLORA_JINJA_PARSER_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace qlora::jinja {

// Errors: Failure with the place, also for what is not supported.
Syntax Parse(std::vector<Token> tokens);

// The expressions of a template. The grammar, from loose to tight:
//   conditional = or {"if" or ["else" conditional]}
//   or = and {"or" and};  and = not {"and" not};  not = "not" not | compare
//   compare = sum {("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in") sum}
//   sum = concatenation {("+" | "-") concatenation};  concatenation = product {"~" product}
//   product = power {("*" | "/" | "//" | "%") power};  power = unary {"**" unary}
//   unary = ["-" | "+"] primary, then {.name [item] (call) | filter, is test}
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens);

 protected:
  const Token& Current() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool IsOperator(std::string_view text) const { return Is(Current(), Token::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(Current(), Token::kName, text); }
  bool SkipOperator(std::string_view text);
  bool SkipName(std::string_view text);
  void ExpectOperator(std::string_view text);
  void ExpectName(std::string_view text);
  void ExpectKind(Token::Kind kind);
  std::string TakeName();
  [[noreturn]] void FailUnexpected(std::string_view expected) const;

  Symbol Intern(const std::string& name);
  ExpressionPtr Variable(const std::string& name, std::size_t offset);
  // A node over `items`. Errors: Failure when the tree becomes too high.
  ExpressionPtr Make(Expression::Kind kind, std::size_t offset,
                     std::vector<ExpressionPtr> items = {}) const;

  ExpressionPtr ParseConditional();
  ExpressionPtr ParseOr();
  // One expression, or several with commas: a tuple. `or_only`: without a conditional, whose "if"
  // belongs to the loop.
  ExpressionPtr ParseTuple(bool or_only = false, bool may_be_empty = false);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParsePostfix(ExpressionPtr operand);
  ExpressionPtr ParseFilters(ExpressionPtr operand);   // {"|" filter}
  ExpressionPtr ParseFilterAt(ExpressionPtr operand);  // a filter's name and arguments

  // Held while the parser calls itself.
  class Level {
   public:
    explicit Level(ExpressionParser& parser);
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExpressionParser& parser_;
  };

  Syntax syntax_;
  // What the macro that is being parsed mentions.
  bool uses_varargs_ = false;
  bool uses_kwargs_ = false;
  bool uses_caller_ = false;

 private:
  static bool Is(const Token& token, Token::Kind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcatenation();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseUnary(bool with_filters = true);
  ExpressionPtr ParseNumber();
  ExpressionPtr ParseText();
  ExpressionPtr ParseItems(Expression::Kind kind, std::string_view close);
  ExpressionPtr ParseSubscript(ExpressionPtr operand);
  ExpressionPtr ParseTest(ExpressionPtr operand);
  std::string ParseComparison();
  void ParseArguments(Expression& call);
  bool AtTupleEnd() const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_PARSER_H_
