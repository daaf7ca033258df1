#include "preference/preference_record.h"

#include <gtest/gtest.h>

#include <string>

#include "io/test_util.h"

namespace qlora {
namespace {

PreferenceRecord Read(const std::string& json) {
  return ReadPreferenceRecord(OrderedJson::parse(json));
}

// The answers of a record, as JSON texts.
std::vector<std::string> AnswersOf(const std::string& json) {
  std::vector<std::string> answers;
  for (const OrderedJson& answer : Read(json).answers) answers.push_back(answer.dump());
  return answers;
}

using Texts = std::vector<std::string>;

TEST(PreferenceRecordTest, ReadsTexts) {
  EXPECT_EQ(AnswersOf(R"({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."})"),
            (Texts{R"({"prompt":"The sky is","completion":" blue."})",
                   R"({"prompt":"The sky is","completion":" green."})"}));
  const std::string whole = R"({"chosen": "The sky is blue.", "rejected": "The sky is green."})";
  EXPECT_EQ(AnswersOf(whole),
            (Texts{R"({"text":"The sky is blue."})", R"({"text":"The sky is green."})"}));
  EXPECT_TRUE(Read(whole).implicit);
  EXPECT_EQ(AnswersOf(R"({"instruction": "Hi", "input": "", "chosen": "Hello", "rejected": "No"})"),
            (Texts{R"({"instruction":"Hi","input":"","output":"Hello"})",
                   R"({"instruction":"Hi","input":"","output":"No"})"}));
  EXPECT_EQ(AnswersOf(R"({"system": "S", "question": "Hi", "chosen": "Hello", "rejected": "No"})"),
            (Texts{R"({"system":"S","prompt":"Hi","completion":"Hello"})",
                   R"({"system":"S","prompt":"Hi","completion":"No"})"}));
  EXPECT_EQ(
      AnswersOf(R"({"instruction": "Hi", "chosen_response": "A", "rejected_response": "B"})"),
      (Texts{R"({"instruction":"Hi","output":"A"})", R"({"instruction":"Hi","output":"B"})"}));
}

constexpr const char* kHi = R"({"role":"user","content":"Hi"})";
constexpr const char* kGood = R"({"role":"assistant","content":"Hello"})";
constexpr const char* kBad = R"({"role":"assistant","content":"No"})";

TEST(PreferenceRecordTest, ReadsConversations) {
  const auto pair = [](const std::string& before, const std::string& after) {
    const std::string prompt = std::string("\"prompt\":[") + kHi + "]";
    return Texts{"{" + before + prompt + ",\"completion\":[" + kGood + "]" + after + "}",
                 "{" + before + prompt + ",\"completion\":[" + kBad + "]" + after + "}"};
  };
  const std::string hi = kHi;
  const std::string good = kGood;
  const std::string bad = kBad;
  const Texts plain = pair("", "");
  // An explicit prompt, the messages repeated or not; no prompt; a text that the lists repeat.
  EXPECT_EQ(AnswersOf(R"({"prompt":[)" + hi + R"(],"chosen":[)" + good + R"(],"rejected":[)" + bad +
                      "]}"),
            plain);
  EXPECT_EQ(AnswersOf(R"({"prompt":[)" + hi + R"(],"chosen":[)" + hi + "," + good +
                      R"(],"rejected":[)" + hi + "," + bad + "]}"),
            plain);
  const std::string lists =
      R"("chosen":[)" + hi + "," + good + R"(],"rejected":[)" + hi + "," + bad + "]}";
  EXPECT_EQ(AnswersOf("{" + lists), plain);
  EXPECT_EQ(AnswersOf(R"({"prompt":"Hi",)" + lists), plain);
  // Messages, and one message or text for each side.
  EXPECT_EQ(
      AnswersOf(R"({"messages":[)" + hi + R"(],"chosen":)" + good + R"(,"rejected":)" + bad + "}"),
      plain);
  EXPECT_EQ(AnswersOf(R"({"messages":[)" + hi + "," + good + R"(],"rejected_response":"No"})"),
            plain);
  EXPECT_EQ(AnswersOf(R"({"input":{"messages":[)" + hi +
                      R"(],"tools":[],"parallel_tool_calls":true},"preferred_output":[)" + good +
                      R"(],"non_preferred_output":[)" + bad + "]}"),
            pair("\"tools\":[],", ""));
  EXPECT_EQ(AnswersOf(R"({"conversations":[{"from":"human","value":"Hi"}],)"
                      R"("chosen":{"from":"gpt","value":"Hello"},)"
                      R"("rejected":{"from":"gpt","value":"No"}})"),
            (Texts{R"({"prompt":[{"from":"human","value":"Hi"}],)"
                   R"("completion":[{"from":"gpt","value":"Hello"}]})",
                   R"({"prompt":[{"from":"human","value":"Hi"}],)"
                   R"("completion":[{"from":"gpt","value":"No"}]})"}));
}

TEST(PreferenceRecordTest, ReadsIdsAndLabels) {
  EXPECT_EQ(AnswersOf(R"({"prompt_ids":[1,2],"chosen_ids":[3],"rejected_ids":[4,5],"prompt":"x"})"),
            (Texts{R"({"input_ids":[1,2,3],"labels":[-100,-100,3]})",
                   R"({"input_ids":[1,2,4,5],"labels":[-100,-100,4,5]})"}));
  const PreferenceRecord row = Read(R"({"prompt":"Hi","completion":"Hello","label":false})");
  EXPECT_EQ(row.answers[0].dump(), R"({"prompt":"Hi","completion":"Hello"})");
  EXPECT_EQ(row.label, false);
  EXPECT_EQ(Read(R"({"prompt":"Hi","completion":"Hello","label":1})").label, true);
  EXPECT_EQ(Read(R"({"prompt":"Hi","completion":"Hello","label":"True"})").label, true);
  const std::string tagged =
      std::string(R"({"messages":[)") + kHi + "," + kGood + R"(],"kto_tag":true})";
  EXPECT_EQ(AnswersOf(tagged),
            (Texts{std::string(R"({"prompt":[)") + kHi + R"(],"completion":[)" + kGood + "]}"}));
  EXPECT_EQ(Read(tagged).label, true);
  EXPECT_EQ(AnswersOf(R"({"prompt_ids":[1],"completion_ids":[2],"label":true})"),
            (Texts{R"({"input_ids":[1,2],"labels":[-100,2]})"}));
}

TEST(PreferenceRecordTest, RefusesBadRecords) {
  const auto refused = [](const std::string& json, const std::string& what) {
    SCOPED_TRACE(json);
    ExpectRefused([&] { Read(json); }, what);
  };
  refused(R"({"prompt":"Hi","chosen":"A"})", "rejected");
  refused(R"({"prompt":"Hi","chosen":"A","rejected":null})", "null");
  refused(R"({"prompt":"Hi","rejected":"A"})", "chosen");
  refused(R"({"prompt":"Hi","chosen":"","rejected":"A"})", "'chosen' is empty");
  refused(R"({"prompt":"Hi","chosen":"A","rejected":3})", "'rejected'");
  refused(R"({"prompt":"Hi","chosen":[],"rejected":[]})", "empty list");
  refused(std::string(R"({"prompt":"Hi","chosen":"A","rejected":[)") + kBad + "]}", "one kind");
  refused(std::string(R"({"chosen":[)") + kHi + R"(],"rejected":[)" + kHi + "]}", "assistant");
  refused(std::string(R"({"chosen":[)") + kGood + R"(],"rejected":[)" + kBad + "]}",
          "share no message");
  refused(std::string(R"({"prompt":[)") + kGood + R"(],"chosen":[)" + kGood + R"(],"rejected":[)" +
              kBad + "]}",
          "ends with a turn of the assistant");
  refused(std::string(R"({"prompt":"Other","chosen":[)") + kHi + "," + kGood + R"(],"rejected":[)" +
              kHi + "," + kBad + "]}",
          "none of the messages");
  refused(R"({"prompt":"Hi","completion":"A"})", "no preference");
  refused(R"({"prompt":"Hi","completion":"A","label":"maybe"})", "true or false");
  refused(R"({"prompt":"Hi","completion":"A","label":2})", "true or false");
  refused(R"({"chosen_ids":[1],"rejected_ids":[2]})", "prompt_ids");
  refused(R"({"prompt_ids":[1],"chosen_ids":[],"rejected_ids":[2]})", "not empty");
}

}  // namespace
}  // namespace qlora
