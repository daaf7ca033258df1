// Which answers are trained, and up to where, when a template strips thoughts or closes a text;
// what it costs to see what a text leaves out.
#include "data/left_out.h"

#include <nlohmann/json.hpp>

#include "data/data_test_util.h"
#include "data/dataset_report.h"
#include "prompt/chat_template.h"

namespace qlora {
namespace {

class LeftOutTest : public testing::Test {
 protected:
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

TEST_F(LeftOutTest, AnswerWithoutItsThoughtsIsNotTrained) {
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

TEST_F(LeftOutTest, AnswersThatAreAllAlikeAreTrained) {
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
TEST_F(LeftOutTest, NothingBehindTheStopTokenIsTrained) {
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
TEST_F(LeftOutTest, OpenEndIsNotTrained) {
  const Tokenizer tokenizer = MakeTestTokenizer(
      {.special = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"}});
  const ChatTemplate harmony(ReadFixture("chat/harmony.jinja"), tokenizer);
  const Dataset data = Dataset::Open(folder_.With("d.jsonl", kNoThoughts), tokenizer, &harmony);
  EXPECT_EQ(Trained(data, 0, tokenizer),
            "<|channel|>final<|message|>b<|channel|>final<|message|>d<|return|>");
}

TEST_F(LeftOutTest, FieldsAreLookedForOnceInAllRecords) {
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}</s>{% endgeneration %}"
      "{% endfor %}",
      tokenizer_);
  ReadFields read;
  const auto unread = [&](const char* fields, std::int64_t renderings) {
    RenderedConversation rendered(
        chat, ConversationOfMessages(OrderedJson::parse(
                  std::string(R"({"messages": [{"role": "user", "content": "a"}, )") +
                  R"({"role": "assistant", "content": "b")" + fields + "}]}")));
    SampleNotes notes;
    NoteLeftOut(rendered, read, notes);
    EXPECT_EQ(rendered.renderings(), renderings) << fields;
    return notes.unread_fields;
  };
  EXPECT_EQ(unread("", 1), std::vector<std::string>());
  const char* two = R"(, "reasoning_content": "y", "audio": {"id": 1}, "refusal": null)";
  EXPECT_EQ(unread(two, 2), (std::vector<std::string>{"reasoning_content", "audio"}))
      << "one rendering without all of the fields";
  read.Add("audio");
  read.Add("reasoning_content");
  EXPECT_EQ(unread(two, 1), std::vector<std::string>());
}

}  // namespace
}  // namespace qlora
