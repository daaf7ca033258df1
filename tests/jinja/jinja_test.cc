#include "jinja/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "io/test_util.h"

namespace qlora {
namespace {

using Json = nlohmann::ordered_json;

JinjaOutput RenderText(std::string_view text, const Json& variables = Json::object(),
                       const JinjaLimits& limits = {}) {
  std::tm now = {};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 12;
  now.tm_min = 34;
  now.tm_sec = 56;
  std::mktime(&now);
  std::vector<JinjaVariable> list;
  for (const auto& [name, value] : variables.items()) list.push_back({name, &value});
  return JinjaTemplate(text).Render(list, {.limits = limits, .now = now});
}

void Refuse(std::string_view text, const std::string& part, const Json& variables = Json::object(),
            const JinjaLimits& limits = {.work = 1 << 22}) {
  SCOPED_TRACE(text.substr(0, 80));
  ExpectRefused([&] { RenderText(text, variables, limits); }, part);
}

struct Rendering {
  const char* text;
  const char* expected;  // by Python's jinja2 3.1, set up as transformers does
};

constexpr Rendering kRenderings[] = {
    {R"J({{ x / 2 }} {{ x // 2 }} {{ -x // 2 }} {{ -x % 3 }} {{ 7 - 2 - 1 }})J",
     R"J(2.5 2 -3 1 4)J"},
    {R"J({{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ not x == 5 }} {{ n is none }} {{ missing is defined }})J",
     R"J(True False False True False)J"},
    {R"J({{ 'a' ~ 1 ~ none ~ true }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ (1,) }} {{ {'a': [1, 'b']} }})J",
     R"J(a1NoneTrue ababab [1, 2] (1,) {'a': [1, 'b']})J"},
    {R"J({{ l | sort | join('-') }} {{ l | first }} {{ l | last }} {{ l[::-1] }} {{ l[1:] }} {{ s[-5:] }} {{ l | length }})J",
     R"J(1-2-3 3 2 [2, 1, 3] [1, 2] World 3)J"},
    {R"J({{ d | dictsort }} {{ d.items() | list }} {{ d.get('q', 'none') }} {{ 'b' in d }} {{ d['a'] }} {{ d.zz | default('dd') }})J",
     R"J([('a', 'z'), ('b', 1)] [('b', 1), ('a', 'z')] none True z dd)J"},
    {R"J({{ s.split(' ') }} {{ s | upper }} {{ s.lower().title() }} {{ s | replace('l', 'L') }} {{ s.startswith('He') }} {{ '  x '.strip() }}|)J",
     R"J(['Hello', 'World'] HELLO WORLD Hello World HeLLo WorLd True x|)J"},
    {R"J({{ d | tojson }} {{ l | tojson(indent=2) }} {{ 'é"<>&' | tojson }} {{ 1.0 | tojson }} {{ 1e20 }} {{ 0.1 + 0.2 }})J",
     R"J({"b": 1, "a": "z"} [
  3,
  1,
  2
] "é\"<>&" 1.0 1e+20 0.30000000000000004)J"},
    {R"J({%- set ns = namespace(count=0) -%}{%- for i in l if i > 1 -%}{%- set ns.count = ns.count + i -%}{{ loop.index }}{{ loop.last }} {% endfor -%}{{ ns.count }})J",
     R"J(1False 2True 5)J"},
    {R"J({% for i in [] %}x{% else %}empty{% endfor %}{% for a, b in d.items() %}{{ a }}={{ b }};{% endfor %})J",
     R"J(emptyb=1;a=z;)J"},
    {R"J({% macro m(a, b='B') %}[{{ a }}{{ b }}{{ caller() if caller }}]{% endmacro %}{{ m('A') }}{{ m('A', b=2) }}{% call m(1) %}in{% endcall %})J",
     R"J([AB][A2][1Bin])J"},
    {R"J({% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %})J",
     R"J(0134)J"},
    {R"J(a
  {% if true %}
  b
  {% endif %}
c {# gone #} d
{{- ' tight ' -}}
e)J",
     R"J(a
  b
c  d tight e)J"},
    {R"J({% raw %}{{ not this }}{% endraw %}{% set t %}block{{ x }}{% endset %}{{ t }}{% filter upper %}f{% endfilter %}{% with q = 3 %}{{ q }}{% endwith %})J",
     R"J({{ not this }}block5F3)J"},
    {R"J({{ l | map('string') | join(',') }} {{ [{'k': 1}, {'k': 2}] | selectattr('k', 'gt', 1) | map(attribute='k') | list }} {{ l | select('odd') | list }})J",
     R"J(3,1,2 [2] [3, 1])J"},
    {R"J({{ 'yes' if x else 'no' }}{{ 'yes' if n }}{{ x if x is number and x is not string }} {{ '%d-%s' | format(3, 'q') }} {{ '{}:{}'.format(1, 'r') }})J",
     R"J(yes5 3-q 1:r)J"},
    {R"J({{ strftime_now('%d %B %Y, %a %H:%M') }} {{ [1, 2] is sequence }} {{ d is mapping }} {{ "\u00e9\n\x41" }} {{ 'a\\b' }})J",
     R"J(26 July 2024, Fri 12:34 True True é
A a\b)J"},
    {R"J({{ ''.__class__ }})J", R"J()J"},
    {R"J({{ s[0] }}{{ s[99] }}{{ l[7] }}|{{ d.b }}{{ d['nope'] }}|{{ true and 'x' or 'y' }}{{ 3 in l }}{{ 'ell' in s }})J",
     R"J(H|1|xTrueTrue)J"},
    {R"J({% set a, b = 1, 2 %}{{ b }}{{ a }}{% if a == 1 and not b == 1 %}ok{% elif a %}no{% else %}never{% endif %}{{ [1, [2, (3, none, true)]] }})J",
     R"J(21ok[1, [2, (3, None, True)]])J"},
};

TEST(JinjaTest, RendersAsJinja2) {
  const Json variables = Json::parse(
      R"({"x": 5, "s": "Hello World", "l": [3, 1, 2], "d": {"b": 1, "a": "z"}, "n": null})");
  for (const Rendering& r : kRenderings) {
    SCOPED_TRACE(r.text);
    EXPECT_EQ(RenderText(r.text, variables).text, r.expected);
  }
}

TEST(JinjaTest, ErrorsNameLineAndColumn) {
  Refuse("{{ missing.attribute }}", "chat_template:1:");
  Refuse("a\nb {{ x | nosuch }}", "chat_template:2:");
  Refuse("é{% frobnicate %}", "chat_template:1:5: ");
  Refuse("{% include 'file' %}", "chat_template:1:4: ");
  Refuse("{% import 'file' as f %}", "chat_template:1:4: ");
  Refuse("{% extends 'file' %}", "chat_template:1:4: ");
  Refuse("\n\n  {{ raise_exception('stop here') }}",
         "chat_template:3:21: the template refuses: stop here");
  Refuse("{{ 1 // 0 }}", "chat_template:1:");
  Refuse("{% if x %}", "chat_template:1:");
  Refuse("{{ 'open }}", "chat_template:1:");
  Refuse("{# open", "chat_template:1:1");
  Refuse("{{ [1].append(2) }}", "'append' of list is not supported");
  Refuse("{{ {}.update({}) }}", "'update' of dict is not supported");
  Refuse("{{ range(*x) }}", "'*'");
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
  EXPECT_TRUE(
      RenderText("{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}")
          .generation_lost);
}

// Deep, wide and endless templates end with an error instead of the process.
TEST(JinjaTest, HostileTemplatesAreRefused) {
  const auto repeat = [](std::string_view text, std::size_t count) {
    std::string repeated;
    for (std::size_t i = 0; i < count; ++i) repeated += text;
    return repeated;
  };
  constexpr std::size_t kDeep = 200'000;
  for (const char* open : {"(", "[", "{1:", "not ", "-", "+", "x(", "x[", "x if ", "1 + (", "~("}) {
    Refuse("{{ " + repeat(open, kDeep) + "1", "chat_template:1:");
  }
  for (const char* open : {"{% if x %}", "{% for i in x %}", "{% filter upper %}", "{% set x %}",
                           "{% macro m() %}", "{% call m() %}", "{% generation %}", "{% with %}"}) {
    Refuse(repeat(open, kDeep), "chat_template:1:");
  }
  for (const char* link : {"|upper", ".a", "[0]", "()", " + 1", " and 1", " ~ 1", " == 1",
                           " is defined", " if 1 else 1"}) {
    const std::string text = "{{ x" + repeat(link, kDeep) + " }}";
    try {
      RenderText(text);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("chat_template:1:"));
    }
  }
  Refuse("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "chat_template:1:");
  Refuse(
      "{% macro m(a) %}{{ caller() }}{% endmacro %}"
      "{% macro r() %}{% call m(1) %}{{ r() }}{% endcall %}{% endmacro %}{{ r() }}",
      "chat_template:1:");
  Refuse("{{ range(100001) }}", "range");
  Refuse("{{ 'x' * 1000000000000 }}", "chat_template:1:");
  Refuse("{{ [0] * 1000000000000 }}", "chat_template:1:");
  Refuse("{{ 9 ** 9999 }}", "chat_template:1:6");
  Refuse("{{ '%1000000000d' | format(1) }}", "chat_template:1:");
  Refuse("{{ '{:1000000000}'.format(1) }}", "chat_template:1:");
  Refuse("{{ ' ' | indent(1000000000) }}{{ 'a\nb' | indent(1000000000) }}", "chat_template:1:");
  Refuse("{{ [1] | tojson(indent=1000000000) }}", "chat_template:1:");
  Refuse("{{ 'x'.center(1000000000) }}", "chat_template:1:");
  Refuse(
      "{% set ns = namespace(t='x') %}{% for i in range(99) %}"
      "{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
      "chat_template:1:");
  Refuse(
      "{% set ns = namespace(t=[]) %}{% for i in range(99) %}"
      "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t }}",
      "chat_template:1:");
  Refuse(
      "{% set ns = namespace(t=0) %}{% for i in range(9999) %}"
      "{% set ns.t = [ns.t] %}{% endfor %}{{ ns.t == ns.t }}{{ ns.t }}",
      "chat_template:1:");
  const std::string loop = "{% for i in range(100000) %}";
  Refuse(repeat(loop, 5) + "x" + repeat("{% endfor %}", 5), "chat_template:1:", {},
         {.work = 1 << 22});
  Refuse(loop + "0123456789{% endfor %}", "output is too large", {}, {.output = 1000});
}

// Damaged templates and random ones made of the language's own words: refused or rendered.
TEST(JinjaTest, RandomTemplatesEnd) {
  constexpr const char* kWords[] = {"{{ ",      " }}",        "{%- ",
                                    "-%}",      "{% ",        " %}",
                                    "{#",       "#}",         "if ",
                                    "else",     "elif ",      "endif",
                                    "for ",     "in ",        "endfor",
                                    "set ",     "endset",     "macro ",
                                    "endmacro", "call ",      "endcall",
                                    "x",        "m",          "loop",
                                    ".index",   ".a",         "(",
                                    ")",        "[",          "]",
                                    "{",        "}",          ",",
                                    ":",        "=",          "==",
                                    "!=",       "<",          "+",
                                    "-",        "*",          "**",
                                    "/",        "//",         "%",
                                    "~",        "|",          "upper",
                                    "tojson",   "sort",       "join",
                                    "map",      "'s'",        "\"",
                                    "'",        "\\",         "1",
                                    "2.5",      "none",       "true",
                                    "is ",      "not ",       "and ",
                                    "or ",      "defined",    "raw",
                                    "endraw",   "generation", "endgeneration",
                                    "range",    "namespace",  "\n",
                                    " ",        "é",          "\xff",
                                    "break",    "recursive"};
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
