// The grammar of expressions.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "jinja/parser.h"

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

std::vector<ExpressionPtr> Both(ExpressionPtr left, ExpressionPtr right) {
  std::vector<ExpressionPtr> items;
  items.push_back(std::move(left));
  items.push_back(std::move(right));
  return items;
}

std::vector<ExpressionPtr> One(ExpressionPtr operand) {
  std::vector<ExpressionPtr> items;
  items.push_back(std::move(operand));
  return items;
}

}  // namespace

ExpressionParser::ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  syntax_.symbols = {"loop", "caller", "varargs", "kwargs"};
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
  const auto known = std::find(syntax_.symbols.begin(), syntax_.symbols.end(), name);
  const auto symbol = static_cast<Symbol>(known - syntax_.symbols.begin());
  if (known == syntax_.symbols.end()) syntax_.symbols.push_back(name);
  uses_varargs_ |= symbol == kVarargsSymbol;
  uses_kwargs_ |= symbol == kKwargsSymbol;
  uses_caller_ |= symbol == kCallerSymbol;
  return symbol;
}

ExpressionPtr ExpressionParser::Variable(const std::string& name, std::size_t offset) {
  ExpressionPtr variable = Make(Expression::kVariable, offset);
  variable->symbol = Intern(name);
  variable->name = name;
  return variable;
}

ExpressionPtr ExpressionParser::Make(Expression::Kind kind, std::size_t offset,
                                     std::vector<ExpressionPtr> items) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->offset = offset;
  for (const ExpressionPtr& item : items) {
    if (item != nullptr) node->height = std::max(node->height, item->height + 1);
  }
  if (node->height > kMaxHeight) {
    FailAt(offset, "the expression is nested too deeply (limit {})", kMaxHeight);
  }
  node->items = std::move(items);
  return node;
}

ExpressionPtr ExpressionParser::ParseConditional() {
  const Level level(*this);
  ExpressionPtr value = ParseOr();
  while (IsName("if")) {
    const std::size_t offset = Take().offset;
    std::vector<ExpressionPtr> items = Both(std::move(value), ParseOr());
    items.push_back(SkipName("else") ? ParseConditional() : nullptr);
    value = Make(Expression::kConditional, offset, std::move(items));
  }
  return value;
}

