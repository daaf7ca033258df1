// Records of data as people write them, at random: formats, fields, null, "", [] and absent, other
// names and capitals, turns with and without calls, thoughts and results, in any order.
#ifndef QLORA_TESTS_DATA_RECORD_GENERATOR_H_
#define QLORA_TESTS_DATA_RECORD_GENERATOR_H_

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// A word that stands in the record once.
struct Mark {
  std::string word;
  std::string path;        // that a finding about it begins with: "messages[].content"
  bool is_answer = false;  // written by the assistant
  bool learnt = false;     // and not masked
};

struct MadeRecord {
  OrderedJson record;
  std::vector<Mark> marks;
  // The messages and tools say all of the record, in the form that transformers takes.
  bool is_plain = false;
};

class RecordGenerator {
 public:
  explicit RecordGenerator(std::uint64_t seed) : random_(seed) {}

  MadeRecord Next() {
    made_ = {};
    made_.record = OrderedJson::object();
    numbers_ = 0;
    ids_ = 0;
    made_.is_plain = Chance(3);
    switch (made_.is_plain ? 0 : Below(9)) {
      case 0:
      case 1:
      case 2:
        AddMessages("messages");
        break;
      case 3:
      case 4:
        AddMessages("conversations");
        break;
      case 5:
        AddPromptAndCompletion();
        break;
      case 6:
        AddAlpaca();
        break;
      case 7:
        AddQuestionAndAnswer();
        break;
      default:
        AddPairs();
    }
    if (!made_.is_plain) AddOthers();
    const std::string text = made_.record.dump();  // some words were written over
    std::erase_if(made_.marks,
                  [&text](const Mark& mark) { return text.find(mark.word) == text.npos; });
    return std::move(made_);
  }

