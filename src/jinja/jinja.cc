// The stages of a template, each in a file of its name:
//
//   text --lexer--> tokens --statement_parser, expression_parser--> syntax_tree      once
//   syntax_tree, variables --statement_interpreter, expression_interpreter--> text   each Render
//
// Values of a rendering: value, operations (arithmetic, comparison, containers, value_text,
// tojson). Names that a template calls: text_filters, list_filters, methods, is_operator,
// global_functions. Limits of a rendering: work_budget.
#include "jinja/jinja.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "jinja/failure.h"
#include "jinja/interpreter.h"
#include "jinja/lexer.h"
#include "jinja/python_str.h"
#include "jinja/statement_parser.h"

namespace qlora {

struct JinjaTemplate::Program {
  std::string name;
  std::string source;
  jinja::Syntax syntax;

  // Throws the Error for a Failure: NAME:LINE:COLUMN: and its message, which may quote a text of
  // the template and is therefore cut.
  [[noreturn]] void Report(const jinja::Failure& failure, std::size_t offset) const {
    constexpr std::int64_t kMaxMessage = 2000;
    const std::string_view before = std::string_view(source).substr(0, offset);
    const auto lines = std::count(before.begin(), before.end(), '\n');
    const std::size_t line_begin = before.rfind('\n') + 1;  // 0 in the first line
    const std::size_t end = jinja::ByteOffset(failure.what, kMaxMessage);
    ThrowInvalidInput(
        "{}:{}:{}: {}{}", name, lines + 1, CountCharacters(before.substr(line_begin)) + 1,
        std::string_view(failure.what).substr(0, end), end < failure.what.size() ? " ..." : "");
  }
};

JinjaTemplate::JinjaTemplate(std::string_view text, std::string name, JinjaLayout layout) {
  auto program = std::make_unique<Program>();
  program->name = std::move(name);
  try {
    program->source = jinja::NormalizeSource(text, layout);
    program->syntax = jinja::Parse(jinja::Tokenize(program->source, layout));
  } catch (const jinja::Failure& failure) {
    program->Report(failure, failure.offset.value_or(0));
  }
  program_ = std::move(program);
}

JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;
JinjaTemplate::~JinjaTemplate() = default;

bool JinjaTemplate::has_generation() const { return program_->syntax.has_generation; }

JinjaOutput JinjaTemplate::Render(std::span<const JinjaVariable> variables,
                                  const JinjaOptions& options) const {
  jinja::Interpreter interpreter(program_->syntax, options);
  try {
    return interpreter.Run(variables);
  } catch (const jinja::Failure& failure) {
    program_->Report(failure, failure.offset.value_or(interpreter.place()));
  }
}

}  // namespace qlora
