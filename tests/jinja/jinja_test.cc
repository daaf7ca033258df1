// Templates: what they give, how errors read, and which bytes generation blocks write.
#include "jinja/jinja.h"

#include <fstream>

#include "jinja/jinja_test_util.h"
#include "test_build.h"

namespace qlora {
namespace {

using Json = nlohmann::ordered_json;

// The expected texts are those of Python's jinja2 3.1, set up as transformers sets it up
// (tests/interop/chat_jinja2.py).
TEST(JinjaTest, RendersAsJinja2) {
  const Json variables = Json::parse(
      R"({"x": 5, "s": "Hello World", "l": [3, 1, 2], "d": {"b": 1, "a": "z"}, "n": null,
          "messages": [{"role": "user", "content": "hi"}]})");
  std::ifstream file(SourceDir() / "tests/jinja/renderings.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Json rendering = Json::parse(line);
    const auto text = rendering.at("template").get<std::string>();
    SCOPED_TRACE(text);
    EXPECT_EQ(RenderText(text, variables).text, rendering.at("text"));
  }
  EXPECT_EQ(count, 87);
}

TEST(JinjaTest, BlanksBeforeABlockLeaveTheFirstLineToo) {
  EXPECT_EQ(RenderText("  {% if true %}x{% endif %}").text, "x");
  EXPECT_EQ(RenderText("\t{# c #}\n  {% set x = 1 %}\n {{ x }}").text, " 1");
}

// The expected texts are those of llama.cpp b12211.
TEST(JinjaTest, RendersAsLlamaCppWhereAsked) {
  const Json variables = Json::parse(
      R"({"state": {"o": {"a": 1, "b": "x"}, "l": ["a", 1, null, true, {"x": "y"}, ["b", 2.5]]},
          "id": "q", "type": "noul", "instructions": "Is it?",
          "options": [{"key": "false", "description": null, "label": "A"},
                      {"key": "true", "description": "yes it is", "label": "B"}],
          "questions": [{"id": "q", "type": "noul", "instructions": "Is it?", "options": [
                      {"key": "false", "description": null, "label": "A"},
                      {"key": "true", "description": "yes it is", "label": "B"}]}]})");
  std::vector<JinjaVariable> list;
  for (const auto& [name, value] : variables.items()) list.push_back({name, &value});
  const std::string before =
      "{% set n = none %}{% set t = true %}{% set l = state.l %}{% set o = state.o %}";
  std::ifstream file(SourceDir() / "tests/jinja/llama_cpp_renderings.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Json rendering = Json::parse(line);
    const auto text = rendering.at("template").get<std::string>();
    SCOPED_TRACE(text);
    const JinjaOptions options = {.limits = {}, .now = {}, .dialect = JinjaDialect::kLlamaCpp};
    EXPECT_EQ(JinjaTemplate(before + text).Render(list, options).text, rendering.at("text"));
  }
  EXPECT_EQ(count, 82);
}

