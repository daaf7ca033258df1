#include <nlohmann/json.hpp>

#include "data/data_test_util.h"
#include "prompt/chat_template.h"
#include "prompt/chat_template_load.h"
#include "prompt/conversation.h"

namespace qlora {
namespace {

class LossMaskTest : public testing::Test {
 protected:
  // A template like that of Llama 2: "<s>[user]assistant</s>", with a fault that the test chooses.
  ChatTemplate Brackets(const std::string& prefix, const std::string& suffix) {
    return ChatTemplate("{{ '" + prefix + "' }}{% if tools %}{{ tools | tojson }}{% endif %}" +
                            "{% for m in messages %}{% if m.role == 'assistant' %}"
                            "{% generation %}{{ m.content ~ '" +
                            suffix +
                            "' }}{% endgeneration %}{{ '\\n' }}"
                            "{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
                        tokenizer_);
  }
  Dataset Open(const std::string& text, const ChatTemplate& chat) {
    return Dataset::Open(folder_.With("d.jsonl", text), tokenizer_, &chat);
  }
  void Refuse(const std::string& text, const std::string& part) { Refuse(text, part, brackets_); }
  void Refuse(const std::string& text, const std::string& part, const ChatTemplate& chat) {
    ExpectRefused([&] { Open(text, chat); }, part);
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  const ChatTemplate brackets_ = Brackets("<s>", "</s>");
  DataFolder folder_;
};

constexpr const char* kTwoTurns =
    R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "v"},
        {"role": "user", "content": "w"}, {"role": "assistant", "content": "x"}]})";

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

TEST_F(LossMaskTest, EveryAssistantTurnAndItsEndIsTrained) {
  const Dataset data = Open(OneLine(kTwoTurns), brackets_);
  const Sample sample = data.Get(0);
  EXPECT_EQ(sample.ids,
            Join({{kBos}, Bytes("[u]v"), {kEos}, Bytes("\n[w]x"), {kEos}, Bytes("\n")}));
  EXPECT_EQ(sample.labels,
            Join({Masked(4), Bytes("v"), {kEos}, Masked(4), Bytes("x"), {kEos}, Masked(1)}));
  EXPECT_EQ(data.report().files[0].format, "messages");
  EXPECT_EQ(data.report().without_bos, 0);
  EXPECT_EQ(data.report().unlisted_stops, 0);

  DataOptions options = folder_.With("d.jsonl", OneLine(kTwoTurns));
  options.train_on_inputs = true;
  EXPECT_EQ(Dataset::Open(options, tokenizer_, &brackets_).Get(0).labels, sample.ids);
}

TEST_F(LossMaskTest, WeightsTakeTurnsOutOfTheLoss) {
  const Dataset data = Open(
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "v", )"
      R"("weight": 0}, {"role": "assistant", "content": "x", "weight": 1}]})",
      brackets_);
  EXPECT_EQ(data.Get(0).labels, Join({Masked(7), Bytes("x"), {kEos}, Masked(1)}));
  // What is not trained on anyway may say so.
  EXPECT_EQ(Open(R"({"messages": [{"role": "user", "content": "u", "weight": 0}, )"
                 R"({"role": "assistant", "content": "x"}]})",
                 brackets_)
                .Get(0)
                .labels,
            Join({Masked(4), Bytes("x"), {kEos}, Masked(1)}));
  Refuse(R"({"messages": [{"role": "assistant", "content": "u", "weight": 2}]})", "'weight'");
}

TEST_F(LossMaskTest, TokenAcrossTheBoundaryIsTrainedAndCounted) {
  const ChatTemplate merges = Brackets("<s>a", "</s>");
  const Dataset data = Open(R"({"messages": [{"role": "assistant", "content": "bx"}]})", merges);
  EXPECT_EQ(data.Get(0).ids, Join({{kBos, kAb}, Bytes("x"), {kEos}, Bytes("\n")}));
  EXPECT_EQ(data.Get(0).labels, Join({Masked(1), {kAb}, Bytes("x"), {kEos}, Masked(1)}));
  EXPECT_EQ(data.report().split_boundaries, 1);
}

