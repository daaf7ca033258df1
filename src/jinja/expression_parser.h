// Tokens -> trees of expressions. The grammar, in which {x} is any number of x and [x] at most one:
//
//   tuple       = expression {"," expression} [","]
//   expression  = operators {"if" operators ["else" expression]}
//   operators   = unary {operator unary}, grouped by the table below
//   unary       = operand {"|" filter | "is" test | arguments}
//   operand     = ("-" operand | "+" operand | primary)
//                 {"." name | "[" expression or slice "]" | arguments}
//   primary     = name | number | string {string}
//               | "(" [tuple] ")" | "[" items "]" | "{" pairs "}"
//   filter      = name [arguments]
//   test        = ["not"] name [arguments | operand]
//   arguments   = "(" {["*"] expression ","} {name "=" expression ","} ")"
//
//   level 1  or
//         2  and
//         3  not x
//         4  ==  !=  <  <=  >  >=  in  not in      a < b < c means a < b and b < c
//         5  +  -
//         6  ~
//         7  *  /  //  %
//         8  **                                    binds most tightly; 2 ** 3 ** 2 is (2 ** 3) ** 2
#ifndef QLORA_JINJA_EXPRESSION_PARSER_H_
#define QLORA_JINJA_EXPRESSION_PARSER_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/syntax_tree.h"

namespace qlora::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens);

 protected:
  const Token& Current() const { return tokens_[at_]; }
  const Token& Take();
  // Is the current token this name or operator? Skip takes it, Expect must find it.
  bool Is(std::string_view text) const { return IsToken(Current(), text); }
  bool Skip(std::string_view text);
  void Expect(std::string_view text);
  std::string TakeName();
  [[noreturn]] void FailUnexpected(std::string_view expected) const;

  Symbol Intern(const std::string& name);
  ExpressionPtr Variable(const std::string& name, std::size_t offset);
  // A node over the items. Errors: Failure when the tree becomes too high.
  template <typename... Items>
  ExpressionPtr Make(Expression::Kind kind, std::size_t offset, Items... items) const {
    auto node = std::make_unique<Expression>();
    node->kind = kind;
    node->offset = offset;
    (AddItem(*node, std::move(items)), ...);
    return node;
  }
  void AddItem(Expression& node, ExpressionPtr item) const;

  ExpressionPtr ParseExpression();
  // One expression, or several with commas: a tuple. is_iterable: without "x if y", whose "if"
  // belongs to the loop.
  ExpressionPtr ParseTuple(bool is_iterable = false);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseFilters(ExpressionPtr operand);   // {"|" filter}
  ExpressionPtr ParseFilterAt(ExpressionPtr operand);  // a filter's name and arguments

  // Held while the parser calls itself, so that its stack is bounded. Errors: Failure.
  DepthLevel Enter();

  Syntax syntax_;
  MacroNames mentioned_;  // by the macro that is being parsed

 private:
  struct BinaryOperator;
  static bool IsToken(const Token& token, std::string_view text) {
    return (token.kind == Token::kName || token.kind == Token::kOperator) && token.text == text;
  }
  const Token& Next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const BinaryOperator* FindOperator() const;
  ExpressionPtr ParseOperators(int loosest);
  ExpressionPtr ParseCompare(ExpressionPtr left);
  ExpressionPtr ParseUnary();
  ExpressionPtr ParseOperand();
  ExpressionPtr ParseLiteral();
  ExpressionPtr ParseItems(Expression::Kind kind, std::string_view close);
  ExpressionPtr ParsePostfix(ExpressionPtr operand);
  ExpressionPtr ParseSubscript(ExpressionPtr operand);
  ExpressionPtr ParseTest(ExpressionPtr operand);
  void ParseArguments(Expression& call);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_EXPRESSION_PARSER_H_
