// What of a record is not shown or not trained is named, in each record; which answers are trained,
// and up to where, when a template strips thoughts or closes a text.
#include "data/audit/text_audit.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "data/data_test_util.h"
#include "data/dataset_report.h"
#include "prompt/chat_template.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class TextAuditTest : public testing::Test {
 protected:
  // What is found in one record.
  std::vector<std::string> Found(const ChatTemplate& chat, const std::string& record) {
    const std::string line = OrderedJson::parse(record).dump();
    const Dataset data = Dataset::Open(folder_.With("d.jsonl", line), tokenizer_, &chat);
    std::vector<std::string> found;
    for (const DataFinding& one : data.report().findings) found.push_back(one.what);
    return found;
  }
  static std::string Trained(const Dataset& data, std::int64_t sample, const Tokenizer& tokenizer) {
    Ids trained;
    for (const std::int32_t label : data.Get(sample).labels) {
      if (label != kIgnoreLabel) trained.push_back(label);
    }
    return tokenizer.Decode(trained, /*skip_special_tokens=*/false);
  }
  static bool Warns(const Dataset& data, std::string_view part) {
    return CountsToJson(data.report()).dump().find(part) != std::string::npos;
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  const ChatTemplate reasoning_{ReadFixture("chat/reasoning.jinja"), tokenizer_};
  DataFolder folder_;
};

constexpr const char* kFields =
    R"({"messages": [{"role": "user", "content": "a"}, )"
    R"({"role": "assistant", "reasoning_content": "why b", "content": "b"}, )"
    R"({"role": "user", "content": "c"}, )"
    R"({"role": "assistant", "reasoning_content": "why d", "content": "d"}]})";
constexpr const char* kTags =
    R"({"messages": [{"role": "user", "content": "a"}, )"
    R"({"role": "assistant", "content": "<think>\nwhy b\n</think>\n\nb"}, )"
    R"({"role": "user", "content": "c"}, )"
    R"({"role": "assistant", "content": "<think>\nwhy d\n</think>\n\nd"}]})";
constexpr const char* kNoThoughts =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
    R"({"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";
constexpr const char* kWarning = "whose thoughts the chat template leaves out";

TEST_F(TextAuditTest, AConversationThatNobodyAnswersIsNamed) {
  const auto unanswered =
      ElementsAre(StartsWith("conversations that end with a message that nobody"));
  const std::string begin = R"({"messages": [{"role": "user", "content": "a"}, )"
                            R"({"role": "assistant", "content": "b"})";
  const std::string end = R"(, {"role": "user", "content": "c"}], "gold": "d"})";
  EXPECT_THAT(Found(reasoning_, begin + "]}"), IsEmpty());
  EXPECT_THAT(Found(reasoning_, begin + end), unanswered);
  // Nothing is trained: the error says the same, and which field is not read.
  try {
    Found(reasoning_, R"({"messages": [{"role": "user", "content": "c"}], "gold": "d"})");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("conversations that end with a message that nobody"));
    EXPECT_THAT(error.what(), EndsWith("; the field 'gold' is not read"));
  }
}

TEST_F(TextAuditTest, AnswerWithoutItsThoughtsIsNotTrained) {
  for (const char* record : {kFields, kTags}) {
    SCOPED_TRACE(record);
    DataOptions options = folder_.With("d.jsonl", record);
    const Dataset all = Dataset::Open(options, tokenizer_, &reasoning_);
    EXPECT_EQ(Trained(all, 0, tokenizer_), "why d\n</think>\n\nd<|im_end|>");
    EXPECT_TRUE(Warns(all, kWarning));
    options.train_turns = TrainTurns::kEach;
    const Dataset each = Dataset::Open(options, tokenizer_, &reasoning_);
    ASSERT_EQ(each.size(), 2);
    EXPECT_EQ(Trained(each, 0, tokenizer_), "why b\n</think>\n\nb<|im_end|>");
    EXPECT_EQ(Trained(each, 1, tokenizer_), "why d\n</think>\n\nd<|im_end|>");
    EXPECT_FALSE(Warns(each, kWarning));
  }
}