// A template that opens turns with the letter that the next one would merge with only when both are
// encoded apart: the encoding of the pieces differs from that of the whole, the masks do not.
TEST_F(LossMaskTest, BoundsAreExactWhenWordsGetASpaceAtTheStart) {
  const TemporaryFolder folder;
  std::ofstream(folder / "tokenizer.json") << R"({
      "added_tokens": [{"id": 0, "content": "<s>", "special": true, "lstrip": false,
                        "rstrip": false, "single_word": false, "normalized": false},
                       {"id": 1, "content": "</s>", "special": true, "lstrip": false,
                        "rstrip": false, "single_word": false, "normalized": false}],
      "normalizer": {"type": "Sequence", "normalizers": [
          {"type": "Prepend", "prepend": "▁"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
      "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1, "▁": 2, "[": 3, "]": 4, "x": 5, "y": 6,
                                         "▁x": 7, "\n": 8, "▁[": 9, "]y": 10},
                "merges": ["▁ x", "▁ ["]}})";
  std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token":"<s>","eos_token":"</s>"})";
  const Tokenizer tokenizer = Tokenizer::Load(folder.path());
  const DataOptions options =
      folder_.With("d.jsonl", R"({"messages": [{"role": "user", "content": "x"},)"
                              R"({"role": "assistant", "content": " x"}]})");
  const Dataset data = Dataset::Open(options, tokenizer, &brackets_);
  EXPECT_EQ(data.Get(0).ids, (Ids{0, 9, 5, 4, 7, 1, 2, 8}));
  EXPECT_EQ(data.Get(0).labels, (Ids{-100, -100, -100, -100, 7, 1, -100, -100}));
  EXPECT_EQ(data.report().split_boundaries, 0);
}

TEST_F(LossMaskTest, TurnThatDoesNotEndIsRefused) {
  Refuse(OneLine(kTwoTurns),
         "d.jsonl:1: messages[1]: the assistant's turn does not end in a token that ends",
         Brackets("<s>", ""));
  const ChatTemplate unlisted = Brackets("<s>", "<|im_end|>");
  EXPECT_EQ(Open(OneLine(kTwoTurns), unlisted).report().unlisted_stops, 1);
  const ChatTemplate spaced = Brackets("<s>", "</s>\\n");
  EXPECT_EQ(Open(OneLine(kTwoTurns), spaced).size(), 1) << "white space may follow EOS";
  EXPECT_EQ(Open(OneLine(kTwoTurns), spaced).report().unlisted_stops, 0);
  Refuse(R"({"messages": [{"role": "user", "content": "u"}]})", "have no token that is trained on");
}

// A template may leave the last turn open, as that of GLM does: the next message would close it.
TEST_F(LossMaskTest, OpenLastTurnIsGivenEos) {
  const ChatTemplate unclosed = Brackets("<s>", "");
  const std::string one =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "v "}]})";
  const Dataset data = Open(one, unclosed);
  EXPECT_EQ(data.Get(0).ids, Join({{kBos}, Bytes("[u]v "), {kEos}}));
  EXPECT_EQ(data.Get(0).labels, Join({Masked(4), Bytes("v "), {kEos}}));
  EXPECT_EQ(data.report().closed_turns, 1);
  EXPECT_EQ(data.report().without_eos, 0);

  DataOptions options = folder_.With("d.jsonl", one);
  options.append_eos = false;
  const Dataset as_is = Dataset::Open(options, tokenizer_, &unclosed);
  EXPECT_EQ(as_is.Get(0).labels, Join({Masked(4), Bytes("v "), Masked(1)}));
  EXPECT_EQ(as_is.report().closed_turns, 0);
  EXPECT_EQ(as_is.report().without_eos, 1);

  // Thoughts that the template writes in another way, and calls.
  const ChatTemplate open(
      "{% for m in messages %}<{{ m.role }}>{% if '</think>' in m.content %}(thought)"
      "{% endif %}{{ m.content.split('</think>')[-1] | trim }}"
      "{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      tokenizer_);
  for (const char* answer :
       {R"("content": "<think>\nw\n</think>\n\nv")",
        R"("content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}])"}) {
    const std::string record =
        std::string(R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", )") +
        answer + "}]}";
    const Dataset closed = Open(record, open);
    EXPECT_EQ(closed.report().closed_turns, 1) << answer;
    EXPECT_EQ(closed.Get(0).ids.back(), kEos) << answer;
  }

  // A template that closes turns with text that is no token of the model is another matter.
  Refuse(one, "d.jsonl:1: messages[1]: the assistant's turn does not end in a token that ends",
         Brackets("<s>", "<end>"));
}

