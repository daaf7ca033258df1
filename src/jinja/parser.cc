// The grammar of statements: {% ... %}.
#include "jinja/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

namespace qlora::jinja {
namespace {

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Syntax Run() {
    syntax_.body = ParseBlock({});
    return std::move(syntax_);
  }

 private:
  using Handler = Statement (StatementParser::*)();
  struct Tag {
    std::string_view name;
    Handler handler;
  };

  // Up to a tag whose name is one of `ends`, which becomes Current(); without ends, to the end.
  Block ParseBlock(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Block block;
    for (;;) {
      const Token& token = Current();
      const std::size_t offset = token.offset;
      if (token.kind == Token::kEnd) {
        if (ends.size() == 0) return block;
        FailUnexpected(fmt::format("'{{% {} %}}'", *(ends.end() - 1)));
      }
      if (token.kind == Token::kText) {
        Statement text = New(Statement::kText, offset);
        text.name = Take().text;
        block.push_back(std::move(text));
      } else if (token.kind == Token::kOutputBegin) {
        Take();
        Statement output = New(Statement::kOutput, offset);
        output.expressions.push_back(ParseTuple());
        ExpectKind(Token::kOutputEnd);
        block.push_back(std::move(output));
      } else {
        ExpectKind(Token::kTagBegin);
        if (std::find(ends.begin(), ends.end(), Current().text) != ends.end()) return block;
        block.push_back(ParseTag());
        ExpectKind(Token::kTagEnd);
      }
    }
  }

  // The body of a statement, from the end of its tag up to a tag in `ends`.
  Block ParseBody(std::initializer_list<std::string_view> ends) {
    ExpectKind(Token::kTagEnd);
    return ParseBlock(ends);
  }

  static Statement New(Statement::Kind kind, std::size_t offset) {
    Statement statement;
    statement.kind = kind;
    statement.offset = offset;
    return statement;
  }

  Statement ParseTag() {
    static constexpr std::array<Tag, 10> kTags = {{
        {"break", &StatementParser::ParseBreak},
        {"call", &StatementParser::ParseCall},
        {"continue", &StatementParser::ParseContinue},
        {"filter", &StatementParser::ParseFilterBlock},
        {"for", &StatementParser::ParseFor},
        {"generation", &StatementParser::ParseGeneration},
        {"if", &StatementParser::ParseIf},
        {"macro", &StatementParser::ParseMacro},
        {"set", &StatementParser::ParseSet},
        {"with", &StatementParser::ParseWith},
    }};
    const Token token = Current();
    if (token.kind != Token::kName) FailUnexpected("the name of a tag");
    const auto tag = std::find_if(kTags.begin(), kTags.end(),
                                  [&](const Tag& known) { return known.name == token.text; });
    if (tag == kTags.end()) {
      const bool stray = token.text.starts_with("end") || token.text.starts_with("el");
      FailAt(token.offset, "tag '{}' {}", token.text,
             stray ? "closes nothing" : "is not supported");
    }
    Take();
    Statement statement = (this->*tag->handler)();
    statement.offset = token.offset;
    return statement;
  }

  Statement ParseIf() {
    Statement statement = New(Statement::kIf, 0);
    do {
      statement.expressions.push_back(ParseTuple());
      statement.blocks.push_back(ParseBody({"elif", "else", "endif"}));
    } while (SkipName("elif"));
    if (SkipName("else")) statement.blocks.push_back(ParseBody({"endif"}));
    ExpectName("endif");
    return statement;
  }

  // A name, a namespace's attribute, or a tuple of targets.
  ExpressionPtr ParseTarget(bool may_be_attribute) {
    const std::size_t offset = Current().offset;
    std::vector<ExpressionPtr> items;
    bool is_tuple = false;
    do {
      if (!items.empty() && Current().kind != Token::kName && !IsOperator("(")) break;
      items.push_back(ParseOneTarget(may_be_attribute));
    } while (SkipOperator(",") && (is_tuple = true));
    if (!is_tuple) return std::move(items.front());
    return Make(Expression::kTuple, offset, std::move(items));
  }

  ExpressionPtr ParseOneTarget(bool may_be_attribute) {
    const Level level(*this);
    const std::size_t offset = Current().offset;
    if (SkipOperator("(")) {
      ExpressionPtr inner = ParseTarget(may_be_attribute);
      ExpectOperator(")");
      return inner;
    }
    const std::string name = TakeName();
    constexpr std::array<std::string_view, 7> kReserved = {"true",  "false", "none", "True",
                                                           "False", "None",  "loop"};
    if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end()) {
      FailAt(offset, "'{}' cannot be assigned to", name);
    }
    ExpressionPtr target = Variable(name, offset);
    if (!may_be_attribute || !IsOperator(".")) return target;
    Take();
    std::vector<ExpressionPtr> items;
    items.push_back(std::move(target));
    ExpressionPtr attribute = Make(Expression::kAttribute, offset, std::move(items));
    attribute->name = TakeName();
    return attribute;
  }