ExpressionPtr ExpressionParser::ParseOr() {
  ExpressionPtr left = ParseAnd();
  while (IsName("or")) {
    const std::size_t offset = Take().offset;
    left = Make(Expression::kOr, offset, Both(std::move(left), ParseAnd()));
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseAnd() {
  ExpressionPtr left = ParseNot();
  while (IsName("and")) {
    const std::size_t offset = Take().offset;
    left = Make(Expression::kAnd, offset, Both(std::move(left), ParseNot()));
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const Level level(*this);
  const std::size_t offset = Take().offset;
  return Make(Expression::kNot, offset, One(ParseNot()));
}

std::string ExpressionParser::ParseComparison() {
  for (const std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (SkipOperator(op)) return std::string(op);
  }
  if (SkipName("in")) return "in";
  if (IsName("not") && Is(Next(), Token::kName, "in")) {
    Take();
    Take();
    return "not in";
  }
  return "";
}

ExpressionPtr ExpressionParser::ParseCompare() {
  ExpressionPtr left = ParseSum();
  std::vector<ExpressionPtr> links;
  for (;;) {
    const std::size_t offset = Current().offset;
    std::string op = ParseComparison();
    if (op.empty()) break;
    links.push_back(Make(Expression::kCompare, offset, Both(std::move(left), ParseSum())));
    links.back()->name = std::move(op);
  }
  if (links.empty()) return left;
  if (links.size() == 1) return std::move(links.front());
  const std::size_t offset = links.front()->offset;
  return Make(Expression::kChain, offset, std::move(links));
}

ExpressionPtr ExpressionParser::ParseSum() {
  ExpressionPtr left = ParseConcatenation();
  while (IsOperator("+") || IsOperator("-")) {
    const Token token = Take();
    left = Make(Expression::kArithmetic, token.offset, Both(std::move(left), ParseConcatenation()));
    left->op = token.text == "+" ? Operator::kAdd : Operator::kSubtract;
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseConcatenation() {
  const std::size_t offset = Current().offset;
  std::vector<ExpressionPtr> items = One(ParseProduct());
  while (SkipOperator("~")) items.push_back(ParseProduct());
  if (items.size() == 1) return std::move(items.front());
  return Make(Expression::kConcatenate, offset, std::move(items));
}

ExpressionPtr ExpressionParser::ParseProduct() {
  ExpressionPtr left = ParsePower();
  while (IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%")) {
    const Token token = Take();
    left = Make(Expression::kArithmetic, token.offset, Both(std::move(left), ParsePower()));
    left->op = token.text == "*"    ? Operator::kMultiply
               : token.text == "/"  ? Operator::kDivide
               : token.text == "//" ? Operator::kFloorDivide
                                    : Operator::kModulo;
  }
  return left;
}

ExpressionPtr ExpressionParser::ParsePower() {
  ExpressionPtr left = ParseUnary();
  while (IsOperator("**")) {
    const std::size_t offset = Take().offset;
    left = Make(Expression::kArithmetic, offset, Both(std::move(left), ParseUnary()));
    left->op = Operator::kPower;
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  ExpressionPtr operand;
  if (IsOperator("-") || IsOperator("+")) {
    const Level level(*this);
    const Token token = Take();
    operand = Make(token.text == "-" ? Expression::kNegative : Expression::kPositive, token.offset,
                   One(ParseUnary(/*with_filters=*/false)));
  } else {
    operand = ParsePrimary();
  }
  operand = ParsePostfix(std::move(operand));
  while (with_filters) {
    if (IsOperator("|")) {
      operand = ParseFilters(std::move(operand));
    } else if (IsName("is")) {
      operand = ParseTest(std::move(operand));
    } else if (IsOperator("(")) {
      operand = ParsePostfix(std::move(operand));
    } else {
      break;
    }
  }
  return operand;
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

ExpressionPtr ExpressionParser::ParseText() {
  ExpressionPtr literal = Make(Expression::kLiteral, Current().offset);
  std::string text;
  while (Current().kind == Token::kString) text += Take().text;
  literal->value = std::make_shared<const std::string>(std::move(text));
  return literal;
}

ExpressionPtr ExpressionParser::ParseItems(Expression::Kind kind, std::string_view close) {
  const std::size_t offset = Take().offset;
  std::vector<ExpressionPtr> items;
  while (!IsOperator(close)) {
    if (!items.empty()) {
      ExpectOperator(",");
      if (IsOperator(close)) break;
    }
    items.push_back(ParseConditional());
    if (kind == Expression::kDict) {
      ExpectOperator(":");
      items.push_back(ParseConditional());
    }
  }
  ExpectOperator(close);
  return Make(kind, offset, std::move(items));
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  const Token& token = Current();
  const std::size_t offset = token.offset;
  if (token.kind == Token::kName) {
    const std::string name = TakeName();
    const bool is_true = name == "true" || name == "True";
    const bool is_none = name == "none" || name == "None";
    if (!is_true && !is_none && name != "false" && name != "False") return Variable(name, offset);
    ExpressionPtr literal = Make(Expression::kLiteral, offset);
    literal->value = is_none ? Value(None()) : Value(is_true);
    return literal;
  }
  if (token.kind == Token::kString) return ParseText();
  if (token.kind == Token::kInteger || token.kind == Token::kFloat) return ParseNumber();
  if (IsOperator("[")) return ParseItems(Expression::kList, "]");
  if (IsOperator("{")) return ParseItems(Expression::kDict, "}");
  if (SkipOperator("(")) {
    ExpressionPtr inner = ParseTuple(/*or_only=*/false, /*may_be_empty=*/true);
    ExpectOperator(")");
    return inner;
  }
  FailUnexpected("an expression");
}

bool ExpressionParser::AtTupleEnd() const {
  return Current().kind == Token::kOutputEnd || Current().kind == Token::kTagEnd ||
         IsOperator(")") || IsName("recursive");
}

ExpressionPtr ExpressionParser::ParseTuple(bool or_only, bool may_be_empty) {
  const std::size_t offset = Current().offset;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (!AtTupleEnd()) {
    items.push_back(or_only ? ParseOr() : ParseConditional());
    if (!SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && items.size() == 1) return std::move(items.front());
  if (items.empty() && !may_be_empty) FailUnexpected("an expression");
  return Make(Expression::kTuple, offset, std::move(items));
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr operand) {
  for (;;) {
    if (IsOperator(".") || IsOperator("[")) {
      operand = ParseSubscript(std::move(operand));
    } else if (IsOperator("(")) {
      ExpressionPtr call = Make(Expression::kCall, Current().offset, One(std::move(operand)));
      ParseArguments(*call);
      operand = std::move(call);
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr operand) {
  const Token token = Take();
  if (token.text == ".") {
    if (Current().kind == Token::kInteger) {
      return Make(Expression::kItem, token.offset, Both(std::move(operand), ParseNumber()));
    }
    ExpressionPtr attribute = Make(Expression::kAttribute, token.offset, One(std::move(operand)));
    attribute->name = TakeName();
    return attribute;
  }
  std::vector<ExpressionPtr> items = One(std::move(operand));
  bool is_slice = false;
  items.push_back(IsOperator(":") ? nullptr : ParseConditional());
  while (items.size() < 4 && SkipOperator(":")) {
    is_slice = true;
    const bool is_given = !IsOperator(":") && !IsOperator("]");
    items.push_back(is_given ? ParseConditional() : nullptr);
  }
  if (IsOperator(",")) FailAt(Current().offset, "several subscripts are not supported");
  ExpectOperator("]");
  if (is_slice) {
    items.resize(4);
    return Make(Expression::kSlice, token.offset, std::move(items));
  }
  std::string key;
  if (items[1]->kind == Expression::kLiteral && AsText(items[1]->value) != nullptr) {
    key = *AsText(items[1]->value);
  }
  ExpressionPtr item = Make(Expression::kItem, token.offset, std::move(items));
  item->name = std::move(key);
  return item;
}

void ExpressionParser::ParseArguments(Expression& call) {
  ExpectOperator("(");
  const std::size_t first = call.items.size();
  while (!IsOperator(")")) {
    if (call.items.size() > first) {
      ExpectOperator(",");
      if (IsOperator(")")) break;
    }
    if (IsOperator("*") || IsOperator("**")) {
      FailAt(Current().offset, "'{}' before an argument is not supported", Current().text);
    }
    if (Current().kind == Token::kName && Is(Next(), Token::kOperator, "=")) {
      call.keywords.push_back(TakeName());
      Take();
    } else if (!call.keywords.empty()) {
      FailUnexpected("a named argument");
    }
    call.items.push_back(ParseConditional());
    call.height = std::max(call.height, call.items.back()->height + 1);
  }
  ExpectOperator(")");
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr operand) {
  while (SkipOperator("|")) operand = ParseFilterAt(std::move(operand));
  return operand;
}

ExpressionPtr ExpressionParser::ParseFilterAt(ExpressionPtr operand) {
  ExpressionPtr filter = Make(Expression::kFilter, Current().offset, One(std::move(operand)));
  filter->name = TakeName();
  if (IsOperator("(")) ParseArguments(*filter);
  return filter;
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr operand) {
  const std::size_t offset = Take().offset;
  const bool negated = SkipName("not");
  ExpressionPtr test = Make(Expression::kTest, Current().offset, One(std::move(operand)));
  test->name = TakeName();
  const Token::Kind kind = Current().kind;
  const bool is_word =
      kind == Token::kName && !IsName("else") && !IsName("or") && !IsName("and") && !IsName("if");
  if (IsOperator("(")) {
    ParseArguments(*test);
  } else if (is_word || kind == Token::kString || kind == Token::kInteger ||
             kind == Token::kFloat || IsOperator("[") || IsOperator("{")) {
    if (IsName("is")) FailAt(Current().offset, "two tests cannot follow each other");
    const Level level(*this);
    test->items.push_back(ParsePostfix(ParsePrimary()));
    test->height = std::max(test->height, test->items.back()->height + 1);
  }
  return negated ? Make(Expression::kNot, offset, One(std::move(test))) : std::move(test);
}

}  // namespace qlora::jinja