TEST(JinjaTest, ErrorsNameLineAndColumn) {
  Refuse("{{ missing.attribute }}", "chat_template:1:11: 'missing' is undefined");
  Refuse("{{ {}['content'] + 'x' }}", "chat_template:1:18: 'content' is undefined");
  Refuse("é{% frobnicate %}", "chat_template:1:5: ");
  Refuse("\n\n  {{ raise_exception('stop here') }}",
         "chat_template:3:21: the template refuses: stop here");
  Refuse("{% for t in n %}{% endfor %}", "'n' is None and cannot be iterated over",
         Json::parse(R"({"n": null})"));
  Refuse("{{ 1 // 0 }}", "chat_template:1:6: division by zero");
  Refuse("{{ 9223372036854775807 + 1 }}", "chat_template:1:24: the result does not fit in 64 bits");
  Refuse("{% if x %}", "chat_template:1:");
  Refuse("{{ 'open }}", "chat_template:1:4: the string has no end");
  Refuse("{# open", "chat_template:1:1");
  Refuse("{{ 1 is number is string }}", "two tests cannot follow each other");
  Refuse("{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "1:37: ");
  Refuse("{% set x.y = 1 %}", "'x' is not a namespace");
  Refuse("{% for a, b in [[1]] %}{% endfor %}", "1 values cannot be unpacked into 2 names");
}

// A construct that is not supported never renders silently: the error names it.
TEST(JinjaTest, ErrorsNameConstructsThatAreNotSupported) {
  const Json variables = Json::parse(R"({"s": "text", "l": [1], "d": {}})");
  for (const char* tag : {"include", "import", "extends", "block", "do"}) {
    Refuse(fmt::format("a\nb {{% {} x %}}", tag),
           fmt::format("chat_template:2:6: tag '{}' is not supported", tag));
  }
  for (const char* filter :
       {"groupby", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"}) {
    Refuse(fmt::format("a\nb {{{{ l | {} }}}}", filter),
           fmt::format("chat_template:2:10: filter '{}' is not supported; write a template without",
                       filter),
           variables);
  }
  for (const char* method : {"casefold", "encode", "expandtabs", "swapcase", "translate"}) {
    Refuse(fmt::format("{{{{ s.{}(1) }}}}", method),
           fmt::format("chat_template:1:5: method '{}' of str is not supported", method),
           variables);
  }
  Refuse("{{ l.append(2) }}", "method 'append' of list is not supported", variables);
  Refuse("{{ d.update({}) }}", "method 'update' of dict is not supported", variables);
  Refuse("{{ l | from_json }}", "filter 'from_json' is not supported, nor known to Jinja2",
         variables);
  Refuse("{{ s is odder }}", "test 'odder' is not supported, nor known to Jinja2", variables);
  Refuse("{{ cycler(1, 2) }}",
         "function 'cycler' is not supported; write a template without it, "
         "perhaps with loop.cycle");
  Refuse("{{ lipsum() }}", "function 'lipsum' is not supported");
  Refuse("{{ l | truncate }}", "truncate: expected", variables);
  Refuse("{{ s | truncate(2) }}", "truncate: expected a length of 3 or more", variables);
  Refuse("{{ s.center(9, 'ab') }}", "center: expected one character to fill with", variables);
  Refuse("{{ l | slice(0) }}", "slice: 0 slices", variables);
  Refuse("{% for i in l %}{{ loop | attr('index') }}{% endfor %}", "attr: 'loop'", variables);
  Refuse("{{ '%c' % 65 }}", "chat_template:1:9: '%c' is not supported");
  Refuse("{{ '%5' % 1 }}", "'%': the format ends within a conversion");
  Refuse("{{ '%1001d' % 1 }}", "'%': a width in the format is too large (limit 1000)");
  Refuse("{{ '%s %s' % 1 }}", "'%': there are only 1 values");
  Refuse("{{ 'x' % 1 }}", "'%': 1 values for 0 places in the format");
  Refuse("{{ '{:>5}'.format(1) }}", "format: '{:>5}' is not supported");
  Refuse("{{ '{}'.format() }}", "format: there are only 0 arguments for '{}'");
  Refuse("{{ s | replace('', '-') }}", "an empty text to replace is not supported", variables);
  Refuse("{{ s | int(0, 16) }}", "int takes at most 1 arguments, found 2", variables);
  Refuse("{{ d[:1] }}", "'dict' cannot be sliced", variables);
  Refuse("{{ '{'.format() }}", "format: a brace without its partner");
  Refuse("{% for i in l recursive %}{% endfor %}", "'recursive' is not supported");
  Refuse("{% raw %}{{ s }}", "chat_template:1:1: the block 'raw' has no end 'endraw'");
  Refuse("{{ f(**x) }}", "chat_template:1:6: '**' before an argument is not supported");
  Refuse("{{ 0 ** -1 }}", "0 ** -1 is not a finite number");
  Refuse("{{ 0x1F }}", "found 'x1F'");
  Refuse("{{ '\\N{DASH}' }}", "escape sequence '\\N' is not supported");
  Refuse("{% macro m(a) %}{% endmacro %}{% call m(1) %}{% endcall %}",
         "m has no argument 'caller'");
  Refuse("{{ s | replace('t', 'u', 1, 2) }}", "replace takes at most 3 arguments", variables);
  Refuse("{{ s | trim(side=1) }}", "trim has no argument 'side'", variables);
}

TEST(JinjaTest, LongMessagesOfErrorsAreCut) {
  const Error error = ErrorOf([] { RenderText("{{ raise_exception('é' * 100000) }}"); });
  EXPECT_LT(std::string_view(error.what()).size(), 5000U);
  EXPECT_THAT(error.what(), testing::EndsWith("é ..."));
}

TEST(JinjaTest, MarksWhatGenerationBlocksWrite) {
  const Json variables = {{"messages", {{{"c", "a"}}, {{"c", "bc"}}}}};
  const JinjaOutput output = RenderText(
      "{% for m in messages[0:] %}<{% generation %}{{ m.c }}{% endgeneration %}>{% endfor %}",
      variables);
  EXPECT_EQ(output.text, "<a><bc>");
  ASSERT_EQ(output.generation.size(), 2U);
  EXPECT_EQ(output.generation[1].begin, 4U);
  EXPECT_EQ(output.generation[1].end, 6U);
  EXPECT_EQ(output.generation[1].message, 1U);
  EXPECT_TRUE(RenderText("{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}"
                         "{{ m()[0:1] == 'x' and (m() | tojson) }}")
                  .generation_lost);
}

// A name that JSON repeats, and names that the template does not mention.
TEST(JinjaTest, TheFirstVariableOfANameCounts) {
  const Json one = 1;
  const Json two = 2;
  const JinjaTemplate jinja("{{ a }}{{ range }}");
  const std::vector<JinjaVariable> variables = {
      {"a", &one}, {"a", &two}, {"b", &two}, {"range", &two}};
  EXPECT_EQ(jinja.Render(variables).text, "12");
}

}  // namespace
}  // namespace qlora
