// Recursive descent: one function for each rule of the grammar in the header, apart from binary
// operators, all levels of which are one function (ParseOperators). For example:
//
//   not a == b | upper          kNot
//                                 kCompare ==
//                                   kVariable a
//                                   kFilter upper
//                                     kVariable b
//
// Errors carry the offset of a token; the caller makes line and column of it.
#include "jinja/expression_parser.h"

#include <charconv>
#include <cstdlib>

namespace qlora::jinja {
namespace {

constexpr int kMaxDepth = 100;   // brackets and blocks within each other
constexpr int kMaxHeight = 400;  // of an expression's tree

constexpr int kNotLevel = 3;
constexpr int kCompareLevel = 4;

// Names a token in an error, "expected ')', found ...", without quoting long texts.
std::string Describe(const Token& token) {
  if (token.kind == Token::kText) return "text outside of a tag";
  if (token.kind == Token::kString) return "a string";
  if (token.kind == Token::kEnd) return "the end of the template";
  return "'" + token.text + "'";
}

}  // namespace

// A row of the table in expression_parser.h, which has the levels and their order.
struct ExpressionParser::BinaryOperator {
  std::string_view text;
  int level;
  Operator op;
};

ExpressionParser::ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  syntax_.symbols = {{"loop", kLoopSymbol},
                     {"caller", kCallerSymbol},
                     {"varargs", kVarargsSymbol},
                     {"kwargs", kKwargsSymbol},
                     {"(captured)", kCapturedSymbol}};
}

DepthLevel ExpressionParser::Enter() { return DepthLevel(depth_, kMaxDepth, Current().offset); }

// Stays at kEnd, so that Current() always exists.
const Token& ExpressionParser::Take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::Skip(std::string_view text) {
  if (!Is(text)) return false;
  Take();
  return true;
}

void ExpressionParser::Expect(std::string_view text) {
  if (!Skip(text)) FailUnexpected(fmt::format("'{}'", text));
}

std::string ExpressionParser::TakeName() {
  if (Current().kind != Token::kName) FailUnexpected("a name");
  return Take().text;
}

void ExpressionParser::FailUnexpected(std::string_view expected) const {
  FailAt(Current().offset, "expected {}, found {}", expected, Describe(Current()));
}

// Each name is one number in the whole template, so that the interpreter compares numbers.
Symbol ExpressionParser::Intern(const std::string& name) {
  const auto next = static_cast<Symbol>(syntax_.symbols.size());
  const Symbol symbol = syntax_.symbols.emplace(name, next).first->second;
  mentioned_.caller |= symbol == kCallerSymbol;
  mentioned_.varargs |= symbol == kVarargsSymbol;
  mentioned_.kwargs |= symbol == kKwargsSymbol;
  return symbol;
}

ExpressionPtr ExpressionParser::Variable(const std::string& name, std::size_t offset) {
  ExpressionPtr variable = Make(Expression::kVariable, offset);
  variable->symbol = Intern(name);
  variable->name = name;
  return variable;
}

// A chain such as 1 + 1 + 1 ... makes a deep tree without deep recursion of the parser. Its height
// is limited, since the interpreter and the destructor recurse over it.
void ExpressionParser::AddItem(Expression& node, ExpressionPtr item) const {
  if (item != nullptr) node.height = std::max(node.height, item->height + 1);
  if (node.height > kMaxHeight) FailAt(node.offset, "nested too deeply (limit {})", kMaxHeight);
  node.items.push_back(std::move(item));
}

// value if condition else other, from the right: a if b else (c if d else e). A missing `other` is
// undefined.
ExpressionPtr ExpressionParser::ParseExpression() {
  const DepthLevel level = Enter();
  ExpressionPtr value = ParseOperators(/*loosest=*/1);
  while (Is("if")) {
    ExpressionPtr choice = Make(Expression::kConditional, Take().offset, std::move(value));
    AddItem(*choice, ParseOperators(/*loosest=*/1));
    AddItem(*choice, Skip("else") ? ParseExpression() : nullptr);
    value = std::move(choice);
  }
  return value;
}

const ExpressionParser::BinaryOperator* ExpressionParser::FindOperator() const {
  static constexpr BinaryOperator kBinaryOperators[] = {
      {"or", 1, Operator::kOr},
      {"and", 2, Operator::kAnd},
      {"==", kCompareLevel, Operator::kEqual},
      {"!=", kCompareLevel, Operator::kNotEqual},
      {"<", kCompareLevel, Operator::kLess},
      {"<=", kCompareLevel, Operator::kLessEqual},
      {">", kCompareLevel, Operator::kGreater},
      {">=", kCompareLevel, Operator::kGreaterEqual},
      {"in", kCompareLevel, Operator::kIn},
      {"not", kCompareLevel, Operator::kNotIn},  // followed by "in"
      {"+", 5, Operator::kAdd},
      {"-", 5, Operator::kSubtract},
      {"~", 6, Operator::kConcatenate},
      {"*", 7, Operator::kMultiply},
      {"/", 7, Operator::kDivide},
      {"//", 7, Operator::kFloorDivide},
      {"%", 7, Operator::kModulo},
      {"**", 8, Operator::kPower},
  };
  for (const BinaryOperator& known : kBinaryOperators) {
    if (Is(known.text) && (known.text != "not" || IsToken(Next(), "in"))) return &known;
  }
  return nullptr;
}

