// Layouts of prompts: what is chosen, what is recorded, and that every consumer renders the text
// that is trained.
#include "prompt/prompt_layout.h"

#include <nlohmann/json.hpp>

#include "data/data_test_util.h"
#include "data/prompt_example.h"
#include "prompt/chat_template.h"
#include "prompt/chat_template_load.h"
#include "prompt/prompt_renderer.h"
#include "prompt/rendered_conversation.h"
#include "prompt/turn_template.h"

namespace qlora {
namespace {

using Kind = PromptLayout::Kind;

constexpr const char* kPreamble = "Below is an instruction that describes a task";
constexpr const char* kRequest =
    ". Write a response that appropriately completes the request.\n\n### Instruction:\n";

PromptLayout Choose(RecordFormat format, const std::string& choice, bool chat,
                    const std::optional<PromptLayout>& recorded = {}) {
  return ChooseLayout(format, {.choice = ParseLayoutChoice(choice), .recorded = recorded}, chat);
}

TEST(PromptLayoutTest, AChatTemplateIsUsedWhereThereIsOne) {
  for (const RecordFormat format : {RecordFormat::kInstruction, RecordFormat::kPromptCompletion}) {
    EXPECT_EQ(Choose(format, "auto", true).kind, Kind::kChat);
    EXPECT_EQ(Choose(format, "auto", false).kind, Kind::kText);
    EXPECT_EQ(Choose(format, "text", true).kind, Kind::kText);
    EXPECT_EQ(Choose(format, "instruction_answer", true).kind, Kind::kText);
    ExpectRefused([&] { Choose(format, "chat", false); }, "needs a chat template");
  }
  EXPECT_EQ(Choose(RecordFormat::kMessages, "text", true).kind, Kind::kChat);
  EXPECT_EQ(Choose(RecordFormat::kText, "auto", true).kind, Kind::kWhole);
  EXPECT_EQ(Choose(RecordFormat::kRaw, "auto", true).kind, Kind::kWhole);
  EXPECT_EQ(Choose(RecordFormat::kInputIds, "auto", true).kind, Kind::kTokens);
  ExpectRefused([] { ParseLayoutChoice("x"); }, "instruction_answer, found 'x'");
}

TEST(PromptLayoutTest, WhatAnAdapterRecordsIsKeptForItsFormat) {
  const PromptLayout old = Choose(RecordFormat::kInstruction, "instruction_answer", false);
  EXPECT_EQ(Choose(RecordFormat::kInstruction, "auto", true, old), old);
  EXPECT_EQ(Choose(RecordFormat::kInstruction, "chat", true, old).kind, Kind::kChat);
  EXPECT_EQ(Choose(RecordFormat::kPromptCompletion, "auto", true, old).kind, Kind::kChat);
  const PromptLayout read = LayoutFromJson(LayoutToJson(old), "file");
  EXPECT_EQ(read, old);
  ExpectRefused([] { LayoutFromJson(OrderedJson::parse(R"({"kind": "new"})"), "q.json"); },
                "q.json: prompt_layout: the kind 'new'");
  ExpectRefused([] { LayoutFromJson(OrderedJson::parse(R"({"kind": 3})"), "q.json"); }, "not text");
  ExpectRefused([] { LayoutFromJson(OrderedJson::parse("[]"), "q.json"); }, "expected an object");
  ExpectRefused(
      [] {
        LayoutFromJson(OrderedJson::parse(R"({"kind": "text", "format": "alpaca"})"), "q.json");
      },
      "q.json: prompt_layout: the kind 'text' needs a prompt_template");
}

TEST(PromptLayoutTest, AlpacaTextHasAVariantForEachRecord) {
  const RecordLayout layout(Choose(RecordFormat::kInstruction, "text", false));
  const auto prompt = [&](const char* record) { return layout.Prompt(OrderedJson::parse(record)); };
  EXPECT_EQ(prompt(R"({"instruction": "Go."})"),
            std::string(kPreamble) + kRequest + "Go.\n\n### Response:\n");
  EXPECT_EQ(prompt(R"({"instruction": "Go.", "input": ""})"), prompt(R"({"instruction": "Go."})"));
  EXPECT_EQ(prompt(R"({"instruction": "Go.", "input": "x"})"),
            std::string(kPreamble) + ", paired with an input that provides further context" +
                kRequest + "Go.\n\n### Input:\nx\n\n### Response:\n");
  EXPECT_EQ(prompt(R"({"instruction": "Go.", "system": "Be kind."})"),
            "Be kind.\n\n### Instruction:\nGo.\n\n### Response:\n");
  EXPECT_EQ(DescribeLayout(layout.layout()), "Alpaca text");
}

TEST(PromptLayoutTest, AlpacaMessagesHaveSystemAndHistory) {
  const RecordLayout layout(Choose(RecordFormat::kInstruction, "auto", true));
  const Conversation whole = layout.WholeConversation(OrderedJson::parse(
      R"({"system": "S", "history": [["q", "a"]], "instruction": "Add", "input": "1", "output": "2"})"));
  EXPECT_EQ(whole.messages, OrderedJson::parse(R"([
      {"role": "system", "content": "S"}, {"role": "user", "content": "q"},
      {"role": "assistant", "content": "a"}, {"role": "user", "content": "Add\n1"},
      {"role": "assistant", "content": "2"}])"));
  EXPECT_EQ(whole.trained, (std::vector<bool>{false, false, true, false, true}));
  ExpectRefused(
      [&] {
        layout.WholeConversation(
            OrderedJson::parse(R"({"instruction": "a", "history": ["q"], "output": "b"})"));
      },
      "field 'history'");
}

TEST(PromptLayoutTest, ConditionsOfTemplates) {
  const FieldTemplate both("[[{?a}A]][[{!a}no A]] {b}[[{?a}{!c} a without c]]", "t");
  EXPECT_EQ(both.Render(OrderedJson::parse(R"({"a": "x", "b": "B"})")), "A B a without c");
  EXPECT_EQ(both.Render(OrderedJson::parse(R"({"a": "", "b": "B"})")), "no A B");
  EXPECT_EQ(both.Render(OrderedJson::parse(R"({"a": 1, "b": "B", "c": 2})")), "A B");
  EXPECT_EQ(both.main_field(), "b");
  EXPECT_TRUE(both.main_field_suffices());
  EXPECT_TRUE(both.Reads("c"));
  EXPECT_FALSE(FieldTemplate("{a}{b}", "t").main_field_suffices());
  ExpectRefused([] { FieldTemplate("{?a}", "t"); }, "t, column 1: a condition");
  ExpectRefused([] { FieldTemplate("[[{?}]]", "t"); }, "t, column 3");
}

// The trained prompt of a record, the prompt that is typed, and the chat template that is exported
// are one text.
class LayoutTextTest : public testing::Test {
 protected:
  static std::string Exported(const PromptLayout& layout, const Tokenizer& tokenizer,
                              const std::string& messages, bool prompt) {
    const std::string text = TemplateOfLayout(layout, tokenizer, nullptr, false, true);
    const ChatTemplate chat(text, tokenizer);
    const OrderedJson list = OrderedJson::parse(messages);
    return prompt ? chat.Prompt(list, nullptr) : chat.Render(list, nullptr).text();
  }
};

TEST_F(LayoutTextTest, OfTextsIsTheSameForEveryConsumer) {
  const Tokenizer tokenizer = MakeTestTokenizer();
  PromptLayout own{.kind = Kind::kText, .format = RecordFormat::kTemplate};
  own.prompt_template = "Q'\\ {{x}} [[({hint}) ]]{question}\n";
  own.completion_template = "{answer}!";
  for (const PromptLayout& layout :
       {Choose(RecordFormat::kInstruction, "text", false),
        Choose(RecordFormat::kInstruction, "instruction_answer", false),
        Choose(RecordFormat::kPromptCompletion, "text", false), own}) {
    SCOPED_TRACE(DescribeLayout(layout));
    const RecordLayout record(layout);
    const OrderedJson fields = {{record.main_field(), "It's a\n\"test\""},
                                {record.answer_field(), "Yes, {content}"}};
    const std::string trained = record.Prompt(fields);
    const PromptRenderer renderer(layout, tokenizer, nullptr);
    EXPECT_EQ(renderer.Prompt("It's a\n\"test\"", "").text, trained);
    EXPECT_EQ(renderer.PromptOf(fields).text, trained);
    const std::string user = R"({"role": "user", "content": "It's a\n\"test\""})";
    EXPECT_EQ(Exported(layout, tokenizer, "[" + user + "]", true), "<s>" + trained);
    EXPECT_EQ(renderer.Conversation(OrderedJson::parse("[" + user + "]"), nullptr).text, trained);
    EXPECT_EQ(
        Exported(layout, tokenizer,
                 "[" + user + R"(, {"role": "assistant", "content": "Yes, {content}"}])", false),
        "<s>" + trained + record.Completion(fields) + "</s>");
    EXPECT_EQ(EncodePrompt(tokenizer, renderer.PromptOf(fields)),
              Join({{kBos}, tokenizer.Encode(trained, false)}));
  }
}

TEST_F(LayoutTextTest, OfSystemTexts) {
  const Tokenizer tokenizer = MakeTestTokenizer();
  const PromptLayout layout = Choose(RecordFormat::kInstruction, "text", false);
  const PromptRenderer renderer(layout, tokenizer, nullptr);
  const std::string expected = "Be kind.\n\n### Instruction:\nGo.\n\n### Response:\n";
  EXPECT_EQ(renderer.Prompt("Go.", "Be kind.").text, expected);
  EXPECT_EQ(
      Exported(layout, tokenizer,
               R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Go."}])",
               true),
      "<s>" + expected);
  const PromptRenderer pairs(Choose(RecordFormat::kPromptCompletion, "text", false), tokenizer,
                             nullptr);
  ExpectRefused([&] { pairs.Prompt("Go.", "Be kind."); }, "no place for a system message");
}

TEST_F(LayoutTextTest, OfWholeTextsIsTheContent) {
  const Tokenizer tokenizer = MakeTestTokenizer();
  const PromptLayout layout = Choose(RecordFormat::kText, "auto", false);
  EXPECT_EQ(Exported(layout, tokenizer, R"([{"role": "user", "content": "Once"}])", true),
            "<s>Once");
  const ChatTemplate own("x", tokenizer);
  EXPECT_EQ(TemplateOfLayout(layout, tokenizer, &own, false, true), "") << "the model's own stays";
  EXPECT_EQ(TemplateOfLayout(layout, tokenizer, &own, true, true), "x");
  const PromptRenderer renderer(layout, tokenizer, nullptr);
  EXPECT_EQ(renderer.Prompt("Once", "").text, "Once");
  EXPECT_FALSE(renderer.has_layout());
  ExpectRefused([&] { renderer.Prompt("Once", "S"); }, "chat template");
  ExpectRefused([&] { renderer.PromptOf({{"text", "x"}}); }, "text as it is");
}

TEST_F(LayoutTextTest, PromptsOfSeveralFieldsAreRecords) {
  const Tokenizer tokenizer = MakeTestTokenizer();
  const PromptLayout layout{.kind = Kind::kText,
                            .format = RecordFormat::kTemplate,
                            .prompt_template = "{a} {b}:",
                            .completion_template = "{c}"};
  const PromptRenderer renderer(layout, tokenizer, nullptr);
  EXPECT_EQ(renderer.PromptOf({{"a", "x"}, {"b", "y"}}).text, "x y:");
  ExpectRefused([&] { renderer.Prompt("x", ""); }, "--record");
  ExpectRefused([&] { renderer.PromptOf({{"a", "x"}}); }, "field 'b' is missing");
  ExpectRefused(
      [&] {
        renderer.PromptOf({{"a", {{"x", 1}}}, {"b", "x"}});
      },
      "field 'a': expected text, found object; templates read the fields of the record");
  EXPECT_EQ(TemplateOfLayout(layout, tokenizer, nullptr, false, true), "");
}

TEST(PromptEncodingTest, ATextWithBosGetsNoSecondOne) {
  const Tokenizer tokenizer = MakeTestTokenizer();
  EXPECT_EQ(EncodePrompt(tokenizer, {.text = "<s>x"}), Join({{kBos}, Bytes("x")}));
  EXPECT_EQ(EncodePrompt(tokenizer, {.text = "x"}), Join({{kBos}, Bytes("x")}));
  EXPECT_EQ(EncodePrompt(tokenizer, {.text = "x", .add_special_tokens = false}), Bytes("x"));
}

TEST(TurnTemplateTest, BuiltInTemplatesAreListedAndLoad) {
  const Tokenizer tokenizer = MakeTestTokenizer();
  EXPECT_GE(TurnPieceNames().size(), 11U);
  for (const std::string_view name : TurnPieceNames()) {
    const auto chat =
        LoadChatTemplate({.chat_template = std::string(name)}, tokenizer, ChatClock::kFixed);
    const OrderedJson talk = {{{"role", "user"}, {"content", "u"}},
                              {{"role", "assistant"}, {"content", "v"}}};
    const RenderedConversation rendered = chat->Render(talk, nullptr);
    ASSERT_EQ(rendered.turns().size(), 1U) << name;
    const ChatSpan span = rendered.turns()[0];
    EXPECT_NE(rendered.text().substr(span.begin, span.end - span.begin).find('v'),
              std::string::npos);
    EXPECT_TRUE(rendered.text().starts_with(chat->Prompt(OrderedJson::array({talk[0]}), nullptr)))
        << name;
    OrderedJson tool = talk;
    tool[1]["role"] = "tool";
    ExpectRefused([&] { chat->Render(tool, nullptr); }, "in this layout");
  }
}

// What training prints to try the adapter.
class PromptExampleTest : public testing::Test {
 protected:
  PromptExample Of(const std::string& name, const std::string& text, DataOptions options = {}) {
    options.sources = {folder_.Write(name, text)};
    const Dataset data = Dataset::Open(options, tokenizer_, chat_.get());
    return FindPromptExample(data, tokenizer_);
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  std::unique_ptr<ChatTemplate> chat_;
  DataFolder folder_;
};

TEST_F(PromptExampleTest, PrefersWhatAPersonTypes) {
  EXPECT_EQ(Of("d.jsonl",
               "{\"instruction\": \"Add.\", \"input\": \"1 2\", \"output\": \"3\"}\n"
               "{\"instruction\": \"Go.\", \"output\": \"Gone\"}\n")
                .prompt,
            "Go.");
  const PromptExample record =
      Of("d.jsonl", R"({"instruction": "Add.", "input": "1 2", "output": "3", "id": 7})");
  EXPECT_EQ(record.prompt, "");
  EXPECT_EQ(record.record, R"({"instruction":"Add.","input":"1 2"})");
  const PromptExample system =
      Of("d.jsonl", R"({"instruction": "Go.", "system": "Be kind.", "output": "3"})");
  EXPECT_EQ(system.prompt, "Go.");
  EXPECT_EQ(system.system, "Be kind.");
}

TEST_F(PromptExampleTest, LineBreaksAndControlCharactersAreWrittenAsJson) {
  const PromptExample example = Of("d.jsonl", R"({"prompt": "a\nb", "completion": "c"})");
  EXPECT_EQ(example.prompt, "");
  EXPECT_EQ(example.record, R"({"prompt":"a\nb"})");
}

TEST_F(PromptExampleTest, ADashIsStandardInputSoItIsWrittenAsARecord) {
  const PromptExample example = Of("d.jsonl", R"({"prompt": "-", "completion": "c"})");
  EXPECT_EQ(example.prompt, "");
  EXPECT_EQ(example.record, R"({"prompt":"-"})");
}

TEST_F(PromptExampleTest, OfTextsAndTokens) {
  EXPECT_EQ(Of("d.jsonl", R"({"text": "Once upon a time there was a bear."})").prompt,
            "Once upon a");
  EXPECT_EQ(Of("d.txt", "Once upon a time there was a bear.").prompt, "Once upon a");
  const PromptExample tokens =
      Of("d.jsonl",
         R"({"input_ids": [0, 124, 125, 126, 127, 1], "labels": [-100, -100, -100, 126, 127, 1]})");
  EXPECT_EQ(tokens.prompt, "<s>xy");
  EXPECT_TRUE(tokens.raw);
  EXPECT_FALSE(Of("d.jsonl", R"({"prompt": ")" + std::string(400, 'x') + R"(", "completion": "c"})")
                   .found());
}

TEST_F(PromptExampleTest, OfConversations) {
  chat_ = LoadChatTemplate({.chat_template = "plain"}, tokenizer_, ChatClock::kFixed);
  const PromptExample two =
      Of("d.jsonl",
         R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}, )"
         R"({"role": "assistant", "content": "Hello"}]})");
  EXPECT_EQ(two.prompt, "Hi");
  EXPECT_EQ(two.system, "S");
  const PromptExample turns =
      Of("d.jsonl",
         R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, )"
         R"({"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]})");
  EXPECT_EQ(turns.record,
            R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
            R"({"role":"user","content":"c"}]})");
  const PromptExample alpaca =
      Of("d.jsonl", R"({"instruction": "Add.", "input": "", "output": "3"})");
  EXPECT_EQ(alpaca.prompt, "Add.");
}

}  // namespace
}  // namespace qlora
