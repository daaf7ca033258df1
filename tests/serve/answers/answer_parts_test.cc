// Answers in the forms of many families, whole and cut at every byte.
#include "serve/answer_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "serve/answers/answer_parts_util.h"
#include "serve/answers/argument_text.h"

namespace qlora {
namespace {

// What chat templates have of each form.
constexpr const char* kHermes = "<tool_call>\n{\"name\": </think>";
constexpr const char* kCoder = "<tool_call><function=x><parameter=y></think>";
constexpr const char* kGlm = "<tool_call><arg_key><arg_value></think>";
constexpr const char* kLlama =
    "<|start_header_id|> <|python_tag|> {\"name\": function name, \"parameters\": dictionary}";
constexpr const char* kMistral = "[TOOL_CALLS]";
constexpr const char* kNewMistral = "[TOOL_CALLS] [ARGS] [CALL_ID] [/THINK]";
constexpr const char* kGemma = "<|tool_call>call:<tool_call|> <|channel>thought";
constexpr const char* kLfm = "<|tool_call_start|> </think>";
constexpr const char* kLfm25 = "List of tools: [";
constexpr const char* kHarmony = "<|start|>assistant<|channel|>analysis<|message|>";
constexpr const char* kDeepSeek = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>```json</think>";
constexpr const char* kDeepSeek31 = "<｜tool▁call▁begin｜> </think>";
constexpr const char* kDsml = "｜DSML｜ 'function_calls>' </think>";
constexpr const char* kMiniMax = "<minimax:tool_call><invoke name= </think>";
constexpr const char* kMiniCpm = "<function name=\"f\"><param name=\"a\"></think>";
constexpr const char* kKimi = "<|tool_calls_section_begin|><|tool_call_argument_begin|>";
constexpr const char* kKimi3 = "<|open|> <|close|> <|sep|>";
constexpr const char* kSolar = "<|think|><|tool_call:begin|><|tool_call:args|>";
constexpr const char* kApertus = "<|tools_prefix|><|inner_prefix|>";
constexpr const char* kCommand = "<|START_ACTION|><|START_THINKING|><|START_RESPONSE|>";
constexpr const char* kGranite = "</think><response><|tool_call|>";
constexpr const char* kFunctionary = ">>>all";
constexpr const char* kGlm4 = "message.metadata 'observation'";
constexpr const char* kApriel = "[BEGIN FINAL RESPONSE]<tool_calls>";

constexpr const char* kTools = R"([{"type": "function", "function": {"name": "f", "parameters": {
  "type": "object", "properties": {
    "text": {"type": "string"}, "maybe": {"type": ["string", "null"]}, "number": {"type": "integer"},
    "list": {"type": "array"}, "kind": {"enum": ["a", "1"]}}}}},
  {"type": "function", "function": {"name": "functions.g"}},
  {"type": "function", "function": {"name": "h.call"}},
  {"type": "function", "function": {"name": "a:1"}}])";

struct Case {
  const char* name;
  const char* form;
  std::string answer;
  std::string expected;
  bool begins_with_thought = false;
  bool reads_calls = true;
};

const std::vector<Case> kCases = {
    {"plain", "", " Just text.\n", " Just text.\n"},
    {"space alone", "", " \n ", " \n "},
    {"nothing", kHermes, "", ""},
    {"marks of no form", "", "<think>a</think><tool_call>b", "<think>a</think><tool_call>b"},

    {"thought", kHermes, "<think>\nHm, 漢\n</think>\n\nFine: é", "‹Hm, 漢›Fine: é"},
    {"thought of the prompt", kHermes, "Hm\n\nso\n</think>\n\nFine", "‹Hm\n\nso›Fine", true},
    {"empty thought", kHermes, "<think>\n\n</think>\n\nFine", "Fine"},
    {"open thought", kHermes, "<think>\nHm </thi", "‹Hm </thi›"},
    {"thought without calls", kHermes, "<think>a</think>b", "‹a›b", false, false},
    {"thinking", "</thinking>", "<thinking>\na</thinking>b", "‹a›b"},
    {"two thoughts", kHermes, "<think>a</think>b<think>c</think>d", "‹a›b‹c›d"},

    {"call", kHermes,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é}\\\"\"}}\n</tool_call>",
     "«f {\"a\": \"é}\\\"\"}»"},
    {"text and calls", kHermes,
     "I look. \n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
     "<tool_call>\n{\"arguments\": {\"b\": [1, {}]}, \"name\": \"g\"}</tool_call>\nDone.",
     "I look.«f {}»«g {\"b\": [1, {}]}»Done."},
    {"calls that nobody asked for", kHermes, "<tool_call>{\"name\": \"f\"}</tool_call>",
     "<tool_call>{\"name\": \"f\"}</tool_call>", false, false},
    {"arguments as text", kHermes,
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\u00e9\\\"}\"}</tool_call>",
     "«f {\"a\": \"é\"}»"},
    {"no arguments", kHermes, "<tool_call>{\"name\": \"f\"}</tool_call>", "«f {}»"},
    {"null arguments", kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
     "«f {}»"},
    {"list of functions", kHermes,
     "<tool_call>\n[{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", "
     "\"arguments\": {\"a\": 1}}}, {\"function\": {\"name\": \"g\", \"arguments\": "
     "{}}}]\n</tool_call>",
     "«f {\"a\": 1}»«g {}»"},
    {"missing brace", kHermes,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>", "«f {\"a\": 1}»"},
    {"call that is none", kHermes, "<tool_call>\nI would call f.\n</tool_call>",
     "<tool_call>\nI would call f.\n</tool_call>"},
    {"object that is none", kHermes, "<tool_call>{\"a\": 1}</tool_call> so",
     "<tool_call>{\"a\": 1}</tool_call> so"},
    {"name that is none", kHermes, "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>"},
    {"call behind one that is none", kHermes,
     "<tool_call>x<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>x«f {}»"},
    {"junk behind a call", kHermes,
     "<tool_call>{\"name\": \"f\", \"arguments\": {}} junk</tool_call>", "«f {}»junk</tool_call>"},
    {"cut in arguments", kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
     "«f {\"a\": \"b»"},
    {"cut in a name", kHermes, "a <tool_call>{\"name\": \"f", "a <tool_call>{\"name\": \"f"},
    {"cut in a mark", kHermes, "a\n<tool_c", "a\n<tool_c"},
    {"cut behind a call", kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n", "«f {}»"},
    {"a list's next call is cut", kHermes,
     "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g", "«f {}», {\"name\": \"g"},

    {"tags", kCoder,
     "<think>\nso\n</think>\n\nI look.\n\n<tool_call>\n<function=f>\n<parameter=text>\n12\n"
     "</parameter>\n<parameter=number>\n3\n</parameter>\n<parameter=list>\n[1, "
     "\"a\"]\n</parameter>\n"
     "<parameter=other>\n{\"k\": null}\n</parameter>\n</function>\n</tool_call>",
     "‹so›I look.«f {\"text\": \"12\", \"number\": 3, \"list\": [1, \"a\"], "
     "\"other\": {\"k\": null}}»"},
    {"text of lines", kCoder,
     "<tool_call>\n<function=f>\n<parameter=text>\n\n a "
     "\"é\"\n</para\n\n</parameter>\n</function>\n"
     "</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
     "«f {\"text\": \"\\n a \\\"é\\\"\\n</para\\n\"}»«g {}»"},
    {"types", kCoder,
     "<tool_call><function=f><parameter=maybe>null</parameter><parameter=kind>1</parameter>"
     "<parameter=number>many</parameter><parameter=list>['a', None]</parameter>"
     "<parameter=x>true</parameter><parameter=y>\"q\"</parameter></function></tool_call>",
     "«f {\"maybe\": null, \"kind\": \"1\", \"number\": \"many\", \"list\": [\"a\", null], "
     "\"x\": true, \"y\": \"\\\"q\\\"\"}»"},
    {"tags without their frame", kCoder,
     "<function=f>\n<parameter=number>\n1\n</parameter>\n</function>\n</tool_call>",
     "«f {\"number\": 1}»"},
    {"JSON in the frame of tags", kCoder, "<tool_call>{\"name\": \"f\"}</tool_call>", "«f {}»"},
    {"function that is none", kCoder, "Write <function=f x> or <function=>",
     "Write <function=f x> or <function=>"},
    {"tags that are cut", kCoder, "<tool_call>\n<function=f>\n<parameter=text>\na </par",
     "«f {\"text\": \"a </par»"},
    {"data that is text", kCoder,
     "<tool_call>\n<function=f>\n<parameter=text>\n<![CDATA[a]]>\n</parameter>\n</function>\n"
     "</tool_call>",
     "«f {\"text\": \"<![CDATA[a]]>\"}»"},
    {"tags that break", kCoder, "<function=f><parameter=number>1</parameter>oops",
     "«f {\"number\": 1}»oops"},
    {"function without an end", kCoder,
     "<tool_call><function=f><parameter=number>1</parameter></tool_call>a", "«f {\"number\": 1}»a"},

    {"keys", kGlm,
     "so</think>I look.<tool_call>f<arg_key>text</arg_key><arg_value>1</arg_value>"
     "<arg_key>number</arg_key>\n<arg_value>2</arg_value>\n</tool_call><tool_call>g\n</"
     "tool_call>",
     "‹so›I look.«f {\"text\": \"1\", \"number\": 2}»«g {}»", true},
    {"attributes", kMiniMax,
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"text\">a\nb</parameter>\n"
     "<parameter name=\"number\">3</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n"
     "</minimax:tool_call>",
     "«f {\"text\": \"a\\nb\", \"number\": 3}»«g {}»"},
    {"types as attributes", kDsml,
     "so</think>x\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"h\">\n"
     "<｜DSML｜parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"b\" string=\"false\">1</｜DSML｜parameter>\n"
     "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "‹so›x«h {\"a\": \"1\", \"b\": 1}»", true},
    {"data", kMiniCpm,
     "<function name=\"h\"><param name=\"a\"><![CDATA[x</param>]]></param>"
     "<param name=\"b\">{'k': None, 'l': (1, True)}</param></function>\n<function "
     "name=\"f\"></function>",
     "«h {\"a\": \"x</param>\", \"b\": {\"k\": null, \"l\": [1, true]}}»«f {}»"},
    {"open and close", kKimi3,
     "so<|close|>think<|sep|><|open|>response<|sep|>x<|close|>response<|sep|><|open|>tools<|sep|>"
     "<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" "
     "type=\"string\"<|sep|>1"
     "<|close|>argument<|sep|><|open|>argument key=\"b\" type=\"number\"<|sep|>1<|close|>argument"
     "<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
     "‹so›x«f {\"a\": \"1\", \"b\": 1}»", true},

    {"JSON alone", kLlama, "{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}",
     "«f {\"a\": \"b\"}»"},
    {"JSON objects", kLlama,
     "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
     "«f {}»«g {}»"},
    {"JSON that calls nothing", kLlama, "{\"name\": \"Ann\", \"age\": 3}\n",
     "{\"name\": \"Ann\", \"age\": 3}\n"},
    {"a list that calls nothing", kLlama, "[1, 2]", "[1, 2]"},
    {"JSON in a text", kLlama, "So: {\"name\": \"f\", \"parameters\": {}}",
     "So: {\"name\": \"f\", \"parameters\": {}}"},
    {"tagged JSON", kLlama, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "«f {}»"},
    {"own tools", kLlama, "<|python_tag|>brave_search.call(query=\"a, b\")",
     "«brave_search {\"query\": \"a, b\"}»"},
    {"a name like its end", kLlama, "<|python_tag|>h.call(a=1)", "«h.call {\"a\": 1}»"},
    {"such a name and the end", kLlama, "<|python_tag|>h.call.call(a=1)", "«h.call {\"a\": 1}»"},
    {"the longest name", kHermes,
     "<tool_call>\n{\"name\": \"" + std::string(256, 'n') + "\", \"arguments\": {}}\n</tool_call>",
     "«" + std::string(256, 'n') + " {}»"},
    {"code", kLlama, "<|python_tag|>print(1)", "<|python_tag|>print(1)"},

    {"list", kMistral,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "«f {\"a\": 1}»«g {}»"},
    {"names and arguments", kNewMistral,
     "[THINK]so[/THINK]x[TOOL_CALLS]f[CALL_ID]123[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}",
     "‹so›x«f {\"a\": 1}»«g {}»"},
    {"the old list in the new form", kNewMistral,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]", "«f {}»"},

    {"Gemma", kGemma,
     "<|channel>thought\nso\n<channel|><|tool_call>call:f{a:<|\"|>b}, "
     "{<|\"|>,c:[1,<|\"|>'<|\"|>],"
     "d:{e:true,f:None}}<tool_call|><|tool_call>call:g{}<tool_call|>x",
     "‹so›«f {\"a\": \"b}, {\", \"c\": [1, \"'\"], \"d\": {\"e\": true, \"f\": null}}»«g {}»x"},
    {"LFM", kLfm,
     "<|tool_call_start|>[f(a='it\\'s (1, 2]', b=[1, None], c={\"d\": True}), "
     "g()]<|tool_call_end|>x",
     "«f {\"a\": \"it's (1, 2]\", \"b\": [1, null], \"c\": {\"d\": true}}»«g {}»x"},
    {"LFM2.5, whose template has tools alone", kLfm25,
     "<|tool_call_start|>[f(a=1)]<|tool_call_end|>x", "«f {\"a\": 1}»x"},
    {"LFM in JSON", kLfm, "<|tool_call_start|>[f(1)]<|tool_call_end|>",
     "<|tool_call_start|>[f(1)]<|tool_call_end|>"},
    {"LFM, cut", kLfm, "<|tool_call_start|>[f(a=1, b='x", "«f {\"a\": 1»"},

    {"channels", kHarmony,
     "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>Fine<|"
     "return|>",
     "‹so›Fine"},
    {"channels with calls", kHarmony,
     "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary<|message|>I "
     "look."
     "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
     "{\"a\": 1}<|call|>",
     "‹so›I look.«f {\"a\": 1}»"},
    {"call before its channel", kHarmony,
     " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}", "«f {\"a\": 1}»"},
    {"channels without calls", kHarmony,
     "<|channel|>commentary to=functions.f<|message|>{}<|call|>", "{}", false, false},
    {"no channel", kHarmony, "Just text", "Just text"},

    {"DeepSeek", kDeepSeek,
     "so</"
     "think>\n\nx<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
     "{\"a\": "
     "1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "‹so›x«f {\"a\": 1}»«g {}»", true},
    {"DeepSeek 3.1", kDeepSeek31,
     "x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
     "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "x«f {\"a\": 1}»«g {}»"},
    {"Kimi", kKimi,
     "x<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>",
     "x«f {\"a\": 1}»"},
    {"Kimi, tools whose names look like more", kKimi,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_call_begin|>functions.a:1:1<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_call_begin|>a:1<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>",
     "«functions.g {}»«a:1 {}»«a:1 {}»"},
    {"Solar", kSolar,
     "<|think|>so<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>1<|tool_call:name|>f"
     "<|tool_call:args|>{\"a\": 1}<|tool_call:end|><|calls|>",
     "‹so›«f {\"a\": 1}»"},
    {"Apertus", kApertus,
     "<|inner_prefix|>so<|inner_suffix|>x<|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": {}}]"
     "<|tools_suffix|>",
     "‹so›x«f {\"a\": 1}»«g {}»"},
    {"Command", kCommand,
     "so<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
     "\"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
     "‹so›«f {\"a\": 1}»", true},
    {"Command's text", kCommand, "<|START_RESPONSE|>x<|END_RESPONSE|>", "x"},
    {"Granite", kGranite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
     "«f {\"a\": 1}»"},
    {"Granite's text", kGranite, "<think>so</think><response>x</response>", "‹so›x"},
    {"Functionary", kFunctionary, "all\nx>>>f\n{\"a\": 1}>>>g\n{}", "x«f {\"a\": 1}»«g {}»"},
    {"Functionary's text", kFunctionary, "all\nx", "x", false, false},
    {"GLM-4", kGlm4, "f\n{\"a\": 1}<|assistant|>g\n{}", "«f {\"a\": 1}»«g {}»"},
    {"GLM-4's text", kGlm4, "\nf is a function.", "f is a function."},
    {"Apriel", kApriel,
     "so\n[BEGIN FINAL RESPONSE]\nx\n<tool_calls>[{\"name\": \"f\", \"arguments\": "
     "{}}]</tool_calls>",
     "‹so›x«f {}»", true},
};

std::shared_ptr<const ArgumentTypes> Types() {
  return std::make_shared<const ArgumentTypes>(kTools);
}

AnswerParts PartsOf(const Case& c) {
  return AnswerParts(FindAnswerForm(c.form), c.begins_with_thought, c.reads_calls, Types());
}

bool IsWhole(std::string_view text) {
  if (!text.empty() && ContinuesCharacter(text[0])) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t bytes = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    if (byte >= 0xC0 && i + bytes > text.size()) return false;
  }
  return true;
}

TEST(AnswerParts, AnswersOfAllFormsAreCutIntoTheirParts) {
  for (const Case& c : kCases) {
    EXPECT_EQ(ShowParts(PartsOfPieces(PartsOf(c), {c.answer})), c.expected) << c.name;
  }
}

TEST(AnswerParts, WhereAnAnswerIsCutChangesNothing) {
  for (const Case& c : kCases) {
    const std::string_view answer = c.answer;
    for (std::size_t at = 0; at <= answer.size(); ++at) {
      ASSERT_EQ(ShowParts(PartsOfPieces(PartsOf(c), {answer.substr(0, at), answer.substr(at)})),
                c.expected)
          << c.name << ", cut at " << at;
    }
    std::vector<std::string_view> bytes;
    for (std::size_t at = 0; at < answer.size(); ++at) bytes.push_back(answer.substr(at, 1));
    const std::vector<AnswerPart> parts = PartsOfPieces(PartsOf(c), bytes);
    EXPECT_EQ(ShowParts(parts), c.expected) << c.name << ", byte by byte";
    for (const AnswerPart& part : parts) EXPECT_TRUE(IsWhole(part.text)) << c.name;
  }
}

TEST(AnswerParts, WhereverAnAnswerEndsItsCallsEnd) {
  for (const Case& c : kCases) {
    for (std::size_t at = 0; at <= c.answer.size(); ++at) {
      const std::string answer = c.answer.substr(0, at);
      std::int64_t begun = 0;
      std::int64_t ended = 0;
      for (const AnswerPart& part : PartsOfPieces(PartsOf(c), {answer})) {
        begun += part.kind == AnswerPart::Kind::kCallBegin;
        ended += part.kind == AnswerPart::Kind::kCallEnd;
        const bool is_call = part.kind >= AnswerPart::Kind::kCallBegin;
        ASSERT_EQ(part.call, is_call ? begun - 1 : 0) << c.name;
      }
      ASSERT_EQ(begun, ended) << c.name << ", ended at " << at;
    }
  }
}

TEST(AnswerParts, OfOneCallNothingComesBehind) {
  for (const Case& c : kCases) {
    std::vector<std::string_view> bytes;
    for (std::size_t at = 0; at < c.answer.size(); ++at) {
      bytes.push_back(std::string_view(c.answer).substr(at, 1));
    }
    const std::string_view expected = c.expected;
    constexpr std::string_view kEnd = "»";
    const std::size_t end = expected.find(kEnd);
    for (const auto& pieces : {std::vector<std::string_view>{c.answer}, bytes}) {
      AnswerParts parts(FindAnswerForm(c.form), c.begins_with_thought, c.reads_calls, Types(),
                        /*only_one=*/true);
      EXPECT_EQ(ShowParts(PartsOfPieces(std::move(parts), pieces)),
                expected.substr(0, end == expected.npos ? end : end + kEnd.size()))
          << c.name;
    }
  }
}

// Bytes that are left out, doubled, moved or foreign, and names around the longest.
TEST(AnswerParts, AnswersThatAreNoneAreReadAlikeHoweverTheyCome) {
  std::mt19937_64 random(7);
  const auto below = [&random](std::size_t count) { return random() % count; };
  for (const Case& c : kCases) {
    if (c.answer.empty()) continue;
    for (int i = 0; i < 100; ++i) {
      std::string answer = c.answer;
      for (std::size_t change = below(4); change < 3; ++change) {
        const std::size_t at = below(answer.size());
        const std::size_t size = 1 + below(8);
        const std::string part = c.answer.substr(below(c.answer.size()), 1 + below(12));
        if (below(2) == 0) answer.erase(at, size);
        if (below(2) == 0 || answer.empty()) answer.insert(std::min(at, answer.size()), part);
      }
      if (i % 2 == 0) answer.insert(below(answer.size()), 200 + below(64), 'a');
      const std::string_view view = answer;
      const std::string whole = ShowParts(PartsOfPieces(PartsOf(c), {view}));
      const std::size_t at = below(answer.size());
      ASSERT_EQ(ShowParts(PartsOfPieces(PartsOf(c), {view.substr(0, at), view.substr(at)})), whole)
          << c.name << ": " << answer << ", cut at " << at;
      std::vector<std::string_view> bytes;
      for (std::size_t b = 0; b < view.size(); ++b) bytes.push_back(view.substr(b, 1));
      ASSERT_EQ(ShowParts(PartsOfPieces(PartsOf(c), bytes)), whole) << c.name << ": " << answer;
    }
  }
}

TEST(AnswerParts, ArgumentsLeaveAsTheyCome) {
  AnswerParts json(FindAnswerForm(kHermes), false, true);
  EXPECT_EQ(ShowParts(json.Add("x <tool_call>{\"name\": \"f\", ")), "x");
  EXPECT_EQ(ShowParts(json.Add("\"arguments\": {\"ci")), "«f {\"ci");
  EXPECT_EQ(ShowParts(json.Add("ty\": \"\xE6\xBC")), "ty\": \"");
  EXPECT_EQ(ShowParts(json.Add("\xA2")), "漢");

  AnswerParts tags(FindAnswerForm(kCoder), false, true, Types());
  EXPECT_EQ(ShowParts(tags.Add("<tool_call><function=f><parameter=text>\n")), "«f {\"text\": ");
  EXPECT_EQ(ShowParts(tags.Add("a \"b\" ")), "\"a \\\"b\\\" ");
  EXPECT_EQ(ShowParts(tags.Add("\n</para")), "");
  EXPECT_EQ(ShowParts(tags.Add("meter><parameter=number>1")), "\", \"number\": ");
  EXPECT_EQ(ShowParts(tags.Add("2</parameter></function>")), "12}»");
}

// A piece of an answer, and what of it leaves at once.
using Pieces = std::vector<std::pair<std::string, std::string>>;

// How much of its arguments each kind of call keeps back: JSON leaves byte for byte, a text between
// tags likewise, any other value of a tag and each literal once it is whole.
TEST(AnswerParts, EachKindOfCallSendsWhatIsCertain) {
  const std::vector<std::pair<const char*, Pieces>> forms = {
      // kNamed.
      {kNewMistral,
       {{"[TOOL_CALLS]f[AR", ""},
        {"GS]{\"a\": \"x", "«f {\"a\": \"x"},
        {" y\", ", " y\", "},
        {"\"b\": 1}", "\"b\": 1}»"}}},
      {kDeepSeek31,
       {{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{", "«f {"},
        {"\"a\": [1", "\"a\": [1"},
        {", 2]}", ", 2]}»"}}},
      {kFunctionary, {{"f\n{\"a\"", "«f {\"a\""}, {": 1}", ": 1}»"}}},
      // Channels.
      {kHarmony,
       {{"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a", "«f {\"a"},
        {"\": 1", "\": 1"},
        {"}<|call|>", "}»"}}},
      // kJson.
      {kLlama, {{"{\"name\": \"f\", \"parameters\": {\"a\"", "«f {\"a\""}, {": 1}}", ": 1}»"}}},
      {kMistral,
       {{"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a", "«f {\"a"},
        {"\": 1}}]", "\": 1}»"}}},
      // kTagged.
      {kGlm,
       {{"<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a", "«f {\"text\": \"a"},
        {" \"b\"", " \\\"b\\\""},
        {"</arg_value>\n<arg_key>list</arg_key><arg_value>[1", "\", \"list\": "},
        {", 2]", ""},
        {"</arg_value>", "[1, 2]"},
        {"</tool_call>", "}»"}}},
      {kDsml,
       {{"<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
         "string=\"true\">x",
         "«f {\"a\": \"x"},
        {"y", "y"},
        {"</｜DSML｜parameter></｜DSML｜invoke>", "\"}»"}}},
      // kLiteral.
      {kLfm,
       {{"<|tool_call_start|>[f(text='a", ""},
        {" b', ", "«f {\"text\": \"a b\""},
        {"number=1", ""},
        {"2)]", ", \"number\": 12}»"}}},
      {kGemma,
       {{"<|tool_call>call:f{text:<|\"|>a", ""},
        {" b<|\"|>", ""},
        {",number:1", "«f {\"text\": \"a b\""},
        {"}<tool_call|>", ", \"number\": 1}»"}}},
      {"<|python_tag|>", {{"<|python_tag|>f.call(text=\"a", ""}, {"\")", "«f {\"text\": \"a\"}»"}}},
  };
  for (const auto& [form, pieces] : forms) {
    AnswerParts parts(FindAnswerForm(form), false, true, Types());
    std::string before;
    for (const auto& [piece, shown] : pieces) {
      EXPECT_EQ(ShowParts(parts.Add(piece)), shown) << before << " | " << piece;
      before += piece;
    }
    EXPECT_EQ(ShowParts(parts.Finish()), "") << before;
  }
}

TEST(AnswerParts, AFormKnowsWhetherAPromptEndsInAThought) {
  EXPECT_TRUE(EndsInThought(*FindAnswerForm(kHermes), "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(
      EndsInThought(*FindAnswerForm(kHermes), "<think> is a word.<|im_start|>assistant\n"));
  EXPECT_FALSE(EndsInThought(*FindAnswerForm(kHermes), "<think>\n\n</think>\n\n"));
  EXPECT_FALSE(EndsInThought(*FindAnswerForm(""), "<think>\n"));
  EXPECT_TRUE(EndsInThought(*FindAnswerForm(kHarmony), "assistant<|channel|>analysis<|message|>"));
  EXPECT_FALSE(HasMarks(*FindAnswerForm("{{ messages }}")));
  EXPECT_TRUE(HasMarks(*FindAnswerForm(kMistral)));
}

}  // namespace
}  // namespace qlora