  Statement ParseFor() {
    Statement statement = New(Statement::kFor, 0);
    statement.target = ParseTarget(/*may_be_attribute=*/false);
    ExpectName("in");
    statement.expressions.push_back(ParseTuple(/*or_only=*/true));
    statement.expressions.push_back(SkipName("if") ? ParseConditional() : nullptr);
    if (IsName("recursive")) FailAt(Current().offset, "'recursive' is not supported");
    ++loops_;
    statement.blocks.push_back(ParseBody({"else", "endfor"}));
    --loops_;
    if (SkipName("else")) statement.blocks.push_back(ParseBody({"endfor"}));
    ExpectName("endfor");
    return statement;
  }

  Statement ParseSet() {
    Statement statement = New(Statement::kSet, 0);
    statement.target = ParseTarget(/*may_be_attribute=*/true);
    if (SkipOperator("=")) {
      statement.expressions.push_back(ParseTuple());
      return statement;
    }
    statement.kind = Statement::kSetBlock;
    ExpressionPtr captured = Make(Expression::kCaptured, Current().offset);
    statement.expressions.push_back(ParseFilters(std::move(captured)));
    statement.blocks.push_back(ParseBody({"endset"}));
    ExpectName("endset");
    return statement;
  }

  Statement ParseFilterBlock() {
    Statement statement = New(Statement::kFilter, 0);
    ExpressionPtr captured = Make(Expression::kCaptured, Current().offset);
    statement.expressions.push_back(ParseFilters(ParseFilterAt(std::move(captured))));
    statement.blocks.push_back(ParseBody({"endfilter"}));
    ExpectName("endfilter");
    return statement;
  }

  Statement ParseWith() {
    Statement statement = New(Statement::kWith, 0);
    std::vector<ExpressionPtr> targets;
    while (Current().kind != Token::kTagEnd) {
      if (!targets.empty()) ExpectOperator(",");
      targets.push_back(ParseOneTarget(/*may_be_attribute=*/false));
      ExpectOperator("=");
      statement.expressions.push_back(ParseConditional());
    }
    statement.target = Make(Expression::kTuple, Current().offset, std::move(targets));
    statement.blocks.push_back(ParseBody({"endwith"}));
    ExpectName("endwith");
    return statement;
  }

  void ParseParameters(Macro& macro) {
    ExpectOperator("(");
    while (!IsOperator(")")) {
      if (!macro.parameters.empty()) {
        ExpectOperator(",");
        if (IsOperator(")")) break;
      }
      const std::string name = TakeName();
      macro.parameters.push_back(Intern(name));
      macro.parameter_names.push_back(name);
      if (SkipOperator("=")) {
        macro.defaults.push_back(ParseConditional());
      } else if (!macro.defaults.empty()) {
        FailUnexpected("'=' and a default, as the parameter before has one");
      }
    }
    ExpectOperator(")");
  }

  // Parses the body and notes what it mentions.
  void ParseMacroBody(Macro& macro, std::string_view end) {
    const bool outer[] = {std::exchange(uses_varargs_, false), std::exchange(uses_kwargs_, false),
                          std::exchange(uses_caller_, false)};
    const int loops = std::exchange(loops_, 0);
    macro.body = ParseBody({end});
    ExpectName(end);
    macro.uses_varargs = std::exchange(uses_varargs_, outer[0]);
    macro.uses_kwargs = std::exchange(uses_kwargs_, outer[1]);
    macro.uses_caller = std::exchange(uses_caller_, outer[2]);
    loops_ = loops;
  }

  Statement ParseMacro() {
    Statement statement = New(Statement::kMacro, 0);
    const std::size_t offset = Current().offset;
    auto macro = std::make_unique<Macro>();
    macro->name = TakeName();
    statement.target = Variable(macro->name, offset);
    ParseParameters(*macro);
    ParseMacroBody(*macro, "endmacro");
    statement.macro = std::move(macro);
    return statement;
  }

  Statement ParseCall() {
    Statement statement = New(Statement::kCall, 0);
    auto macro = std::make_unique<Macro>();
    macro->name = "caller";
    if (IsOperator("(")) ParseParameters(*macro);
    ExpressionPtr call = ParseConditional();
    if (call->kind != Expression::kCall) FailAt(call->offset, "expected the call of a macro");
    statement.expressions.push_back(std::move(call));
    ParseMacroBody(*macro, "endcall");
    statement.macro = std::move(macro);
    return statement;
  }

  Statement ParseGeneration() {
    Statement statement = New(Statement::kGeneration, 0);
    syntax_.has_generation = true;
    const int loops = std::exchange(loops_, 0);
    statement.blocks.push_back(ParseBody({"endgeneration"}));
    ExpectName("endgeneration");
    loops_ = loops;
    return statement;
  }

  Statement ParseBreak() { return ParseJump(Statement::kBreak, "break"); }
  Statement ParseContinue() { return ParseJump(Statement::kContinue, "continue"); }
  Statement ParseJump(Statement::Kind kind, std::string_view name) {
    if (loops_ == 0) FailAt(Current().offset, "'{}' stands outside of a loop", name);
    return New(kind, 0);
  }

  int loops_ = 0;  // around the current place
};

}  // namespace

Syntax Parse(std::vector<Token> tokens) { return StatementParser(std::move(tokens)).Run(); }

}  // namespace qlora::jinja