TEST_F(LossMaskTest, WhatTheTemplateDoesNotShowIsNamed) {
  const auto found = [&](const std::string& record, const ChatTemplate& chat) {
    std::string paths;
    const Dataset data = Open(record, chat);
    for (const DataFinding& one : data.report().findings) {
      paths += one.what.substr(0, one.what.find(':')) + ";";
    }
    return paths;
  };
  const std::string end = "</s>{% endgeneration %}{% endfor %}";
  const std::string begin = "{% for m in messages %}{% generation %}";
  const auto with = [&](const std::string& text) {
    return ChatTemplate(begin + text + end, tokenizer_);
  };
  const std::string call = R"({"messages": [{"role": "assistant", "content": "x", "tool_calls": )"
                           R"([{"function": {"name": "get_rain", "arguments": {}}}]}]})";
  EXPECT_EQ(found(call, brackets_), "messages[].tool_calls[].name;");
  EXPECT_EQ(found(call, with("{{ m.content }}{{ m.tool_calls | tojson }}")), "");

  const std::string talk =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "x", )"
      R"("reasoning_content": "y", "tool_calls": [], "refusal": null, "audio": {"id": 1}}]})";
  EXPECT_EQ(found(talk + "\n" + OneLine(kTwoTurns), brackets_),
            "messages[].audio;messages[].reasoning_content;");
  EXPECT_EQ(found(OneLine(kTwoTurns), brackets_), "");
  const DataReport report = Open(talk, brackets_).report();
  const auto counts = CountsFromJson(CountsToJson(report).dump());
  ASSERT_TRUE(counts);
  EXPECT_EQ(WarnOfFindings(*counts), WarnOfFindings(report));

  EXPECT_EQ(found(talk, with("{{ m.content ~ m.reasoning_content }}")), "messages[].audio;");
  EXPECT_EQ(found(talk, with("{{ m.content ~ m['reasoning' ~ '_content'] }}")),
            "messages[].audio;");
  EXPECT_EQ(found(talk, with("{{ m | tojson }}")), "");

  const std::string tools = R"({"tools": [{"name": "f"}], "messages": )"
                            R"([{"role": "assistant", "content": "x"}]})";
  EXPECT_EQ(found(tools, brackets_), "") << "they are shown";
  EXPECT_EQ(found(tools, with("{{ m.content }}")), "tools;");
}

TEST_F(LossMaskTest, AlpacaAndPromptsGoThroughTheTemplate) {
  const Dataset alpaca = Open(
      R"({"instruction": "a", "input": "b", "output": "c", "system": "s", "history": [["q", "r"]]})",
      brackets_);
  EXPECT_EQ(alpaca.Get(0).ids,
            Join({{kBos}, Bytes("[s][q]r"), {kEos}, Bytes("\n[a\nb]c"), {kEos}, Bytes("\n")}));
  EXPECT_EQ(alpaca.Get(0).labels,
            Join({Masked(7), Bytes("r"), {kEos}, Masked(6), Bytes("c"), {kEos}, Masked(1)}));
  EXPECT_EQ(Open(R"({"prompt": "u", "completion": "v"})", brackets_).Get(0).ids,
            Join({{kBos}, Bytes("[u]v"), {kEos}, Bytes("\n")}));
  DataOptions options = folder_.With("d.jsonl", R"({"prompt": "u", "completion": "v"})");
  options.layout.choice = LayoutChoice::kText;
  EXPECT_EQ(Dataset::Open(options, tokenizer_, &brackets_).Get(0).ids,
            Join({{kBos}, Bytes("uv"), {kEos}}));
}

TEST_F(LossMaskTest, ChatMlNeedsItsTokens) {
  const auto chatml = LoadChatTemplate({.chat_template = "chatml"}, tokenizer_, ChatClock::kFixed);
  const Dataset data = Open(OneLine(kTwoTurns), *chatml);
  const Sample sample = data.Get(0);
  EXPECT_EQ(sample.ids, Join({{kImStart},
                              Bytes("user\nu"),
                              {kImEnd},
                              Bytes("\n"),
                              {kImStart},
                              Bytes("assistant\nv"),
                              {kImEnd},
                              Bytes("\n"),
                              {kImStart},
                              Bytes("user\nw"),
                              {kImEnd},
                              Bytes("\n"),
                              {kImStart},
                              Bytes("assistant\nx"),
                              {kImEnd},
                              Bytes("\n")}));
  EXPECT_EQ(std::count(sample.labels.begin(), sample.labels.end(), kIgnoreLabel),
            std::ssize(sample.labels) - 4);
  EXPECT_EQ(data.report().without_bos, 1);
  const Tokenizer plain = MakeTestTokenizer({.bos = true, .chat = false});
  const DataOptions options = folder_.With("d.jsonl", OneLine(kTwoTurns));
  ExpectRefused([&] { Dataset::Open(options, plain, chatml.get()); }, "does not end in a token");
  ExpectRefused(
      [&] {
        Open(R"({"messages": [{"role": "assistant", "content": "x"}], "tools": [{}]})", *chatml);
      },
      "cannot show tools");
}

