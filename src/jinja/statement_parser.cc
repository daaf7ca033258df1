#include "jinja/statement_parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "jinja/expression_parser.h"

namespace qlora::jinja {
namespace {

// A statement owns the tokens from its tag to its end tag; a nested block is parsed by ParseBlock,
// which stops at the tag that belongs to the statement around it:
//
//   {% if a %} x {% else %} y {% endif %}
//             [---]        [---]            two calls of ParseBlock
class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Syntax Run() {
    syntax_.body = ParseBlock({});
    return std::move(syntax_);
  }

 private:
  // Parses up to a tag whose name is one of `ends`, which becomes Current(); without ends, to the
  // end.
  Block ParseBlock(std::initializer_list<std::string_view> ends) {
    const DepthLevel level = Enter();
    Block block;
    for (;;) {
      const Token& token = Current();
      if (token.kind == Token::kEnd) {
        if (ends.size() == 0) return block;
        FailUnexpected(fmt::format("'{{% {} %}}'", *(ends.end() - 1)));
      }
      if (token.kind == Token::kText) {
        block.push_back(New(Statement::kText, token.offset));
        block.back().name = Take().text;
      } else if (Skip("{{")) {
        block.push_back(New(Statement::kOutput, token.offset));
        block.back().expressions.push_back(ParseTuple());
        Expect("}}");
      } else {
        Expect("{%");
        if (std::find(ends.begin(), ends.end(), Current().text) != ends.end()) return block;
        block.push_back(ParseTag());
        Expect("%}");
      }
    }
  }

  // The body of a statement, from the end of its tag up to a tag in `ends`.
  Block ParseBody(std::initializer_list<std::string_view> ends) {
    Expect("%}");
    return ParseBlock(ends);
  }

  // The body of a statement without else.
  Block ParseWholeBody(std::string_view end) {
    Block body = ParseBody({end});
    Expect(end);
    return body;
  }

  // The handler of a tag fills in the rest.
  static Statement New(Statement::Kind kind, std::size_t offset) {
    Statement statement;
    statement.kind = kind;
    statement.offset = offset;
    return statement;
  }

  // Tags that need further files (include, import, extends, block) are not in the table, nor is
  // `do`, which transformers does not enable. The lexer handles `raw`.
  Statement ParseTag() {
    using Handler = void (StatementParser::*)(Statement&);
    struct Tag {
      std::string_view name;
      Statement::Kind kind;
      Handler parse;
    };
    static constexpr std::array<Tag, 10> kTags = {{
        {"break", Statement::kBreak, &StatementParser::ParseJump},
        {"call", Statement::kCall, &StatementParser::ParseCall},
        {"continue", Statement::kContinue, &StatementParser::ParseJump},
        {"filter", Statement::kFilter, &StatementParser::ParseFilterBlock},
        {"for", Statement::kFor, &StatementParser::ParseFor},
        {"generation", Statement::kGeneration, &StatementParser::ParseGeneration},
        {"if", Statement::kIf, &StatementParser::ParseIf},
        {"macro", Statement::kMacro, &StatementParser::ParseMacro},
        {"set", Statement::kSet, &StatementParser::ParseSet},
        {"with", Statement::kWith, &StatementParser::ParseWith},
    }};
    const Token& token = Current();
    if (token.kind != Token::kName) FailUnexpected("the name of a tag");
    const auto* tag = std::find_if(kTags.begin(), kTags.end(),
                                   [&](const Tag& known) { return known.name == token.text; });
    if (tag == kTags.end()) {
      const bool is_stray = token.text.starts_with("end") || token.text.starts_with("el");
      FailAt(token.offset, "tag '{}' {}", token.text,
             is_stray ? "closes nothing" : "is not supported");
    }
    Take();
    Statement statement = New(tag->kind, token.offset);
    (this->*tag->parse)(statement);
    return statement;
  }

  // One condition and one block for each branch, and one more block for else.
  void ParseIf(Statement& statement) {
    do {
      statement.expressions.push_back(ParseTuple());
      statement.blocks.push_back(ParseBody({"elif", "else", "endif"}));
    } while (Skip("elif"));
    if (Skip("else")) statement.blocks.push_back(ParseBody({"endif"}));
    Expect("endif");
  }

  // a, or a, b, which takes a sequence apart.
  ExpressionPtr ParseTargets(bool may_be_attribute) {
    const std::size_t offset = Current().offset;
    ExpressionPtr first = ParseTarget(may_be_attribute);
    if (!Is(",")) return first;
    ExpressionPtr tuple = Make(Expression::kTuple, offset, std::move(first));
    while (Skip(",") && (Current().kind == Token::kName || Is("("))) {
      AddItem(*tuple, ParseTarget(may_be_attribute));
    }
    return tuple;
  }