// Precedence climbing: takes the operators of level `loosest` and tighter. The right side of an
// operator takes the tighter ones alone, so that equal ones group from the left:
//   1 - 2 - 3 * 4   ->   ((1 - 2) - (3 * 4))
ExpressionPtr ExpressionParser::ParseOperators(int loosest) {
  ExpressionPtr left;
  if (loosest <= kNotLevel && Is("not")) {
    const DepthLevel level = Enter();
    const std::size_t offset = Take().offset;
    left = Make(Expression::kNot, offset, ParseOperators(kNotLevel));
  } else {
    left = ParseUnary();
  }
  for (;;) {
    const BinaryOperator* op = FindOperator();
    if (op == nullptr || op->level < loosest) return left;
    if (op->level == kCompareLevel) {
      left = ParseCompare(std::move(left));
      continue;
    }
    left = Make(Expression::kBinary, Take().offset, std::move(left));
    left->operators.push_back(op->op);
    AddItem(*left, ParseOperators(op->level + 1));
  }
}

// All comparisons that follow each other, as one node, whose operands are evaluated once:
//   1 < x < 3   ->   kCompare  items 1, x, 3  operators <, <
ExpressionPtr ExpressionParser::ParseCompare(ExpressionPtr left) {
  ExpressionPtr chain = Make(Expression::kCompare, Current().offset, std::move(left));
  for (;;) {
    const BinaryOperator* op = FindOperator();
    if (op == nullptr || op->level != kCompareLevel) return chain;
    if (op->op == Operator::kNotIn) Take();
    Take();
    chain->operators.push_back(op->op);
    AddItem(*chain, ParseOperators(kCompareLevel + 1));
  }
}