TEST_F(LossMaskTest, ShareGptBecomesMessages) {
  const Conversation chat = ConversationOfShareGpt(OrderedJson::parse(R"({
      "system": "S", "tools": "[{\"name\": \"f\"}]",
      "conversations": [{"from": "human", "value": "h"},
                        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"a\": 1}}"},
                        {"from": "observation", "value": "o"}, {"from": "gpt", "value": "g"},
                        {"role": "user", "content": "u"}]})"));
  EXPECT_EQ(chat.messages, OrderedJson::parse(R"([
      {"role": "system", "content": "S"}, {"role": "user", "content": "h"},
      {"role": "assistant", "content": null, "tool_calls": [
          {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
      {"role": "tool", "content": "o"}, {"role": "assistant", "content": "g"},
      {"role": "user", "content": "u"}])"));
  EXPECT_EQ(chat.tools, OrderedJson::parse(R"([{"type": "function", "function": {"name": "f"}}])"));
  EXPECT_EQ(chat.trained, (std::vector<bool>{false, false, true, false, true, false}));

  const Dataset data =
      Open(R"({"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "v"}]})",
           brackets_);
  EXPECT_EQ(data.Get(0).labels, Join({Masked(4), Bytes("v"), {kEos}, Masked(1)}));
  EXPECT_EQ(data.report().files[0].format, "sharegpt");
  Refuse(R"({"conversations": [{"from": "robot", "value": "u"}]})", "found 'robot'");
  Refuse(R"({"conversations": [{"from": "gpt"}]})", "conversations[0]: 'value' is missing");
  Refuse(R"({"conversations": [{"from": "function_call", "value": "call f"}]})",
         "d.jsonl:1: conversations[0]: not valid JSON at line 1, column 1");
  Refuse(R"({"conversations": []})", "empty list");
  Refuse(R"({"conversations": ["x"]})", "conversations[0]: expected an object");
}

TEST_F(LossMaskTest, MessagesAreBroughtIntoTheFormOfTemplates) {
  const Conversation chat = ConversationOfMessages(OrderedJson::parse(R"({"tools": [], "messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [
          {"id": "1", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]}]})"));
  EXPECT_TRUE(chat.tools.is_null());
  EXPECT_EQ(chat.messages[0].at("content"), "ab");
  EXPECT_EQ(chat.messages[1].at("tool_calls")[0].at("function").at("arguments").dump(),
            R"({"z":1,"a":2})");
  Refuse(R"({"messages": [{"content": "x"}]})", "d.jsonl:1: messages[0]: 'role' is missing");
  const Conversation names = ConversationOfMessages(OrderedJson::parse(
      R"({"messages": [{"from": "human", "value": "x"}, {"role": "gpt", "content": 2.5}]})"));
  EXPECT_EQ(names.messages, OrderedJson::parse(R"([{"role": "user", "content": "x"},
                                                   {"role": "assistant", "content": "2.5"}])"));
  Refuse(R"({"messages": [{"role": "user"}]})", "neither 'content' nor 'tool_calls'");
  Refuse(R"({"messages": [{"role": "user", "content": null}]})", "'content' is null");
  Refuse(R"({"messages": [{"role": "user", "content": {}}]})", "expected text, found object");
  Refuse(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})", "not text");
  Refuse(R"({"messages": [{"role": "user", "content": [{"type": 3}]}]})", "not text");
  Refuse(R"({"messages": [{"role": "user", "content": [{"type": null}]}]})", "not text");
  Refuse(R"({"messages": [{"role": "user", "content": "x"}], "tools": 3})", "field 'tools'");
  Refuse(R"({"messages": "x"})", "expected a list of messages");
}

