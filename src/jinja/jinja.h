// Jinja templates, rendered as Hugging Face transformers renders chat templates: Jinja2 3.1 with
// trim_blocks, lstrip_blocks, loop controls, {% generation %}, and tojson as Python's json.dumps.
// Sandboxed: a template sees its variables and the clock, and its work is bounded.
//
// Any construct that is not listed here is an error that names the construct:
//   tags       if, for (with if, else, break, continue), set, with, macro, call, filter, raw,
//              generation
//   operators  or and not == != < <= > >= in is + - ~ * / // % ** [] [::] . () and x if y else z
//   filters    abs capitalize count d default dictsort first float format indent int items join
//              last length list lower map max min reject rejectattr replace reverse round safe
//              select selectattr sort string sum title tojson trim unique upper, and
//              regex_replace for kStrict
//   tests      boolean callable defined divisibleby even false float integer iterable lower mapping
//              none number odd sameas sequence string true undefined upper, and comparisons:
//              equalto, ne, in, lt, > ...
//   of a text  capitalize count endswith find format index isalnum isalpha isdecimal isdigit
//              islower isnumeric isspace isupper join lower lstrip partition removeprefix
//              removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines
//              startswith strip title upper
//   of a list  count index
//   of a dict  copy get items keys values
//   functions  dict namespace raise_exception range strftime_now
#ifndef QLORA_JINJA_JINJA_H_
#define QLORA_JINJA_JINJA_H_

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

struct JinjaLimits {
  std::size_t work = std::size_t{1} << 28;    // steps and bytes; bounds time and memory
  std::size_t output = std::size_t{1} << 26;  // bytes
  int depth = 500;                            // nested calls, statements and operators
};

// Whose rules make text of values. As in llama.cpp, {{ x }} writes nothing of None and of a dict,
// and of a list its items one behind the other; ~ joins None as nothing; floats have six decimals
// at most; default(x) replaces None, too; the length of a text is in bytes; only ASCII has cases.
// kStrict: as in Python, where an undefined value that is written, walked or tested is an error
// (StrictUndefined), with the filter regex_replace: the templates of evaluation tasks.
enum class JinjaDialect : std::uint8_t { kPython, kLlamaCpp, kStrict };

// The white space of a template. kTrimmed: trim_blocks, lstrip_blocks, and no line end at the end
// of the template; kPlain: Jinja's own rules with keep_trailing_newline.
enum class JinjaLayout : std::uint8_t { kTrimmed, kPlain };

struct JinjaOptions {
  JinjaLimits limits;
  std::optional<std::tm> now;  // the time that strftime_now shows; none: the local time
  JinjaDialect dialect = JinjaDialect::kPython;
};

struct JinjaVariable {
  std::string_view name;
  const nlohmann::ordered_json* value;
};

// Bytes [begin, end) of the output that {% generation %} ... {% endgeneration %} wrote.
struct JinjaSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  // Which element of the variable `messages` the innermost loop around it was at, or a variable
  // holds.
  std::optional<std::size_t> message;
};

struct JinjaOutput {
  std::string text;
  std::vector<JinjaSpan> generation;  // ascending
  // A part of the output holds text of a generation block, and it is not known which: a function
  // has changed the text on its way from a macro or a captured block.
  bool generation_lost = false;
};

class JinjaTemplate {
 public:
  // Errors: InvalidInput "NAME:LINE:COLUMN: ..." when the text is malformed, or uses a construct
  // that is not supported. A filter, test or method that is not is reported where it is reached.
  explicit JinjaTemplate(std::string_view text, std::string name = "chat_template",
                         JinjaLayout layout = JinjaLayout::kTrimmed);
  JinjaTemplate(JinjaTemplate&&) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&&) noexcept;
  ~JinjaTemplate();

  bool has_generation() const;  // whether {% generation %} occurs

  // May be called by several threads. Errors: InvalidInput "NAME:LINE:COLUMN: ..." when rendering
  // fails, when the template raises an exception, or when a limit is exceeded.
  JinjaOutput Render(std::span<const JinjaVariable> variables,
                     const JinjaOptions& options = {}) const;

 private:
  struct Program;
  std::unique_ptr<const Program> program_;
};

}  // namespace qlora

#endif  // QLORA_JINJA_JINJA_H_