 private:
  std::int64_t Below(std::int64_t count) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(count));
  }
  bool Chance(std::int64_t of) { return Below(of) == 0; }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[Below(std::ssize(values))];
  }

  // A word that no template has, marked as a text of the record.
  std::string Word(const std::string& path, bool learnt = false) {
    std::string word =
        "zq" + std::to_string(random_() % 900'000 + 100'000) + "x" + std::to_string(numbers_++);
    made_.marks.push_back({word, path, learnt || answers_, learnt});
    return word;
  }
  std::string Text(const std::string& path, bool learnt = false) {
    const std::string word = Word(path, learnt);
    if (made_.is_plain) return "About " + word + " we know.";
    switch (Below(8)) {
      case 0:
        return "  " + word + "\n\nand \"more\"  ";
      case 1:
        return word + " \\frac{1}{2}\ttab é 雨 🙂";
      case 2:
        return "line\n" + word + "\nline";
      case 3:
        return word;
      case 4:
        return "{\"" + word + "\": [1, \"two\"]}";
      case 5:
        return "<b>" + word + "</b> & 'so'";
      default:
        return "About " + word + ", and what becomes of it.";
    }
  }
  // What tables hold where nobody wrote anything.
  OrderedJson Nothing() { return Of<OrderedJson>({nullptr, "", OrderedJson::array()}); }

  OrderedJson Content(const std::string& path, bool learnt) {
    if (made_.is_plain) return Text(path, learnt);
    if (Chance(12)) {
      OrderedJson part = {{"type", "text"}, {"text", Text(path, learnt)}};
      if (Chance(2)) part["image_url"] = nullptr;
      if (Chance(6)) part["type"] = nullptr;
      return Chance(4) ? part : OrderedJson::array({part});
    }
    if (Chance(30)) return Below(100'000);
    if (Chance(12)) return Of<OrderedJson>({"4", "yes", "a", "Ok.", "No", true});
    return Text(path, learnt);
  }

  OrderedJson Arguments(const std::string& path, bool learnt) {
    OrderedJson arguments = OrderedJson::object();
    for (std::int64_t i = Below(3); i >= 0; --i) {
      arguments[Word(path, learnt)] =
          Chance(3)   ? OrderedJson(Below(1000))
          : Chance(4) ? OrderedJson({{Word(path, learnt), {Word(path, learnt), 2}}})
                      : OrderedJson(Word(path, learnt));
    }
    if (made_.is_plain) return arguments;
    if (Chance(4)) return arguments.dump();
    return arguments;
  }

  OrderedJson Tools() {
    OrderedJson tools = OrderedJson::array();
    for (std::int64_t i = Below(2); i >= 0; --i) {
      OrderedJson properties = OrderedJson::object();
      for (std::int64_t p = Below(3); p >= 0; --p) {
        properties[Word("tools")] = {{"type", "string"}, {"description", Text("tools")}};
      }
      OrderedJson function = {{"name", Word("tools")},
                              {"description", Text("tools")},
                              {"parameters",
                               {{"type", "object"},
                                {"properties", properties},
                                {"required", {properties.begin().key()}}}}};
      if (!made_.is_plain && Chance(3)) {
        for (OrderedJson& property : function["parameters"]["properties"]) {
          property["enum"] = nullptr;
        }
        function["parameters"]["properties"]["other"] = nullptr;
        function["strict"] = nullptr;
      }
      if (!made_.is_plain && Chance(8)) function["parameters"] = function["parameters"].dump();
      const bool is_bare = !made_.is_plain && Chance(4);
      tools.push_back(is_bare ? function
                              : OrderedJson({{"type", "function"}, {"function", function}}));
    }
    if (!made_.is_plain && Chance(5)) return tools.dump();
    return tools;
  }

  OrderedJson Call(const std::string& path, bool learnt, const std::string& id) {
    OrderedJson function = {{"name", Word(path, learnt)}, {"arguments", nullptr}};
    if (made_.is_plain || !Chance(8)) function["arguments"] = Arguments(path, learnt);
    if (!made_.is_plain && Chance(8)) {
      function[Of<std::string>({"args", "parameters"})] = function["arguments"];
      function.erase("arguments");
    }
    OrderedJson call = function;
    call["type"] = "tool_call";
    if (made_.is_plain || !Chance(6)) call = {{"type", "function"}, {"function", function}};
    if (made_.is_plain || !Chance(4)) call["id"] = id;
    if (!made_.is_plain && Chance(8)) call["index"] = nullptr;
    return call;
  }

  // Adds an answer, and the results of its calls.
  void AddAnswer(OrderedJson& turns, const std::string& list, bool by_from, bool may_call) {
    const bool learnt = made_.is_plain || !Chance(8);
    const std::string value = by_from ? "value" : "content";
    OrderedJson turn = {{by_from ? "from" : "role", by_from ? "gpt" : "assistant"}};
    if (!made_.is_plain && !by_from && Chance(20)) turn["role"] = "Assistant";
    answers_ = true;
    const bool calls = may_call && Chance(2);
    const bool says = !calls || Chance(3);
    const std::string path = list + "[].";
    if (Chance(3)) {
      const std::string name =
          made_.is_plain ? "reasoning_content"
                         : Of<std::string>({"reasoning_content", "thinking", "reasoning"});
      turn[name] = Text(path + name, learnt);
    }
    if (says) {
      OrderedJson content = Content(path + value, learnt);
      if (!made_.is_plain && Chance(6) && content.is_string()) {
        content = "<think>\n" + Text(path + value, learnt) + "\n</think>\n\n" +
                  content.get<std::string>();
      }
      turn[value] = content;
    } else if (made_.is_plain) {
      turn[value] = "";
    } else if (!Chance(3)) {
      turn[value] = Nothing();
    }
    std::vector<std::string> ids;
    if (calls) {
      OrderedJson list_of_calls = OrderedJson::array();
      for (std::int64_t i = Below(made_.is_plain ? 1 : 3); i >= 0; --i) {
        ids.push_back("call" + std::to_string(10'000 + ids_++));
        list_of_calls.push_back(Call(path + "tool_calls", learnt, ids.back()));
      }
      turn["tool_calls"] = list_of_calls;
      if (!made_.is_plain && Chance(6)) turn["tool_calls"] = list_of_calls.dump();
    } else if (!made_.is_plain && Chance(4)) {
      turn["tool_calls"] = Nothing();
    }
    AddFlag(turn, learnt);
    turns.push_back(turn);
    answers_ = false;
    if (!made_.is_plain) std::shuffle(ids.begin(), ids.end(), random_);
    for (const std::string& id : ids) AddResult(turns, path, value, by_from, id);
  }

  void AddFlag(OrderedJson& turn, bool learnt) {
    const std::string name = Of<std::string>({"weight", "train", "loss", "loss_scale"});
    if (!learnt) {
      turn[name] = Of<OrderedJson>({0, false});
    } else if (!made_.is_plain && Chance(6)) {
      turn[name] = Of<OrderedJson>({1, true, nullptr, ""});
    }
  }

  void AddResult(OrderedJson& turns, const std::string& path, const std::string& value,
                 bool by_from, const std::string& id) {
    OrderedJson result = {{by_from ? "from" : "role", "tool"}};
    if (!made_.is_plain && Chance(6)) result.begin().value() = "observation";
    result[value] = Text(path + value);
    if (!made_.is_plain && Chance(4)) {
      result[value] = {{Word(path + value), Below(50)}, {"rising", true}};
    } else if (!made_.is_plain && Chance(8)) {
      result[value] = OrderedJson::array({{{"text", Word(path + value)}, {"score", 0.25}}});
    } else if (!made_.is_plain && Chance(12)) {
      result[value] = Nothing();
    }
    if (made_.is_plain || !Chance(4)) result["tool_call_id"] = id;
    turns.push_back(result);
  }

  void AddMessages(const std::string& list) {
    const bool by_from = list == "conversations" && Chance(2);
    const std::string path = list + "[]." + (by_from ? "value" : "content");
    const bool has_tools = Chance(2);
    OrderedJson turns = OrderedJson::array();
    const auto turn = [&](const char* role, const OrderedJson& content) {
      turns.push_back(
          {{by_from ? "from" : "role", role}, {by_from ? "value" : "content", content}});
    };
    if (has_tools) {
      made_.record["tools"] = Tools();
    } else if (!made_.is_plain && Chance(3)) {
      made_.record["tools"] = Nothing();
    }
    if (Chance(3)) {
      turn("system", Text(path));
    } else if (!made_.is_plain && Chance(4)) {
      made_.record[Of<std::string>({"system", "system_prompt"})] =
          Chance(3) ? Nothing() : OrderedJson(Text("system"));
    }
    for (std::int64_t i = Below(3); i >= 0; --i) {
      turn(by_from ? "human" : "user", Content(path, false));
      AddExtras(turns.back(), list);
      AddAnswer(turns, list, by_from, has_tools);
      const std::string last = by_from ? turns.back()["from"] : turns.back()["role"];
      if (last == "tool" || last == "observation") AddAnswer(turns, list, by_from, false);
    }
    if (!made_.is_plain && Chance(10)) {
      turn(by_from ? "human" : "user", Content(path, false));
      const std::string name = Of<std::string>({"response", "answer", "completion", "output"});
      if (!Chance(3)) made_.record[name] = Text(name, true);
    }
    made_.record[list] = turns;
    if (!made_.is_plain && Chance(12)) made_.record[list] = turns.dump();
  }

  // Fields that tables give to all turns.
  void AddExtras(OrderedJson& turn, const std::string& list) {
    if (made_.is_plain) return;
    for (const char* name : {"name", "tool_calls", "tool_call_id", "reasoning_content", "weight"}) {
      if (Chance(6)) turn[name] = nullptr;
    }
    if (Chance(12)) turn["name"] = Word(list + "[].name");
    if (Chance(12)) turn["note"] = Word(list + "[].note");
    if (Chance(12)) turn["reasoning_content"] = OrderedJson::array();
    if (Chance(12)) turn["annotations"] = OrderedJson::array();
  }

  void AddPromptAndCompletion() {
    const std::string path = "prompt[].content";
    made_.record["prompt"] = {{{"role", "user"}, {"content", Text(path)}}};
    made_.record["completion"] = {
        {{"role", "assistant"}, {"content", Text("completion[].content", true)}}};
    if (Chance(6)) {
      for (const char* name : {"prompt", "completion"}) {
        made_.record[name] = made_.record[name].dump();
      }
    }
    if (Chance(6)) made_.record["messages"] = Nothing();
  }

  void AddAlpaca() {
    made_.record["instruction"] = Text("instruction");
    const std::string input = Of<std::string>({"input", "context"});
    if (!Chance(3)) made_.record[input] = Chance(3) ? Nothing() : OrderedJson(Text(input));
    if (Chance(6)) made_.record[input == "input" ? "context" : "input"] = Nothing();
    const std::string output = Of<std::string>({"output", "response"});
    made_.record[output] = Text(output, true);
    if (Chance(6)) made_.record[output == "output" ? "response" : "output"] = Nothing();
    AddHistory();
  }

  void AddQuestionAndAnswer() {
    const std::string question = Of<std::string>({"prompt", "question", "query", "input"});
    const std::string answer = Of<std::string>({"completion", "answer", "response", "output"});
    made_.record[question] = Text(question);
    made_.record[answer] = Text(answer, true);
    if (question != "prompt" && Chance(6)) made_.record["prompt"] = "";
    if (Chance(4)) {
      const std::string name = Of<std::string>({"reasoning", "thought", "cot", "rationale"});
      made_.record[name] = Text(name, true);
    }
    AddHistory();
  }

  void AddHistory() {
    if (Chance(2)) return;
    if (Chance(3)) {
      made_.record["history"] = Nothing();
    } else {
      const OrderedJson pair = OrderedJson::array({Text("history"), Text("history", true)});
      made_.record["history"] = OrderedJson::array({pair});
      if (Chance(3)) made_.record["history"] = made_.record["history"].dump();
    }
  }

  void AddPairs() {
    OrderedJson pairs = OrderedJson::array();
    const bool human = Chance(2);
    for (std::int64_t i = Below(3); i >= 0; --i) {
      const std::string path = "conversations[].";
      const std::string question = human ? "human" : "input";
      const std::string answer = human ? "assistant" : "output";
      const bool learnt = !Chance(6);
      pairs.push_back({{question, Text(path + question)}});
      answers_ = true;
      pairs.back()[answer] = Text(path + answer, learnt);
      if (Chance(4)) pairs.back()["reasoning"] = Text(path + "reasoning", learnt);
      answers_ = false;
      AddFlag(pairs.back(), learnt);
      if (Chance(12)) pairs.back()["system"] = Nothing();
    }
    made_.record["conversation"] = pairs;
    if (Chance(6)) made_.record["conversation"] = pairs.dump();
  }

  void AddOthers() {
    if (Chance(4)) made_.record["source"] = Word("source");
    if (Chance(6)) made_.record["score"] = nullptr;
    if (Chance(20)) {
      const std::string name = Of<std::string>({"context", "history", "System", "systemPrompt",
                                                "response", "query", "text", "summary", "choices"});
      // A response is the answer of messages that have none.
      if (!made_.record.contains(name)) made_.record[name] = Text(name, name == "response");
    }
    if (Chance(20)) made_.record["images"] = {Word("images")};
    if (Chance(12)) made_.record["chat_template_kwargs"] = {{"reasoning_effort", nullptr}};
    if (Chance(12)) {
      const OrderedJson text = {{"title", Word("documents")}, {"text", Word("documents")}};
      made_.record["documents"] = OrderedJson::array({text});
      made_.record["documents"][0]["url"] = nullptr;
      if (Chance(3)) made_.record["documents"] = made_.record["documents"].dump();
    }
  }

  std::mt19937_64 random_;
  MadeRecord made_;
  int numbers_ = 0;
  int ids_ = 0;
  bool answers_ = false;  // what is made now is the assistant's
};

}  // namespace qlora

#endif  // QLORA_TESTS_DATA_RECORD_GENERATOR_H_