// Lists and objects, and texts that hold JSON: all are read with the same limit of depth.
TEST_F(LossMaskTest, DeepJsonIsRefusedWhereverARecordHoldsIt) {
  const std::string deep(90'000, '[');
  const std::string user = R"({"messages": [{"role": "user", "content": )";
  const std::string limit = "nested more than 64 levels deep";
  Refuse(user + deep, "d.jsonl:1:");
  Refuse(user + deep, limit);
  Refuse(user + R"("x"}], "tools": )" + deep, limit);
  Refuse(user + R"("x"}], "tools": ")" + deep + R"("})",
         "d.jsonl:1: field 'tools': not valid JSON");
  Refuse(
      R"({"messages": [{"role": "assistant", "tool_calls": [{"arguments": ")" + deep + R"("}]}]})",
      "d.jsonl:1: messages[0]: tool-call arguments: not valid JSON");
  Refuse(R"({"conversations": [{"from": "function_call", "value": ")" + deep + R"("}]})", limit);
}

TEST_F(LossMaskTest, ConversationalCompletionTrainsTheCompletion) {
  const Dataset data =
      Open(R"({"prompt": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "v"},)"
           R"({"role": "user", "content": "w"}],)"
           R"("completion": [{"role": "assistant", "content": "x"}]})",
           brackets_);
  EXPECT_EQ(data.report().files[0].format, "prompt_completion");
  EXPECT_EQ(data.Get(0).labels, Join({Masked(10), Bytes("x"), {kEos}, Masked(1)}));
}

// The checkpoint's own template, from its files to the labels.
TEST_F(LossMaskTest, TemplateOfTheCheckpointDecidesTextAndMasks) {
  const Tokenizer tokenizer = MakeTestTokenizer({.chat_template = ReadFixture("chat/qwen3.jinja")});
  const auto chat = LoadChatTemplate({}, tokenizer, ChatClock::kFixed);
  const DataOptions options = folder_.With("d.jsonl", OneLine(kTwoTurns));
  const Dataset data = Dataset::Open(options, tokenizer, chat.get());
  const Sample sample = data.Get(0);
  Ids trained;
  for (const std::int32_t label : sample.labels) {
    if (label != kIgnoreLabel) trained.push_back(label);
  }
  EXPECT_EQ(trained, Join({Bytes("v"), {kImEnd}, Bytes("<think>\n\n</think>\n\nx"), {kImEnd}}));
  EXPECT_EQ(data.report().unlisted_stops, 1);
}

TEST_F(LossMaskTest, TemplateThatFailsIsNamedWithTheLineOfTheData) {
  const ChatTemplate chat("{% for m in messages %}\n{{ m.content + 1 }}{% endfor %}", tokenizer_);
  const std::string line = OneLine(kTwoTurns) + "\n";
  ExpectRefused([&] { Open(line, chat); }, "d.jsonl:1: chat_template:2:");
  const ChatTemplate picky(
      "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no bad words') }}"
      "{% endif %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% endfor %}",
      tokenizer_);
  const std::string bad = R"({"messages": [{"role": "assistant", "content": "bad"}]})";
  ExpectRefused([&] { Open(line + line + bad, picky); }, "d.jsonl:3: chat_template:1:");
}

TEST_F(LossMaskTest, EosBehindAMarkedTurnBelongsToIt) {
  const ChatTemplate chat(
      "{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}</s>{% endfor %}",
      tokenizer_);
  const Sample sample =
      Open(R"({"messages": [{"role": "assistant", "content": "x"}]})", chat).Get(0);
  EXPECT_EQ(sample.ids, Join({Bytes("[x"), {kEos}}));
  EXPECT_EQ(sample.labels, Join({Masked(1), Bytes("x"), {kEos}}));
}

// Each turn is a sample with all turns before it, of which no more is kept than may be trained.
TEST_F(LossMaskTest, SamplesOfTurnsAreCutAtOnce) {
  OrderedJson messages = OrderedJson::array();
  constexpr int kManyTurns = 60;
  for (int i = 0; i < kManyTurns; ++i) {
    messages.push_back({{"role", "user"}, {"content", "x"}});
    messages.push_back({{"role", "assistant"}, {"content", "y"}});
  }
  EncodingOptions options;
  options.max_length = 20;
  options.train_turns = TrainTurns::kEach;
  const RecordEncoder encoder(ChooseLayout(RecordFormat::kMessages, {}, true), options, tokenizer_,
                              &brackets_);
  const auto samples = encoder.EncodeAll({{"messages", messages}});
  ASSERT_EQ(samples.size(), kManyTurns);
  for (int i = 0; i < kManyTurns; ++i) {
    EXPECT_EQ(samples[i].length, 1 + 6 * (i + 1));  // [x]y</s> and a line end
    EXPECT_EQ(samples[i].supervised, 2);
    EXPECT_EQ(samples[i].sample.ids.size(), std::min<std::int64_t>(samples[i].length, 21));
    EXPECT_LE(samples[i].sample.labels.capacity(), 32U);
  }
}

}  // namespace
}  // namespace qlora