  // One name; `loop` is set by the interpreter alone, and true, none ... are not names.
  ExpressionPtr ParseTarget(bool may_be_attribute) {
    const DepthLevel level = Enter();
    const std::size_t offset = Current().offset;
    if (Skip("(")) {
      ExpressionPtr inner = ParseTargets(may_be_attribute);
      Expect(")");
      return inner;
    }
    ExpressionPtr target = ParsePrimary();
    if (target->kind != Expression::kVariable || target->symbol == kLoopSymbol) {
      FailAt(offset, "expected the name of a variable that can be set");
    }
    if (!may_be_attribute || !Skip(".")) return target;
    ExpressionPtr attribute = Make(Expression::kAttribute, offset, std::move(target));
    attribute->name = TakeName();
    return attribute;
  }

  void ParseFor(Statement& statement) {
    statement.target = ParseTargets(/*may_be_attribute=*/false);
    Expect("in");
    statement.expressions.push_back(ParseTuple(/*is_iterable=*/true));
    statement.expressions.push_back(Skip("if") ? ParseExpression() : nullptr);
    if (Is("recursive")) FailAt(Current().offset, "'recursive' is not supported");
    ++loops_;
    statement.blocks.push_back(ParseBody({"else", "endfor"}));
    --loops_;
    if (Skip("else")) statement.blocks.push_back(ParseBody({"endfor"}));
    Expect("endfor");
  }

  // {% set x = 1 %}, or {% set x %} ... {% endset %} with the text of a block.
  void ParseSet(Statement& statement) {
    statement.target = ParseTargets(/*may_be_attribute=*/true);
    if (Skip("=")) {
      statement.expressions.push_back(ParseTuple());
      return;
    }
    statement.kind = Statement::kSetBlock;
    statement.expressions.push_back(ParseFilters(Captured()));
    statement.blocks.push_back(ParseWholeBody("endset"));
  }

  void ParseFilterBlock(Statement& statement) {
    statement.expressions.push_back(ParseFilters(ParseFilterAt(Captured())));
    statement.blocks.push_back(ParseWholeBody("endfilter"));
  }

  // `with a = x, b = y` sets the tuple (a, b) to (x, y), since Jinja evaluates every value outside
  // of the new scope.
  void ParseWith(Statement& statement) {
    const std::size_t offset = Current().offset;
    statement.target = Make(Expression::kTuple, offset);
    ExpressionPtr values = Make(Expression::kTuple, offset);
    while (!Is("%}")) {
      if (!values->items.empty()) Expect(",");
      AddItem(*statement.target, ParseTarget(/*may_be_attribute=*/false));
      Expect("=");
      AddItem(*values, ParseExpression());
    }
    statement.expressions.push_back(std::move(values));
    statement.blocks.push_back(ParseWholeBody("endwith"));
  }

  // The text that a block writes, as the operand of its filters.
  ExpressionPtr Captured() {
    ExpressionPtr captured = Make(Expression::kVariable, Current().offset);
    captured->symbol = kCapturedSymbol;
    return captured;
  }

  void ParseParameters(Macro& macro) {
    Expect("(");
    while (!Skip(")")) {
      if (!macro.parameters.empty()) {
        Expect(",");
        if (Skip(")")) break;
      }
      macro.parameter_names.push_back(TakeName());
      macro.parameters.push_back(Intern(macro.parameter_names.back()));
      if (Skip("=")) {
        macro.defaults.push_back(ParseExpression());
      } else if (!macro.defaults.empty()) {
        FailUnexpected("'=' and a default, as the parameter before has one");
      }
    }
  }

  // Jumps do not leave a macro, and a macro inside another macro has a separate caller.
  void ParseMacroBody(Macro& macro, std::string_view end) {
    const MacroNames outer = std::exchange(mentioned_, {});
    const int outer_loops = std::exchange(loops_, 0);
    macro.body = ParseWholeBody(end);
    macro.mentioned = std::exchange(mentioned_, outer);
    loops_ = outer_loops;
  }

  // A macro is the value of a variable, so it can be passed on as an argument.
  void ParseMacro(Statement& statement) {
    const std::size_t offset = Current().offset;
    statement.macro = std::make_unique<Macro>();
    statement.macro->name = TakeName();
    statement.target = Variable(statement.macro->name, offset);
    ParseParameters(*statement.macro);
    ParseMacroBody(*statement.macro, "endmacro");
  }

  void ParseCall(Statement& statement) {
    statement.macro = std::make_unique<Macro>();
    statement.macro->name = "caller";
    if (Is("(")) ParseParameters(*statement.macro);
    ExpressionPtr call = ParseExpression();
    if (call->kind != Expression::kCall) FailAt(call->offset, "expected the call of a macro");
    statement.expressions.push_back(std::move(call));
    ParseMacroBody(*statement.macro, "endcall");
  }

  // Jumps do not leave the block, so that its text has an end.
  void ParseGeneration(Statement& statement) {
    syntax_.has_generation = true;
    const int outer_loops = std::exchange(loops_, 0);
    statement.blocks.push_back(ParseWholeBody("endgeneration"));
    loops_ = outer_loops;
  }

  void ParseJump(Statement& statement) {
    if (loops_ == 0) FailAt(statement.offset, "break and continue are possible only in a loop");
  }

  int loops_ = 0;  // around the current place, within the macro or the generation block
};

}  // namespace

Syntax Parse(std::vector<Token> tokens) { return StatementParser(std::move(tokens)).Run(); }

}  // namespace qlora::jinja