// Filters and tests bind to the operand with its sign: -1 | abs is 1.
ExpressionPtr ExpressionParser::ParseUnary() {
  ExpressionPtr operand = ParseOperand();
  for (;;) {
    if (Is("|")) {
      operand = ParseFilters(std::move(operand));
    } else if (Is("is")) {
      operand = ParseTest(std::move(operand));
    } else if (Is("(")) {
      operand = ParsePostfix(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseOperand() {
  if (!Is("-") && !Is("+")) return ParsePostfix(ParsePrimary());
  const DepthLevel level = Enter();
  const Token& sign = Take();
  const auto kind = sign.text == "-" ? Expression::kNegative : Expression::kPositive;
  return ParsePostfix(Make(kind, sign.offset, ParseOperand()));
}

// A number, or a string; strings that follow each other are joined.
ExpressionPtr ExpressionParser::ParseLiteral() {
  const Token& token = Current();
  ExpressionPtr literal = Make(Expression::kLiteral, token.offset);
  if (token.kind == Token::kString) {
    std::string text;
    while (Current().kind == Token::kString) text += Take().text;
    literal->value = Text{std::make_shared<const std::string>(std::move(text))};
    return literal;
  }
  Take();
  if (token.kind == Token::kFloat) {
    literal->value = std::strtod(token.text.c_str(), nullptr);
    return literal;
  }
  std::int64_t value = 0;
  const char* end = token.text.data() + token.text.size();
  if (std::from_chars(token.text.data(), end, value).ec != std::errc()) {
    FailAt(token.offset, "the number {} is too large", token.text);
  }
  literal->value = value;
  return literal;
}

// The items of [ ] or { }; a comma may follow the last.
ExpressionPtr ExpressionParser::ParseItems(Expression::Kind kind, std::string_view close) {
  ExpressionPtr node = Make(kind, Take().offset);
  while (!Skip(close)) {
    if (!node->items.empty()) {
      Expect(",");
      if (Skip(close)) break;
    }
    AddItem(*node, ParseExpression());
    if (kind != Expression::kDict) continue;
    Expect(":");
    AddItem(*node, ParseExpression());
  }
  return node;
}

// Jinja knows true, false and none with a small first letter and, as Python, with a capital one.
ExpressionPtr ExpressionParser::ParsePrimary() {
  const Token& token = Current();
  if (Is("[")) return ParseItems(Expression::kList, "]");
  if (Is("{")) return ParseItems(Expression::kDict, "}");
  if (Skip("(")) {
    ExpressionPtr inner = Is(")") ? Make(Expression::kTuple, token.offset) : ParseTuple();
    Expect(")");
    return inner;
  }
  if (token.kind == Token::kString || token.kind == Token::kInteger ||
      token.kind == Token::kFloat) {
    return ParseLiteral();
  }
  if (token.kind != Token::kName) FailUnexpected("an expression");
  const std::string name = TakeName();
  const bool is_true = name == "true" || name == "True";
  const bool is_none = name == "none" || name == "None";
  if (!is_true && !is_none && name != "false" && name != "False") {
    return Variable(name, token.offset);
  }
  ExpressionPtr literal = Make(Expression::kLiteral, token.offset);
  literal->value = is_none ? Value(None()) : Value(is_true);
  return literal;
}

// Brackets are not needed: {{ 1, 2 }}, {% for x in 1, 2 %}.
// A comma makes the tuple: (1) is 1, (1,) is a tuple.
ExpressionPtr ExpressionParser::ParseTuple(bool is_iterable) {
  const auto parse = [&] { return is_iterable ? ParseOperators(1) : ParseExpression(); };
  const auto at_end = [&] { return Is("}}") || Is("%}") || Is(")"); };
  const std::size_t offset = Current().offset;
  ExpressionPtr first = parse();
  if (!Is(",")) return first;
  ExpressionPtr tuple = Make(Expression::kTuple, offset, std::move(first));
  while (Skip(",") && !at_end()) AddItem(*tuple, parse());
  return tuple;
}

// Calls and subscripts in the order in which they are written: x.a[0](1).b
ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr operand) {
  for (;;) {
    if (Is(".") || Is("[")) {
      operand = ParseSubscript(std::move(operand));
    } else if (Is("(")) {
      operand = Make(Expression::kCall, Current().offset, std::move(operand));
      ParseArguments(*operand);
    } else {
      return operand;
    }
  }
}

// x.name, x.0, x[key], x[begin:end:step]. x.name and x['name'] differ in whether a method or an
// element counts first, so they are different nodes.
ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr operand) {
  const Token& token = Take();
  ExpressionPtr node = Make(Expression::kItem, token.offset, std::move(operand));
  if (token.text == ".") {
    if (Current().kind == Token::kInteger) {
      AddItem(*node, ParseLiteral());
    } else {
      node->kind = Expression::kAttribute;
      node->name = TakeName();
    }
    return node;
  }
  AddItem(*node, Is(":") ? nullptr : ParseExpression());
  while (node->items.size() < 4 && Skip(":")) {
    node->kind = Expression::kSlice;
    AddItem(*node, Is(":") || Is("]") ? nullptr : ParseExpression());
  }
  Expect("]");
  if (node->kind == Expression::kSlice) node->items.resize(4);
  return node;
}

// Adds the arguments behind the item that `call` has already: positional ones, then named ones.
void ExpressionParser::ParseArguments(Expression& call) {
  Expect("(");
  for (bool first = true; !Skip(")"); first = false) {
    if (!first) {
      Expect(",");
      if (Skip(")")) break;
    }
    const std::size_t offset = Current().offset;
    if (Current().kind == Token::kName && IsToken(Next(), "=")) {
      call.keywords.push_back(TakeName());
      Take();
      AddItem(call, ParseExpression());
    } else if (!call.keywords.empty()) {
      FailUnexpected("a named argument");
    } else if (Is("**")) {
      FailAt(offset, "'**' before an argument is not supported");
    } else if (Skip("*")) {
      AddItem(call, Make(Expression::kSpread, offset, ParseExpression()));
    } else {
      AddItem(call, ParseExpression());
    }
  }
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr operand) {
  while (Skip("|")) operand = ParseFilterAt(std::move(operand));
  return operand;
}

ExpressionPtr ExpressionParser::ParseFilterAt(ExpressionPtr operand) {
  ExpressionPtr filter = Make(Expression::kFilter, Current().offset, std::move(operand));
  filter->name = TakeName();
  if (Is("(")) ParseArguments(*filter);
  return filter;
}

// An argument without brackets may follow the name, x is in [1, 2], unless an operator does.
ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr operand) {
  const std::size_t offset = Take().offset;
  const bool negated = Skip("not");
  ExpressionPtr test = Make(Expression::kTest, Current().offset, std::move(operand));
  test->name = TakeName();
  if (Is("is")) FailAt(Current().offset, "two tests cannot follow each other");
  const Token::Kind kind = Current().kind;
  const bool is_end = Is("else") || Is("or") || Is("and") || Is("if");
  const bool is_operand = kind == Token::kName || kind == Token::kString ||
                          kind == Token::kInteger || kind == Token::kFloat || Is("[") || Is("{");
  if (Is("(")) {
    ParseArguments(*test);
  } else if (is_operand && !is_end) {
    AddItem(*test, ParsePostfix(ParsePrimary()));
  }
  return negated ? Make(Expression::kNot, offset, std::move(test)) : std::move(test);
}

}  // namespace qlora::jinja
