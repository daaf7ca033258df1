#include "task/task_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TaskFile Choices(OrderedJson text, OrderedJson target, OrderedJson choice) {
  TaskFile task;
  task.doc_to_text = std::move(text);
  task.doc_to_target = std::move(target);
  task.doc_to_choice = std::move(choice);
  return task;
}

TEST(TaskFieldTest, TakesColumnsTextsAndLists) {
  const OrderedJson record = {{"q", "What?"}, {"n", 2}, {"list", {"a", "it's"}}};
  const auto fill = [&](const OrderedJson& spec, Reading reading = {true, true}) {
    return TaskField(spec, "key").Fill(record, reading).dump();
  };
  EXPECT_EQ(fill("q"), R"("What?")");
  EXPECT_EQ(fill("n"), "2");
  EXPECT_EQ(fill("{{n}}"), "2");
  EXPECT_EQ(fill("{{n}}", {}), R"("2")");
  EXPECT_EQ(fill("{{list}}"), R"(["a","it's"])");
  EXPECT_EQ(fill("{{list}}", {.digits = true}), R"("['a', \"it's\"]")");
  EXPECT_EQ(fill({"{{q}}", "b", 3}), R"(["What?","b",3])");
  EXPECT_EQ(fill("{% if n %}\n  x\n{% endif %}\n"), R"("\n  x\n\n")");  // no trim_blocks
  EXPECT_EQ(fill("{{q | regex_replace('[Ww]h(a)t', '<$1>')}}"), R"("<$1>?")");
}

// Choices that are letters stay letters where a record has fields of these names.
TEST(TaskFieldTest, TakesNoColumnsForTheItemsOfAList) {
  const OrderedJson record = {{"A", "an answer"}, {"B", "another"}};
  EXPECT_EQ(TaskField({"A", "B"}, "key").Fill(record, {}), OrderedJson({"A", "B"}));
  EXPECT_EQ(TaskField({"{{A}}", "B"}, "key").Fill(record, {}), OrderedJson({"an answer", "B"}));
}

TEST(TaskFieldTest, RefusesGroupsInAReplacement) {
  const TaskField field("{{q | regex_replace('(a)', '<\\\\1>')}}", "doc_to_text");
  try {
    field.Fill({{"q", "a"}}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("regex_replace: groups and escapes"));
  }
}

TEST(TaskFieldTest, RefusesUndefinedNames) {
  const TaskField field("{{missing}}", "doc_to_text");
  EXPECT_THROW(field.Fill(OrderedJson::object(), {}), Error);
  const TaskField condition("{% if missing %}a{% endif %}", "doc_to_text");
  EXPECT_THROW(condition.Fill(OrderedJson::object(), {}), Error);
  const TaskField given("{{missing is defined}}", "doc_to_text");
  EXPECT_EQ(given.Fill(OrderedJson::object(), {}), "False");
}

TEST(TaskReaderTest, FindsTheRightChoice) {
  const OrderedJson record = {{"q", "Q"}, {"label", "B"}, {"names", {"A", "B"}}};
  const TaskFile by_index = Choices("{{q}}:", "{{names.index(label)}}", "{{names}}");
  TaskDocument document = TaskReader(by_index).Read(record);
  EXPECT_EQ(document.text, "Q:");
  EXPECT_THAT(document.choices, ElementsAre("A", "B"));
  EXPECT_THAT(document.gold, ElementsAre(1));
  EXPECT_EQ(document.target, "B");

  const TaskFile by_text = Choices("q", "label", "names");
  EXPECT_THAT(TaskReader(by_text).Read(record).gold, ElementsAre(1));
}

TEST(TaskReaderTest, TakesChoicesAsContextsWhereTheTextIsANumber) {
  const OrderedJson record = {{"answer", 1}, {"rest", "is big."}, {"names", {"An ant", "A cow"}}};
  const TaskDocument document = TaskReader(Choices("answer", "rest", "names")).Read(record);
  EXPECT_TRUE(document.has_contexts);
  EXPECT_THAT(document.gold, ElementsAre(1));
  EXPECT_EQ(document.target, "is big.");
}

TEST(TaskReaderTest, RefusesAnAnswerThatIsNoChoice) {
  const OrderedJson record = {{"q", "Q"}, {"label", "C"}, {"names", {"A", "B"}}};
  try {
    TaskReader(Choices("q", "label", "names")).Read(record);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"C\" is none of the 2 choices"));
  }
}

TEST(TaskReaderTest, SaysWhatFieldsAreFor) {
  const OrderedJson record = {{"q", "Q"}, {"label", "C"}};
  const auto error = [&](const TaskFile& task) {
    try {
      TaskReader(task).Read(record);
    } catch (const Error& thrown) {
      return std::string(thrown.what());
    }
    return std::string();
  };
  EXPECT_THAT(error(Choices("q", "label", "q")),
              HasSubstr("doc_to_choice: expected a list of texts, found \"Q\"; name a column"));
  EXPECT_THAT(error(Choices("q", "label", nullptr)),
              HasSubstr("doc_to_choice: missing; a multiple choice needs its choices: expected"));
  EXPECT_THAT(error(Choices("q", nullptr, "q")),
              HasSubstr("doc_to_target: missing; expected the number or the text of the right"));
}

// A prompt that looks like a list of Python is a text.
TEST(TaskReaderTest, KeepsBracketsOfAPrompt) {
  TaskFile task;
  task.kind = TaskKind::kGenerate;
  task.doc_to_text = "{{q}}";
  task.doc_to_target = "{{a}}";
  const TaskDocument document = TaskReader(task).Read({{"q", "[1, 2]"}, {"a", "7"}});
  EXPECT_EQ(document.text, "[1, 2]");
  EXPECT_EQ(document.target, "7");
}

TEST(TaskReaderTest, RefusesATextWithoutTokens) {
  TaskFile task;
  task.kind = TaskKind::kRolling;
  task.doc_to_target = "{{text}}";
  EXPECT_EQ(TaskReader(task).Read({{"text", "['a']"}}).target, "['a']");
  EXPECT_THROW(TaskReader(task).Read({{"text", ""}}), Error);
}

TEST(HellaswagTest, TakesMarkupOutOfTexts) {
  const OrderedJson record = HellaswagRecord({{"activity_label", "Roof"},
                                              {"ctx_a", "A man [title] sits."},
                                              {"ctx_b", "HE starts"},
                                              {"endings", {" to [step] run.", "x"}},
                                              {"label", "1"}});
  EXPECT_EQ(record["query"], "Roof: A man. sits. He starts");
  EXPECT_EQ(record["choices"][0], "to run.");
  EXPECT_EQ(record["gold"], 1);
}

}  // namespace
}  // namespace qlora
