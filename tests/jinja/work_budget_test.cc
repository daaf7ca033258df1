// Hostile templates end with an error: deep ones before the stack does, endless ones by their
// budget.
#include <random>

#include "jinja/jinja_test_util.h"

namespace qlora {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTooMuch = "the template does too much work";

std::string RepeatText(std::string_view text, int count) {
  std::string repeated;
  for (int i = 0; i < count; ++i) repeated += text;
  return repeated;
}

TEST(WorkBudgetTest, DeepTemplatesAreRefused) {
  constexpr int kDeep = 20'000;
  for (const char* open : {"(", "[", "{1:", "not ", "-", "+", "x(", "x[", "x if ", "1 + (", "~("}) {
    Refuse("{{ " + RepeatText(open, kDeep) + "1", "chat_template:1:");
  }
  for (const char* open : {"{% if x %}", "{% for i in x %}", "{% filter upper %}", "{% set x %}",
                           "{% macro m() %}", "{% call m() %}", "{% generation %}", "{% with %}"}) {
    Refuse(RepeatText(open, kDeep), "nested too deeply");
  }
  for (const char* link :
       {"|upper", ".a", "[0]", "()", " + 1", " and 1", " ~ 1", " if 1 else 1", " * 1", " ** 1"}) {
    Refuse("{{ x" + RepeatText(link, kDeep) + " }}", "nested too deeply");
  }
  EXPECT_EQ(RenderText("{{ 1" + RepeatText(" == 1", kDeep) + " }}").text, "True");
  Refuse("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply");
  Refuse(
      "{% macro m(a) %}{{ caller() }}{% endmacro %}"
      "{% macro r() %}{% call m(1) %}{{ r() }}{% endcall %}{% endmacro %}{{ r() }}",
      "nested too deeply");
}

TEST(WorkBudgetTest, LongTemplatesAreRefused) {
  Refuse(RepeatText(" ", (1 << 22) + 1),
         "chat_template:1:1: the template has more than 4194304 bytes");
}

// Values that are deep, or that hold one list many times.
TEST(WorkBudgetTest, DeepValuesAreRefused) {
  const std::string nest =
      "{% set ns = namespace(t=[]) %}{% for i in range(9999) %}{% set ns.t = [ns.t] %}{% endfor %}";
  const std::string twice =
      "{% set ns = namespace(t=[]) %}{% for i in range(99) %}{% set ns.t = [ns.t, ns.t] %}"
      "{% endfor %}";
  for (const char* use : {"{{ ns.t }}", "{{ ns.t | tojson }}", "{{ ns.t == [ns.t][0] }}",
                          "{{ ns.t in [ns.t] }}", "{{ ns.t ~ 'x' }}"}) {
    Refuse(nest + use, "nested too deeply");
    Refuse(twice + use, kTooMuch);
  }
}

TEST(WorkBudgetTest, LoopsAreRefused) {
  const std::string loop = "{% for i in range(100000) %}";
  const auto nested = [&](const std::string& body) {
    return RepeatText(loop, 4) + body + RepeatText("{% endfor %}", 4);
  };
  for (const char* body :
       {"", "x", "{{ i }}", "{% set x = i %}", "{% if i and i == 2 %}{% endif %}",
        "{% macro m() %}{% endmacro %}", "{% generation %}x{% endgeneration %}",
        "{{ strftime_now('%c') }}", "{{ 1.5 | round(300) }}"}) {
    Refuse(nested(body), kTooMuch);
  }
  Refuse(loop + "{% for j in range(100000) if false %}{% endfor %}{% endfor %}", kTooMuch);
  Refuse("{% macro a() %}x{% endmacro %}{% macro b() %}" + RepeatText("{{ a() }}", 99) +
             "{% endmacro %}{% macro c() %}" + RepeatText("{{ b() }}", 99) +
             "{% endmacro %}{% macro d() %}" + RepeatText("{{ c() }}", 99) +
             "{% endmacro %}{{ d() }}",
         kTooMuch);
  Refuse(loop + "0123456789{% endfor %}", "output is too large", {}, {.output = 1000});
}

// Each of these makes much text or many elements out of little.
TEST(WorkBudgetTest, GrowthIsRefused) {
  const std::string big = "{% set t = 'a' * 1000000 %}";
  for (const char* use :
       {"{{ 'x' * 1000000000000 }}",
        "{{ ('x' * 9) * 9223372036854775807 }}",
        "{{ t.replace('a', t) }}",
        "{{ t | replace('a', t) }}",
        "{{ range(99999) | join(t) }}",
        "{{ t.join(range(99999) | map('string')) }}",
        "{{ ('{}' * 99).format(t, t, t, t, t) }}",
        "{{ '%s%s%s%s%s' % (t, t, t, t, t) }}",
        "{{ ('{0}' * 9999).format(t) }}",
        "{{ [0] * 1000000000000 }}",
        "{{ [0, 1] * 9223372036854775807 }}",
        "{{ t.rsplit('a') }}",
        "{{ t.count('a') * t }}",
        "{{ [1, 2, 3, 4, 5, 6] | tojson(separators=(t, t)) }}",
        "{{ [1, 2, 3, 4] | tojson(indent=t) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ 'a\nb\nc\nd\ne' | indent(t) }}",
        "{{ ' ' | indent(1000000000) }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.rjust(1000000000) }}",
        "{{ '1'.zfill(1000000000) }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ t | list }}",
        "{% for c in t %}{% endfor %}",
        "{{ t.split('a') }}",
        "{{ (t | replace('a', ' a')).split() }}",
        "{{ ('\n' * 1000000).splitlines() }}",
        "{{ t[::-1] }}",
        "{{ t | reverse }}",
        "{% set ns = namespace(t='x') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}"
        "{% endfor %}",
        "{% set ns = namespace(t=[1]) %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}"
        "{% endfor %}"}) {
    SCOPED_TRACE(use);
    const Error error = ErrorOf([&] { RenderText(big + use, {}, {.work = 1 << 22}); });
    EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr(kTooMuch),
                                             testing::HasSubstr("one positional argument")));
  }
  Refuse("{{ range(100001) }}", "range: more than 100000 numbers");
  Refuse("{{ 99999999999999999999 }}", "too large");
  // Python's int() has no value for it.
  Refuse("{{ '1e10000' | float | int }}", "the number inf is too large");
  Refuse("{{ 9 ** 9999 }}", "the result does not fit in 64 bits");
  Refuse("{{ 9.0 ** 9999 }}", "is not a finite number");
}