TEST_F(TextAuditTest, AnswersThatAreAllAlikeAreTrained) {
  const Dataset plain =
      Dataset::Open(folder_.With("d.jsonl", kNoThoughts), tokenizer_, &reasoning_);
  EXPECT_EQ(Trained(plain, 0, tokenizer_), "b<|im_end|>\n</think>\n\nd<|im_end|>");
  EXPECT_FALSE(Warns(plain, kWarning));
  const ChatTemplate never(
      "{% for m in messages %}{{ m.role }}:{{ m.content.split('</think>')[-1] | trim }}</s>"
      "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
      tokenizer_);
  for (const char* record : {kFields, kTags}) {
    const Dataset data = Dataset::Open(folder_.With("d.jsonl", record), tokenizer_, &never);
    EXPECT_EQ(Trained(data, 0, tokenizer_), "b</s>d</s>");
    EXPECT_FALSE(Warns(data, kWarning));
  }
}

// A template may end the text with a token that no answer has, and mark a line end as the answer's.
TEST_F(TextAuditTest, NothingBehindTheStopTokenIsTrained) {
  const ChatTemplate closes(
      "{% for m in messages %}{{ m.content + ('|' if m.role == 'user' else eos_token) }}{% endfor "
      "%}"
      "{{ '<|im_end|>' if not add_generation_prompt }}",
      tokenizer_);
  EXPECT_EQ(Trained(Dataset::Open(folder_.With("d.jsonl", kNoThoughts), tokenizer_, &closes), 0,
                    tokenizer_),
            "b</s>d</s>");
  EXPECT_EQ(closes.turn_end(), kEos);
  const ChatTemplate marks(
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}|{% else %}"
      "{% generation %}{{ m.content + eos_token + '\\n' }}{% endgeneration %}{% endif %}"
      "{% endfor %}",
      tokenizer_);
  EXPECT_EQ(Trained(Dataset::Open(folder_.With("d.jsonl", kNoThoughts), tokenizer_, &marks), 0,
                    tokenizer_),
            "b</s>d</s>");
  EXPECT_EQ(marks.turn_end(), kEos);
}

// Earlier answers of the template "harmony" are closed by a token that ends no answer.
TEST_F(TextAuditTest, OpenEndIsNotTrained) {
  const Tokenizer tokenizer = MakeTestTokenizer(
      {.special = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"}});
  const ChatTemplate harmony(ReadFixture("chat/harmony.jinja"), tokenizer);
  const Dataset data = Dataset::Open(folder_.With("d.jsonl", kNoThoughts), tokenizer, &harmony);
  EXPECT_EQ(Trained(data, 0, tokenizer),
            "<|channel|>final<|message|>b<|channel|>final<|message|>d<|return|>");
}

// Shows contents, thoughts beside calls alone, and calls; nothing else.
constexpr const char* kShows =
    "{% for m in messages %}{{ m.role[0] }}:"
    "{% if m.tool_calls and m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}>{% endfor %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}";

TEST_F(TextAuditTest, EachRecordIsLookedAt) {
  const std::string call = R"("tool_calls": [{"function": {"name": "f", "arguments": {"k": 1}}}])";
  const std::string lines =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", )"
      R"("reasoning_content": "I need f.", )" +
      call + "}]}\n" +
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x", )"
      R"("reasoning_content": "I count the ropes."}]})";
  const ChatTemplate chat(kShows, tokenizer_);
  const Dataset data = Dataset::Open(folder_.With("d.jsonl", lines), tokenizer_, &chat);
  ASSERT_EQ(data.report().findings.size(), 1U);
  const DataFinding& one = data.report().findings[0];
  EXPECT_THAT(one.what, StartsWith("messages[].reasoning_content: thoughts"));
  EXPECT_EQ(one.records, 1);
  EXPECT_THAT(one.first, EndsWith("d.jsonl:2"));
  EXPECT_EQ(one.quote, "I count the ropes.");
  EXPECT_THAT(WarnOfFindings(data.report())[0], HasSubstr("d.jsonl:2: 'I count the ropes.')"));
}

TEST_F(TextAuditTest, AVerdictThatNothingReadsIsNamed) {
  const auto named = ElementsAre(HasSubstr("preference_loss kto trains on both"));
  EXPECT_THAT(Found(reasoning_, R"({"prompt": "a", "completion": "b", "label": false})"), named);
  EXPECT_THAT(Found(reasoning_, R"({"messages": [{"role": "user", "content": "a"},
                                   {"role": "assistant", "content": "b"}], "kto_tag": 1})"),
              named);
  // The number of a class, and what is said of a text, are no verdicts on answers.
  EXPECT_THAT(Found(reasoning_, R"({"prompt": "a", "completion": "b", "label": 3})"), IsEmpty());
  EXPECT_THAT(Found(reasoning_, R"({"text": "a", "label": true})"), IsEmpty());
}

