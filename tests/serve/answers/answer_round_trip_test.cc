// Answers with thoughts and calls, written by the chat templates of many families and read back.
// Templates are those of tests/fixtures, and of ../shared/data/templates where there are any;
// QLORA_TEMPLATE=NAME takes those with this in their names, and prints what they write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "data/data_test_util.h"
#include "prompt/rendered_conversation.h"
#include "qlora/error.h"
#include "serve/answer_parts.h"
#include "serve/answers/answer_parts_util.h"
#include "serve/answers/argument_text.h"

namespace qlora {
namespace {

// What ends turns; servers cut answers there.
const std::vector<std::string>& Ends() {
  static const std::vector<std::string> kEnds = {"</s>",
                                                 "<|im_end|>",
                                                 "<|eot_id|>",
                                                 "<|eom_id|>",
                                                 "<|end_of_text|>",
                                                 "<|end|>",
                                                 "<|return|>",
                                                 "<|call|>",
                                                 "<|eot|>",
                                                 "<|eom|>",
                                                 "<|END_OF_TURN_TOKEN|>",
                                                 "<｜end▁of▁sentence｜>",
                                                 "<end_of_turn>",
                                                 "<turn|>",
                                                 "<|tool_response>",
                                                 "<|message_sep|>",
                                                 "[e~[",
                                                 "<|role_end|>",
                                                 "<|assistant_end|>",
                                                 "<|end_of_msg|>",
                                                 "<｜hy_eos:opensource｜>",
                                                 "<SPECIAL_12>",
                                                 "<sep>",
                                                 "</assistant>",
                                                 "<|calls|>",
                                                 "<|start|>",
                                                 "<|message|>",
                                                 "<|channel|>",
                                                 "<|begin|>",
                                                 "<|content|>",
                                                 "<｜Assistant｜>",
                                                 "<|START_OF_TURN_TOKEN|>"};
  return kEnds;
}

struct Answer {
  std::string thought;
  std::string text;
  OrderedJson calls = OrderedJson::array();  // [{"name", "arguments"}]

  // Keys in the order of the alphabet, which some templates write them in.
  Json json() const { return {{"thought", thought}, {"text", text}, {"calls", calls}}; }
};

class AnswerGenerator {
 public:
  explicit AnswerGenerator(std::uint64_t seed) : random_(seed) {}

  Answer Next() {
    Answer answer;
    if (Chance(2)) answer.thought = Words();
    const std::int64_t calls = Chance(3) ? 0 : 1 + Below(2);
    if (calls == 0 || Chance(2)) answer.text = Words();
    for (std::int64_t i = 0; i < calls; ++i) answer.calls.push_back(Call());
    return answer;
  }

  static OrderedJson Tools() {
    return OrderedJson::parse(R"([
      {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {
        "type": "object", "properties": {
          "city": {"type": "string", "description": "d"}, "days": {"type": "integer", "description": "d"},
          "parts": {"type": "array", "items": {"type": "string"}, "description": "d"},
          "exact": {"type": "boolean", "description": "d"}}, "required": ["city"]}}},
      {"type": "function", "function": {"name": "note", "description": "d", "parameters": {
        "type": "object", "properties": {"text": {"type": "string", "description": "d"}},
        "required": []}}}])");
  }

 private:
  std::int64_t Below(std::int64_t count) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(count));
  }
  bool Chance(std::int64_t of) { return Below(of) == 0; }

  std::string Words() {
    static const std::vector<std::string> kWords = {"I", "look", "é",     "漢字", "😀",    "so,",
                                                    "3", "fine", "\"q\"", "it's", "a\nb", "{x}"};
    std::string text = "Well";
    for (std::int64_t i = Below(6); i > 0; --i) text += " " + kWords[Below(std::ssize(kWords))];
    return text + ".";
  }
  std::string Value() {
    static const std::vector<std::string> kValues = {
        "Brno", "žs字\"x",   "12",      "true", "null",       "a\nb\n\nc", "",
        "[1]",  "x < y & z", "C:\\new", "it's", "{\"a\": 1}", "😀"};
    return kValues[Below(std::ssize(kValues))];
  }
  OrderedJson Call() {
    OrderedJson arguments = OrderedJson::object();
    if (Chance(3)) {
      if (Chance(2)) arguments["text"] = Value();
      return {{"name", "note"}, {"arguments", arguments}};
    }
    arguments["city"] = Value();
    if (Chance(2)) arguments["days"] = Below(10) - 3;
    if (Chance(2)) arguments["parts"] = OrderedJson::array({Value(), "b"});
    if (Chance(2)) arguments["exact"] = Chance(2);
    return {{"name", "get_weather"}, {"arguments", arguments}};
  }

  std::mt19937_64 random_;
};