// Each of these compares or searches much without making anything.
TEST(WorkBudgetTest, SearchesAreRefused) {
  const std::string texts =
      "{% set t = 'a' * 100000 %}{% set p = 'a' * 50000 ~ 'b' %}{% set l = range(20000) | list %}";
  for (const char* use :
       {"{{ t.find(p) }}",
        "{{ p in t }}",
        "{{ t.split(p) | length }}",
        "{{ t.replace(p, '') }}",
        "{{ t.rfind(p) }}",
        "{{ t.count(p) }}",
        "{{ t.rsplit(p) | length }}",
        "{{ t.strip(p) }}",
        "{{ t | trim(p) }}",
        "{{ l | unique | list }}",
        "{% for i in l %}{{ t == t }}{% endfor %}",
        "{% for i in l %}{{ t < t }}{% endfor %}",
        "{% for i in l %}{{ t | length }}{{ t[5] }}{% endfor %}",
        "{% for i in l %}{{ 0 in l }}{% endfor %}",
        "{% for i in l %}{{ t.startswith(t) }}{% endfor %}",
        "{% for i in l %}{{ l == l }}{% endfor %}",
        "{% for i in l %}{{ (l | max) + (l | sum) }}{% endfor %}",
        "{% for i in l %}{{ (l | sort | length) }}{% endfor %}",
        "{% for i in l %}{{ l | select('odd') | list | length }}{% endfor %}",
        "{% for i in l %}{{ l | map('string') | list | length }}{% endfor %}",
        "{% set d = {t ~ 1: 1, t ~ 2: 2} %}{% for i in l %}{{ d[t ~ 3] }}{% endfor %}"}) {
    Refuse(texts + use, kTooMuch);
  }
}

// Many names: none may be looked up in time that grows with their square.
TEST(WorkBudgetTest, ManyNamesAreRefused) {
  std::string sets;
  std::string pairs;
  std::string named;
  for (int i = 0; i < 20'000; ++i) {
    sets += fmt::format("{{% set v{} = 1 %}}", i);
    pairs += fmt::format("'k{}': 1,", i);
    named += fmt::format("k{}=1,", i);
  }
  Refuse(sets, kTooMuch);
  Refuse("{{ {" + pairs + "} }}", kTooMuch);
  Refuse("{{ dict(" + named + ") }}", kTooMuch);
  Refuse("{% macro m(" + named + ") %}{% endmacro %}{{ m(" + named + ") }}", kTooMuch);
  std::string reads;
  for (int i = 0; i < 100'000; ++i) reads += fmt::format("{{{{ v{} }}}}", i);
  EXPECT_EQ(RenderText(reads).text, "");
}

// Damaged templates and random ones made of the language's own words: refused or rendered.
TEST(WorkBudgetTest, RandomTemplatesEnd) {
  constexpr const char* kWords[] = {"{{ ",       " }}",        "{%- ",
                                    "-%}",       "{% ",        " %}",
                                    "{#",        "#}",         "if ",
                                    "else",      "elif ",      "endif",
                                    "for ",      "in ",        "endfor",
                                    "set ",      "endset",     "macro ",
                                    "endmacro",  "call ",      "endcall",
                                    "x",         "m",          "loop",
                                    ".index",    ".a",         "(",
                                    ")",         "[",          "]",
                                    "{",         "}",          ",",
                                    ":",         "=",          "==",
                                    "!=",        "<",          "+",
                                    "-",         "*",          "**",
                                    "/",         "//",         "%",
                                    "~",         "|",          "upper",
                                    "tojson",    "sort",       "join",
                                    "map",       "'s'",        "\"",
                                    "'",         "\\",         "1",
                                    "2.5",       "none",       "true",
                                    "is ",       "not ",       "and ",
                                    "or ",       "defined",    "raw",
                                    "endraw",    "generation", "endgeneration",
                                    "range",     "namespace",  "\n",
                                    " ",         "é",          "\xff",
                                    "break",     "recursive",  "filter ",
                                    "endfilter", "caller",     "[::-1]"};
  const Json variables = Json::parse(R"({"x": [1, {"a": "b"}], "m": "text"})");
  std::mt19937 random(7);
  int rendered = 0;
  for (int i = 0; i < 30'000; ++i) {
    std::string text = i % 2 == 0 ? "{{ " : "{% set x = ";
    for (auto n = random() % 12; n > 0; --n) text += kWords[random() % std::size(kWords)];
    if (random() % 2 == 0) text += i % 2 == 0 ? " }}" : " %}";
    try {
      RenderText(text, variables, {.work = 1 << 20, .output = 1 << 16});
      ++rendered;
    } catch (const Error& error) {
      ASSERT_THAT(error.what(), testing::StartsWith("chat_template:")) << text;
    }
  }
  EXPECT_GT(rendered, 300);
}

}  // namespace
}  // namespace qlora