TEST_F(TextAuditTest, ATextIsAtAPlaceOfItsOwn) {
  // The second question is not shown; the first one says the same.
  const ChatTemplate chat(
      "{% for m in messages %}{% if m.role == 'assistant' or loop.first %}{{ m.content }}"
      "{{ eos_token }}{% endif %}{% endfor %}",
      tokenizer_);
  EXPECT_THAT(Found(chat, R"({"messages": [{"role": "user", "content": "Go on."},
                               {"role": "assistant", "content": "One."},
                               {"role": "user", "content": "Go on."},
                               {"role": "assistant", "content": "Two."}]})"),
              ElementsAre(StartsWith("messages[].content of the role user: texts")));
  // An answer that is shown where the user speaks is none.
  const ChatTemplate moves(
      "{{ messages[0].content }}{{ messages[1].content }}|{% for m in messages if m.role == "
      "'assistant' %}{% generation %}x{{ eos_token }}{% endgeneration %}{% endfor %}",
      tokenizer_);
  EXPECT_THAT(Found(moves, R"({"messages": [{"role": "user", "content": "How many ropes?"},
                                {"role": "assistant", "content": "Ninety ropes."}]})"),
              ElementsAre(AllOf(HasSubstr("of the role assistant"), HasSubstr("not trained on"))));
}

TEST_F(TextAuditTest, ATextThatIsCutOrShownOnceOfTwiceIsNamed) {
  const auto chat = [this](const std::string& said) {
    return ChatTemplate("{% for m in messages %}" + said +
                            "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
                        tokenizer_);
  };
  const std::string record = R"({"messages": [
      {"role": "user", "content": "How high is the tide in Brest?"},
      {"role": "assistant", "content": "Four metres, and it is rising fast."},
      {"role": "user", "content": "How high is the tide in Brest?"},
      {"role": "assistant", "content": "Four metres, and it is rising fast."}]})";
  EXPECT_THAT(Found(chat("{{ m.role }}:{{ m.content }}{{ eos_token }}"), record), IsEmpty());
  for (const char* cut : {"[:12]", "[12:]", "[:-3]", ".split(' ')[0]"}) {
    EXPECT_THAT(
        Found(chat(std::string("{{ m.role }}:{{ m.content") + cut + " }}{{ eos_token }}"), record),
        ElementsAre(HasSubstr("of the role assistant"), HasSubstr("of the role user")))
        << cut;
  }
  EXPECT_THAT(
      Found(chat("{% if loop.index0 < 2 or m.content != messages[loop.index0 - 2].content %}"
                 "{{ m.role }}:{{ m.content }}{{ eos_token }}{% endif %}"),
            record),
      ElementsAre(AllOf(HasSubstr("of the role assistant"), HasSubstr("part")),
                  HasSubstr("more often than the chat template shows them")));
  // What the assistant did not write is not to be learnt.
  EXPECT_THAT(Found(chat("{{ m.role }}:{% if m.role == 'assistant' %}"
                         "{{ messages[loop.index0 - 1].content }} {% endif %}{{ m.content }}"
                         "{{ eos_token }}"),
                    record),
              ElementsAre(AllOf(HasSubstr("of the role user"), HasSubstr("trained on as if"))));
  EXPECT_THAT(
      Found(chat("{{ m.get('name') }} {{ m.role }}:{{ m.content }}{{ eos_token }}"), record),
      Contains(HasSubstr("shows None")));
}

TEST_F(TextAuditTest, OtherWritingsOfATextCount) {
  const ChatTemplate writes(
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content | upper | tojson }}{{ eos_token }}"
      "{% endfor %}{% if add_generation_prompt %}a:{% endif %}",
      tokenizer_);
  EXPECT_THAT(Found(writes, R"({"messages": [{"role": "user", "content": "is \"it\"\n\né so?"},
                                 {"role": "assistant", "content": "yes"}]})"),
              IsEmpty());
  const ChatTemplate cuts(
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content.split('</think>')[-1] }}"
      "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}",
      tokenizer_);
  EXPECT_THAT(
      Found(cuts, R"({"messages": [{"role": "user", "content": "q"},
                               {"role": "assistant", "content": "<think>\nwhy\n</think>\nb"}]})"),
      ElementsAre(StartsWith("messages[].content: thoughts that the chat template leaves")));
}