Answer ReadBack(const std::vector<AnswerPart>& parts) {
  Answer answer;
  std::string arguments;
  for (const AnswerPart& part : parts) {
    switch (part.kind) {
      case AnswerPart::Kind::kThought:
        answer.thought += part.text;
        break;
      case AnswerPart::Kind::kText:
        answer.text += part.text;
        break;
      case AnswerPart::Kind::kCallBegin:
        answer.calls.push_back({{"name", part.text}});
        arguments.clear();
        break;
      case AnswerPart::Kind::kCallArguments:
        arguments += part.text;
        break;
      case AnswerPart::Kind::kCallEnd:
        answer.calls.back()["arguments"] = OrderedJson::parse(arguments, nullptr, false);
    }
  }
  answer.text = Trim(answer.text);
  return answer;
}

std::map<std::string, std::string> Templates() {
  std::map<std::string, std::string> templates;
  const char* chosen = std::getenv("QLORA_TEMPLATE");
  for (const std::filesystem::path& folder :
       {SourceDir() / "tests/fixtures/chat", SourceDir() / "tests/fixtures",
        SharedFolder() / "data/templates"}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const std::string name = file.path().filename().string();
      if (!name.ends_with(".jinja")) continue;
      if (chosen != nullptr && name.find(chosen) == name.npos) continue;
      std::ostringstream text;
      text << std::ifstream(file.path()).rdbuf();
      templates[name] = text.str();
    }
  }
  return templates;
}

