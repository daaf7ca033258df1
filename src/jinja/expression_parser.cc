#include "jinja/expression_parser.h"

#include <charconv>
#include <cstdlib>
#include <iterator>

namespace qlora::jinja {
namespace {

constexpr int kMaxDepth = 100;   // brackets and blocks within each other
constexpr int kMaxHeight = 400;  // of an expression's tree

std::string Describe(const Token& token) {
  switch (token.kind) {
    case Token::kText:
    case Token::kOutputBegin:
    case Token::kTagBegin:
      return "text outside of a tag";
    case Token::kOutputEnd:
      return "'}}'";
    case Token::kTagEnd:
      return "'%}'";
    case Token::kString:
      return "a string";
    case Token::kEnd:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

constexpr int kNotLevel = 3;
constexpr int kCompareLevel = 4;

}  // namespace

struct ExpressionParser::BinaryOperator {
  std::string_view text;
  int level;
  Operator op;
};

ExpressionParser::ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  syntax_.symbols = {
      {"loop", kLoopSymbol}, {"caller", kCallerSymbol}, {"(captured)", kCapturedSymbol}};
}

ExpressionParser::Level::Level(ExpressionParser& parser) : parser_(parser) {
  if (parser.depth_ >= kMaxDepth) {
    FailAt(parser.Current().offset, "nested too deeply (limit {})", kMaxDepth);
  }
  ++parser.depth_;
}

Token ExpressionParser::Take() {
  Token token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::SkipOperator(std::string_view text) {
  if (!IsOperator(text)) return false;
  Take();
  return true;
}

bool ExpressionParser::SkipName(std::string_view text) {
  if (!IsName(text)) return false;
  Take();
  return true;
}

void ExpressionParser::ExpectOperator(std::string_view text) {
  if (!SkipOperator(text)) FailUnexpected(fmt::format("'{}'", text));
}

void ExpressionParser::ExpectName(std::string_view text) {
  if (!SkipName(text)) FailUnexpected(fmt::format("'{}'", text));
}

void ExpressionParser::ExpectKind(Token::Kind kind) {
  if (Current().kind != kind) FailUnexpected(Describe({kind, 0, ""}));
  Take();
}

std::string ExpressionParser::TakeName() {
  if (Current().kind != Token::kName) FailUnexpected("a name");
  return Take().text;
}

void ExpressionParser::FailUnexpected(std::string_view expected) const {
  FailAt(Current().offset, "expected {}, found {}", expected, Describe(Current()));
}

Symbol ExpressionParser::Intern(const std::string& name) {
  const auto next = static_cast<Symbol>(syntax_.symbols.size());
  const Symbol symbol = syntax_.symbols.emplace(name, next).first->second;
  uses_caller_ |= symbol == kCallerSymbol;
  return symbol;
}

ExpressionPtr ExpressionParser::Variable(const std::string& name, std::size_t offset) {
  if (name == "varargs" || name == "kwargs") FailAt(offset, "'{}' is not supported", name);
  ExpressionPtr variable = Make(Expression::kVariable, offset);
  variable->symbol = Intern(name);
  variable->name = name;
  return variable;
}

void ExpressionParser::AddItem(Expression& node, ExpressionPtr item) const {
  if (item != nullptr) node.height = std::max(node.height, item->height + 1);
  if (node.height > kMaxHeight) {
    FailAt(node.offset, "the expression is nested too deeply (limit {})", kMaxHeight);
  }
  node.items.push_back(std::move(item));
}

ExpressionPtr ExpressionParser::ParseExpression() {
  const Level level(*this);
  ExpressionPtr value = ParseOperators(/*loosest=*/1);
  while (IsName("if")) {
    ExpressionPtr choice = Make(Expression::kConditional, Take().offset, std::move(value));
    AddItem(*choice, ParseOperators(/*loosest=*/1));
    AddItem(*choice, SkipName("else") ? ParseExpression() : nullptr);
    value = std::move(choice);
  }
  return value;
}

const ExpressionParser::BinaryOperator* ExpressionParser::FindOperator() const {
  static constexpr BinaryOperator kOperators[] = {
      {"or", 1, Operator::kOr},
      {"and", 2, Operator::kAnd},
      {"==", kCompareLevel, Operator::kEqual},
      {"!=", kCompareLevel, Operator::kNotEqual},
      {"<", kCompareLevel, Operator::kLess},
      {"<=", kCompareLevel, Operator::kLessEqual},
      {">", kCompareLevel, Operator::kGreater},
      {">=", kCompareLevel, Operator::kGreaterEqual},
      {"in", kCompareLevel, Operator::kIn},
      {"not in", kCompareLevel, Operator::kNotIn},
      {"+", 5, Operator::kAdd},
      {"-", 5, Operator::kSubtract},
      {"~", 6, Operator::kConcatenate},
      {"*", 7, Operator::kMultiply},
      {"/", 7, Operator::kDivide},
      {"//", 7, Operator::kFloorDivide},
      {"%", 7, Operator::kModulo},
  };
  const Token& token = Current();
  if (token.kind != Token::kOperator && token.kind != Token::kName) return nullptr;
  const bool is_not_in = IsName("not") && Is(Next(), Token::kName, "in");
  const std::string_view text = is_not_in ? "not in" : std::string_view(token.text);
  const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                   [&](const BinaryOperator& o) { return o.text == text; });
  return found == std::end(kOperators) ? nullptr : found;
}

// Precedence climbing: takes the operators of level `loosest` and tighter. The right side of an
// operator takes the tighter ones alone, so that equal ones group from the left:
//   1 - 2 - 3 * 4   ->   ((1 - 2) - (3 * 4))
ExpressionPtr ExpressionParser::ParseOperators(int loosest) {
  ExpressionPtr left;
  if (loosest <= kNotLevel && IsName("not")) {
    const Level level(*this);
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
    ExpressionPtr node = Make(Expression::kBinary, Take().offset, std::move(left));
    node->operators.push_back(op->op);
    AddItem(*node, ParseOperators(op->level + 1));
    left = std::move(node);
  }
}

// All comparisons that follow each other: one chain.
ExpressionPtr ExpressionParser::ParseCompare(ExpressionPtr left) {
  ExpressionPtr node = Make(Expression::kCompare, Current().offset, std::move(left));
  for (;;) {
    const BinaryOperator* op = FindOperator();
    if (op == nullptr || op->level != kCompareLevel) return node;
    if (op->op == Operator::kNotIn) Take();
    Take();
    node->operators.push_back(op->op);
    AddItem(*node, ParseOperators(kCompareLevel + 1));
  }
}

ExpressionPtr ExpressionParser::ParseUnary() {
  ExpressionPtr operand = ParseOperand();
  for (;;) {
    if (IsOperator("|")) {
      operand = ParseFilters(std::move(operand));
    } else if (IsName("is")) {
      operand = ParseTest(std::move(operand));
    } else if (IsOperator("(")) {
      operand = ParsePostfix(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseOperand() {
  if (!IsOperator("-")) return ParsePostfix(ParsePrimary());
  const Level level(*this);
  const std::size_t offset = Take().offset;
  return ParsePostfix(Make(Expression::kNegative, offset, ParseOperand()));
}

ExpressionPtr ExpressionParser::ParseNumber() {
  const Token token = Take();
  ExpressionPtr number = Make(Expression::kLiteral, token.offset);
  if (token.kind == Token::kFloat) {
    number->value = std::strtod(token.text.c_str(), nullptr);
    return number;
  }
  std::int64_t value = 0;
  const char* end = token.text.data() + token.text.size();
  if (std::from_chars(token.text.data(), end, value).ec != std::errc()) {
    FailAt(token.offset, "the number {} is too large", token.text);
  }
  number->value = value;
  return number;
}

// Strings that follow each other are one.
ExpressionPtr ExpressionParser::ParseString() {
  ExpressionPtr literal = Make(Expression::kLiteral, Current().offset);
  std::string text;
  while (Current().kind == Token::kString) text += Take().text;
  literal->value = std::make_shared<const std::string>(std::move(text));
  return literal;
}

ExpressionPtr ExpressionParser::ParseItems(Expression::Kind kind, std::string_view close) {
  ExpressionPtr node = Make(kind, Take().offset);
  while (!SkipOperator(close)) {
    if (!node->items.empty()) {
      ExpectOperator(",");
      if (SkipOperator(close)) break;
    }
    AddItem(*node, ParseExpression());
    if (kind != Expression::kDict) continue;
    ExpectOperator(":");
    AddItem(*node, ParseExpression());
  }
  return node;
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  const Token& token = Current();
  const std::size_t offset = token.offset;
  if (token.kind == Token::kString) return ParseString();
  if (token.kind == Token::kInteger || token.kind == Token::kFloat) return ParseNumber();
  if (IsOperator("[")) return ParseItems(Expression::kList, "]");
  if (IsOperator("{")) return ParseItems(Expression::kDict, "}");
  if (SkipOperator("(")) {
    ExpressionPtr inner = IsOperator(")") ? Make(Expression::kTuple, offset) : ParseTuple();
    ExpectOperator(")");
    return inner;
  }
  if (token.kind != Token::kName) FailUnexpected("an expression");
  const std::string name = TakeName();
  const bool is_true = name == "true" || name == "True";
  const bool is_none = name == "none" || name == "None";
  if (!is_true && !is_none && name != "false" && name != "False") return Variable(name, offset);
  ExpressionPtr literal = Make(Expression::kLiteral, offset);
  literal->value = is_none ? Value(None()) : Value(is_true);
  return literal;
}

bool ExpressionParser::AtTupleEnd() const {
  return Current().kind == Token::kOutputEnd || Current().kind == Token::kTagEnd ||
         IsOperator(")") || IsName("recursive");
}

ExpressionPtr ExpressionParser::ParseTuple(bool is_iterable) {
  const auto parse = [&] { return is_iterable ? ParseOperators(1) : ParseExpression(); };
  const std::size_t offset = Current().offset;
  ExpressionPtr first = parse();
  if (!IsOperator(",")) return first;
  ExpressionPtr tuple = Make(Expression::kTuple, offset, std::move(first));
  while (SkipOperator(",") && !AtTupleEnd()) AddItem(*tuple, parse());
  return tuple;
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr operand) {
  for (;;) {
    if (IsOperator(".") || IsOperator("[")) {
      operand = ParseSubscript(std::move(operand));
    } else if (IsOperator("(")) {
      operand = Make(Expression::kCall, Current().offset, std::move(operand));
      ParseArguments(*operand);
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr operand) {
  const Token token = Take();
  if (token.text == ".") {
    if (Current().kind == Token::kInteger) {
      return Make(Expression::kItem, token.offset, std::move(operand), ParseNumber());
    }
    ExpressionPtr attribute = Make(Expression::kAttribute, token.offset, std::move(operand));
    attribute->name = TakeName();
    return attribute;
  }
  ExpressionPtr node = Make(Expression::kItem, token.offset, std::move(operand));
  AddItem(*node, IsOperator(":") ? nullptr : ParseExpression());
  while (node->items.size() < 4 && SkipOperator(":")) {
    node->kind = Expression::kSlice;
    const bool is_given = !IsOperator(":") && !IsOperator("]");
    AddItem(*node, is_given ? ParseExpression() : nullptr);
  }
  ExpectOperator("]");
  if (node->kind == Expression::kSlice) node->items.resize(4);
  return node;
}

void ExpressionParser::ParseArguments(Expression& call) {
  ExpectOperator("(");
  for (bool first = true; !SkipOperator(")"); first = false) {
    if (!first) {
      ExpectOperator(",");
      if (SkipOperator(")")) break;
    }
    const std::size_t offset = Current().offset;
    const bool is_named = Current().kind == Token::kName && Is(Next(), Token::kOperator, "=");
    if (!is_named && !call.keywords.empty()) FailUnexpected("a named argument");
    if (is_named) {
      call.keywords.push_back(TakeName());
      Take();
      AddItem(call, ParseExpression());
    } else if (SkipOperator("*")) {
      AddItem(call, Make(Expression::kSpread, offset, ParseExpression()));
    } else {
      AddItem(call, ParseExpression());
    }
  }
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr operand) {
  while (SkipOperator("|")) operand = ParseFilterAt(std::move(operand));
  return operand;
}

ExpressionPtr ExpressionParser::ParseFilterAt(ExpressionPtr operand) {
  ExpressionPtr filter = Make(Expression::kFilter, Current().offset, std::move(operand));
  filter->name = TakeName();
  if (IsOperator("(")) ParseArguments(*filter);
  return filter;
}

// An argument without brackets begins behind the name: x is divisibleby 3, x is in [1, 2].
ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr operand) {
  const std::size_t offset = Take().offset;
  const bool negated = SkipName("not");
  ExpressionPtr test = Make(Expression::kTest, Current().offset, std::move(operand));
  test->name = TakeName();
  if (IsName("is")) FailAt(Current().offset, "two tests cannot follow each other");
  const Token::Kind kind = Current().kind;
  const bool is_word =
      kind == Token::kName && !IsName("else") && !IsName("or") && !IsName("and") && !IsName("if");
  if (IsOperator("(")) {
    ParseArguments(*test);
  } else if (is_word || kind == Token::kString || kind == Token::kInteger ||
             kind == Token::kFloat || IsOperator("[") || IsOperator("{")) {
    AddItem(*test, ParsePostfix(ParsePrimary()));
  }
  return negated ? Make(Expression::kNot, offset, std::move(test)) : std::move(test);
}

}  // namespace qlora::jinja