TEST_F(TextAuditTest, IdsAndNamesOfCallsAreNoTexts) {
  const ChatTemplate chat(kShows, tokenizer_);
  const std::string calls =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null,
          "tool_calls": [{"id": "c1", "type": "function",
                          "function": {"name": "f", "arguments": "{\"k\": 1}"}}]},
         {"role": "tool", "name": "f", "tool_call_id": ")";
  EXPECT_THAT(
      Found(chat, calls + R"(c1", "content": "r"}, {"role": "assistant", "content": "x"}]})"),
      IsEmpty());
  EXPECT_THAT(
      Found(chat, calls + R"(c2", "content": "r"}, {"role": "assistant", "content": "x"}]})"),
      ElementsAre(StartsWith("tool_call_id: results of tools with the id of no call")));
}

TEST_F(TextAuditTest, ACallBehindAThoughtIsTakenApart) {
  const ChatTemplate calls(
      "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% if m.reasoning_content %}"
      "({{ m.reasoning_content }}){% endif %}{% for c in m.tool_calls or [] %}"
      "[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
      "{{ m.content or '' }}</s>{% else %}<u>{{ m.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<a>{% endif %}",
      tokenizer_);
  const std::string record =
      R"({"conversations": [{"from": "human", "value": "Tide at Brest?"},)"
      R"({"from": "function_call", "value": "<think>\nLook it up.\n</think>\n)"
      R"({\"name\": \"tide\", \"arguments\": {\"harbour\": \"Brest\"}}"},)"
      R"({"from": "observation", "value": "4 m"}, {"from": "gpt", "value": "Four."}]})";
  EXPECT_THAT(Found(calls, record), IsEmpty());
  EXPECT_THAT(Found(ChatTemplate(ReadFixture("chat/chatml.jinja"), tokenizer_), record),
              testing::Contains(StartsWith("conversations[].value: thoughts")));
}

TEST_F(TextAuditTest, TextsThatAreWrittenInAnotherFormAreFound) {
  const std::string pair = R"({"prompt": "How many masts?", "completion": "Three masts.", )";
  const std::string turns = R"([[\"How many ropes?\", \"Ninety ropes.\"]])";
  const ChatTemplate chat(kShows, tokenizer_);
  EXPECT_THAT(Found(chat, pair + R"("history": ")" + turns + R"("})"), IsEmpty());
  EXPECT_THAT(
      Found(chat, R"({"messages": [{"role": " User", "content": {"text": "How many ropes?"}}, )"
                  R"({"role": "ASSISTANT ", "content": {"type": "text", "text": "Ninety."}}]})"),
      IsEmpty());
}

TEST_F(TextAuditTest, APartOfTheConversationIsUsedOrRefused) {
  const ChatTemplate chat(kShows, tokenizer_);
  const auto open = [&](const std::string& record) {
    return Dataset::Open(folder_.With("d.jsonl", record), tokenizer_, &chat).report();
  };
  for (const char* field : {"context", "history", "System", "answer", "instruction", "tools",
                            "rationale", "summary", "choices", "target", "inputText"}) {
    ExpectRefused(
        [&] {
          open(R"({"text": "a story of ropes", ")" + std::string(field) + R"(": "of masts"})");
        },
        std::string("field '") + field + "' reads like a part of the conversation");
  }
  // A copy of what is used says nothing new.
  const std::string talk = R"("messages": [{"role": "user", "content": "How many ropes?"},
                                           {"role": "assistant", "content": "Ninety ropes."}]})";
  EXPECT_EQ(open(R"({"prompt": "How many ropes?", )" + talk).files[0].fields, "not read: prompt");
  ExpectRefused([&] { open(R"({"prompt": "How many masts?", )" + talk); }, "field 'prompt'");
  ExpectRefused([&] { open(R"({"text": "How many ropes?", "input": "Ninety masts.", )" + talk); },
                "field 'input'");
  // Nor does a text that holds all that is used, as other programs lay it out.
  const std::string laid_out = R"({"text": "Q: How many ropes?\nA: Ninety ropes.", )";
  EXPECT_EQ(open(laid_out + talk).files[0].fields, "not read: text");
  EXPECT_EQ(open(laid_out + R"("system": "", )" + talk).files[0].fields, "not read: text");
  EXPECT_EQ(open(laid_out + R"("question": "How many ropes?", "completion": "Ninety ropes."})")
                .files[0]
                .format,
            "text");
  ExpectRefused([&] { open(R"({"text": "Q: How many ropes?", "system": "Count.", )" + talk); },
                "field 'text'");
  DataOptions options = folder_.With("d.jsonl", R"({"prompt": "How many masts?", )" + talk);
  options.ignore_fields = {"prompt"};
  EXPECT_EQ(Dataset::Open(options, tokenizer_, &chat).size(), 1);
}

}  // namespace
}  // namespace qlora