// Takes ids of nine characters alone, as Mistral's templates do.
constexpr const char* kShortIds = R"(
{%- for m in messages %}{% for call in m.tool_calls or [] %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{{- '<' ~ call.function.name ~ ' ' ~ call.id ~ '>' }}{% endfor %}
{%- if m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{{- '(' ~ m.tool_call_id ~ ' ' ~ m.content ~ ')' }}{% else %}{{ m.content or '' }}{% endif %}
{%- endfor %})";

class AnswerRoundTrip : public testing::Test {
 protected:
  // What a model would write, and whether it begins within a thought.
  struct Written {
    std::string answer;
    bool begins_with_thought = false;
  };

  // Nothing where the template refuses the conversation.
  std::optional<Written> Write(const std::string& name, const std::string& text,
                               const Answer& answer) {
    OrderedJson message = {{"role", "assistant"}, {"content", answer.text}};
    if (!answer.thought.empty()) message["reasoning_content"] = answer.thought;
    for (const OrderedJson& call : answer.calls) {
      message["tool_calls"].push_back({{"id", "abcdefgh" + std::to_string(ids_++ % 10)},
                                       {"type", "function"},
                                       {"function", call}});
    }
    const OrderedJson messages = {{{"role", "user"}, {"content", "What?"}}, message};
    const ChatTemplate chat(text, tokenizer_);
    try {
      const RenderedConversation rendered = chat.Render(messages, AnswerGenerator::Tools());
      if (rendered.turns().empty()) return std::nullopt;
      const ChatSpan turn = rendered.turns().back();
      const std::string prompt = rendered.text().substr(0, turn.begin);
      Written written = {WithoutEnd(rendered.text().substr(turn.begin, turn.end - turn.begin)),
                         EndsInThought(*FindAnswerForm(text), prompt)};
      Mend(name, answer, written);
      return written;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer({.special = SpecialTokens()});

 private:
  static std::string WithoutEnd(std::string answer) {
    // Some templates write more behind the end of a turn.
    for (const char* end :
         {"<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>"}) {
      answer.resize(std::min(answer.find(end), answer.size()));
    }
    for (bool ends = true; ends;) {
      ends = false;
      for (const std::string& end : Ends()) {
        if (!TrimEnd(answer).ends_with(end)) continue;
        answer.resize(TrimEnd(answer).size() - end.size());
        ends = true;
      }
    }
    return answer;
  }

  // What a template writes otherwise than its model does.
  static void Mend(const std::string& name, const Answer& made, Written& written) {
    // Thoughts of earlier turns are gone, while the prompt begins one.
    if (name.starts_with("NVIDIA-Nemotron")) written.begins_with_thought = false;
    // The text that begins a thought is a part of the prompt alone.
    if (name.starts_with("Apriel")) written.begins_with_thought = !made.thought.empty();
    // The block of what is trained holds the end of the prompt.
    if (name.starts_with("poolside-Laguna")) {
      for (const std::string_view begin :
           {"<assistant>\n", made.thought.empty() ? "</think>" : ""}) {
        if (written.answer.starts_with(begin)) written.answer.erase(0, begin.size());
      }
    }
  }

  static std::vector<std::string> SpecialTokens() {
    std::vector<std::string> tokens = Ends();
    std::erase_if(tokens, [](const auto& end) { return end == "</s>" || end == "<|im_end|>"; });
    return tokens;
  }

  std::int64_t ids_ = 0;
};

// Leaves out what the template does not show.
Answer Shown(Answer made, const std::string& answer) {
  const auto count = [&answer](const std::string& part) {
    std::int64_t places = 0;
    for (std::size_t at = answer.find(part); at != answer.npos; at = answer.find(part, at + 1)) {
      ++places;
    }
    return places;
  };
  if (!made.thought.empty() && count(made.thought) == 0) made.thought.clear();
  if (!made.text.empty() && count(made.text) == 0) made.text.clear();
  const std::int64_t names = count("get_weather") + count("note");
  while (std::ssize(made.calls) > names) made.calls.erase(made.calls.size() - 1);
  return made;
}

// Two answers that a template writes alike, or in a form that is not read.
bool IsOutOfReach(const std::string& name, const Answer& made) {
  // Nested tags of the names of arguments.
  if (name == "MiniMax-M3.jinja") return !made.calls.empty();
  // Text beside calls is written as a thought, or as a turn of its own.
  if (name.starts_with("openai-gpt-oss") || name.starts_with("NVIDIA-Nemotron")) {
    return !made.calls.empty() && !made.text.empty();
  }
  // Quotes, breaks and backslashes within literals are written as they are.
  const std::string calls = made.calls.dump();
  if (name == "channels.jinja" || name.starts_with("LFM2")) {
    return calls.find('\\') != calls.npos || calls.find('\'') != calls.npos;
  }
  return false;
}

TEST_F(AnswerRoundTrip, WhatTemplatesWriteIsReadBack) {
  const bool shows = std::getenv("QLORA_TEMPLATE") != nullptr;
  const auto types = std::make_shared<const ArgumentTypes>(AnswerGenerator::Tools().dump());
  std::int64_t templates_with_calls = 0;
  for (const auto& [name, text] : Templates()) {
    AnswerGenerator generator(11);
    std::int64_t calls = 0;
    for (int i = 0; i < 40; ++i) {
      const Answer made = generator.Next();
      const std::optional<Written> written = Write(name, text, made);
      if (!written || IsOutOfReach(name, made)) continue;
      const Answer shown = Shown(made, written->answer);
      if (shown.calls.empty() && !made.calls.empty()) continue;  // it has no calls
      AnswerParts parts(FindAnswerForm(text), written->begins_with_thought, true, types);
      const Answer found = ReadBack(PartsOfPieces(std::move(parts), {written->answer}));
      EXPECT_EQ(found.json().dump(), shown.json().dump()) << name << ": " << written->answer;
      calls += std::ssize(shown.calls);
    }
    templates_with_calls += calls > 0;
    if (shows) std::cout << name << ": " << calls << " calls\n";
  }
  EXPECT_GE(templates_with_calls, shows ? 0 : 7);
}

// A conversation of a call, its result and what follows, under the id that a server gave the call.
OrderedJson GivenBack(const std::string& id, bool has_answer) {
  const OrderedJson call = {{"name", "get_weather"}, {"arguments", {{"city", "Brno"}}}};
  OrderedJson messages = {
      {{"role", "user"}, {"content", "What?"}},
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls", {{{"id", id}, {"type", "function"}, {"function", call}}}}},
      {{"role", "tool"}, {"tool_call_id", id}, {"content", "Rain, 3 degrees."}}};
  if (!has_answer) return messages;
  messages.push_back({{"role", "assistant"}, {"content", "It rains."}});
  messages.push_back({{"role", "user"}, {"content", "And then?"}});
  return messages;
}

TEST_F(AnswerRoundTrip, CallsOfThisServerCanBeGivenBack) {
  // Of chat completions, responses and messages.
  const std::vector<std::string> ids = {"call_0123456789abcdef_0_0", "call_0123456789abcdef_1",
                                        "toolu_0123456789abcdef_0"};
  std::map<std::string, std::string> templates = Templates();
  templates["short ids"] = kShortIds;
  std::int64_t read = 0;
  for (const auto& [name, text] : templates) {
    const ChatTemplate chat(text, tokenizer_);
    for (const bool has_answer : {false, true}) {
      const auto render = [&](const std::string& id) -> std::string {
        try {
          return chat.Prompt(GivenBack(id, has_answer), AnswerGenerator::Tools());
        } catch (const Error& error) {
          return {};
        }
      };
      const std::string expected = render("abcdefgh1");
      if (expected.find("degrees") == expected.npos) continue;  // without tools
      ++read;
      for (const std::string& id : ids) {
        EXPECT_THAT(render(id), testing::HasSubstr("degrees")) << name << " " << id;
      }
    }
  }
  EXPECT_GE(read, std::getenv("QLORA_TEMPLATE") != nullptr ? 0 : 7);
  const ChatTemplate chat(kShortIds, tokenizer_);
  EXPECT_EQ(chat.Prompt(GivenBack(ids[0], false), AnswerGenerator::Tools()),
            "What?<get_weather call00000>(call00000 Rain, 3 degrees.)");
}

}  // namespace
}  // namespace qlora
