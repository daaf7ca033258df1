#include "preference/preference_record.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
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

TEST(PreferenceRecordTest, RefusesTextsWithoutAPromptInCommon) {
  ExpectRefused([] { Read(R"({"chosen": "The sky", "rejected": "The sky is blue."})"); },
                "the beginning of the other");
  ExpectRefused([] { Read(R"({"chosen": "The sky", "rejected": "A zebra"})"); },
                "begin with different characters");
  // Two characters of which the first bytes are the same.
  ExpectRefused([] { Read(R"({"chosen": "你好", "rejected": "他们"})"); },
                "begin with different characters");
  EXPECT_NO_THROW(Read(R"({"chosen": "你好", "rejected": "你们"})"));
}

TEST(PreferenceRecordTest, ReadsMessagesThatStandTwice) {
  EXPECT_EQ(Read(R"({"messages": [{"role": "user", "content": "Q"},
                                  {"role": "assistant", "content": "A"}],
                     "conversations": [{"role": "user", "content": "Q"},
                                       {"role": "assistant", "content": "A"}],
                     "rejected_response": "B"})")
                .answers.size(),
            2U);
}

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

TEST(PreferenceRecordTest, APromptThatSaysNothingIsNone) {
  const std::string sides =
      fmt::format(R"("chosen":[{0},{1}],"rejected":[{0},{2}])", kHi, kGood, kBad);
  const Texts expected = AnswersOf("{" + sides + "}");
  for (const char* nothing : {"null", "\"\"", "[]"}) {
    EXPECT_EQ(AnswersOf(fmt::format(R"({{"prompt":{},{}}})", nothing, sides)), expected) << nothing;
  }
  // Tables hold messages as texts.
  EXPECT_EQ(AnswersOf(fmt::format(R"({{"prompt":[{}],"chosen":{},"rejected":{}}})", kHi,
                                  OrderedJson(kGood).dump(), OrderedJson(kBad).dump())),
            expected);
}

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
            (Texts{R"({"prompt":"x","input_ids":[1,2,3],"labels":[-100,-100,3]})",
                   R"({"prompt":"x","input_ids":[1,2,4,5],"labels":[-100,-100,4,5]})"}));
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

TEST(PreferenceRecordTest, NoticesWhatAuthorsMayNotKnow) {
  const auto notices = [](const std::string& fields) {
    return Read(R"({"prompt":"Hi",)" + fields + "}").notices;
  };
  using testing::ElementsAre;
  using testing::IsEmpty;
  EXPECT_THAT(notices(R"("completion":"A","label":true)"), IsEmpty());
  EXPECT_THAT(notices(R"("completion":"A","label":0)"), ElementsAre(kNoticeLabel));
  EXPECT_THAT(notices(R"("completion":"A","label":"false")"), ElementsAre(kNoticeLabel));
  const std::string pair = R"("chosen":"A","rejected":"B")";
  EXPECT_THAT(notices(pair + R"(,"score_chosen":8.5,"score_rejected":8)"), IsEmpty());
  EXPECT_THAT(notices(pair + R"(,"score_chosen":8,"score_rejected":8)"),
              ElementsAre(kNoticeScores));
  EXPECT_THAT(notices(pair + R"(,"chosen_score":1,"rejected_score":5)"),
              ElementsAre(kNoticeScores));
  EXPECT_THAT(notices(pair + R"(,"score_chosen":1,"score_rejected":null)"), IsEmpty());
  EXPECT_THAT(Read(R"({"prompt_ids":[1],"chosen_ids":[2],"rejected_ids":[3],)"
                   R"("score_chosen":1,"score_rejected":2})")
                  .notices,
              ElementsAre(kNoticeScores));
}

// A field stays, repeats another one, or is refused.
TEST(PreferenceRecordTest, DropsNoFieldInSilence) {
  const std::string hi = kHi;
  const std::string good = kGood;
  const std::string bad = kBad;
  const auto with = [](const std::string& field, const std::string& chosen,
                       const std::string& rejected) {
    return "{" + field + R"(,"chosen":)" + chosen + R"(,"rejected":)" + rejected + "}";
  };
  const auto completions = [&](const std::string& json) {
    Texts all;
    for (const OrderedJson& answer : Read(json).answers) all.push_back(answer["completion"].dump());
    return all;
  };
  const Texts both = {"[" + good + "]", "[" + bad + "]"};
  const std::string long_good = "[" + hi + "," + good + "]";
  const std::string long_bad = "[" + hi + "," + bad + "]";
  // The conversation is repeated as messages, as data sets do, with a prompt or without.
  EXPECT_EQ(completions(with(R"("prompt":"Hi","messages":)" + long_good, long_good, long_bad)),
            both);
  EXPECT_EQ(completions(with(R"("messages":)" + long_bad, long_good, long_bad)), both);
  EXPECT_EQ(completions(with("\"prompt\":[" + hi + R"(],"messages":)" + long_good, "[" + good + "]",
                             "[" + bad + "]")),
            both);
  EXPECT_EQ(AnswersOf(with(R"("prompt":"Hi","question":"Hi","score":3)", "\"A\"", "\"B\""))[0],
            R"({"score":3,"prompt":"Hi","completion":"A"})");
  const auto refused = [](const std::string& json, const std::string& what) {
    SCOPED_TRACE(json);
    ExpectRefused([&] { Read(json); }, what);
    ExpectRefused([&] { Read(json); }, "ignore_fields");
  };
  refused(with(R"("prompt":"Hi","query":"Hello")", "\"A\"", "\"B\""), "'prompt' and 'query'");
  refused(with(R"("prompt":"Hi","chosen_response":"C")", "\"A\"", "\"B\""), "'chosen_response'");
  refused(with("\"query\":\"Else\",\"messages\":[" + hi + "]", "\"A\"", "\"B\""), "'query'");
  refused(with("\"prompt\":\"Else\",\"messages\":[" + hi + "]", good, bad), "'prompt'");
  refused(with("\"prompt\":[" + hi + R"(],"messages":[{"role":"user","content":"Else"}])",
               "[" + good + "]", "[" + bad + "]"),
          "'messages'");
  refused(with(R"("instruction":"Hi","output":"C")", "\"A\"", "\"B\""), "'output'");
  refused(with(R"("prompt":"Hi","completion":"C")", "\"A\"", "\"B\""), "'completion'");
  refused(R"({"messages":[)" + hi + "," + good + R"(],"prompt":"Else","label":true})", "'prompt'");
  refused(R"({"messages":[)" + hi + "," + good + R"(],"completion":"A","label":true})",
          "'completion'");
  refused(R"({"prompt_ids":[1],"chosen_ids":[2],"rejected_ids":[3],"input_ids":[4]})",
          "'input_ids'");
}

// Answers of several turns are compared where both were asked the same.
TEST(PreferenceRecordTest, RefusesAnswersToOtherTurnsOfTheUser) {
  const auto turns = [](const std::string& question, const std::string& last) {
    return std::string("[") + kHi + "," + kGood + R"(,{"role":"user","content":")" + question +
           R"("},{"role":"assistant","content":")" + last + "\"}]";
  };
  const auto pair = [](const std::string& chosen, const std::string& rejected) {
    return R"({"chosen":)" + chosen + R"(,"rejected":)" + rejected + "}";
  };
  EXPECT_EQ(Read(pair(turns("Q", "A"), turns("Q", "B"))).answers[0]["prompt"].size(), 3);
  ExpectRefused([&] { Read(pair(turns("Q", "A"), turns("R", "B"))); }, "different questions");
  const std::string one = std::string("[") + kHi + "," + kBad + "]";
  ExpectRefused([&] { Read(pair(turns("Q", "A"), one)); }, "different questions");
  // What tools say may differ.
  const auto calls = [](const std::string& result) {
    return std::string("[") + kHi + "," + kGood + R"(,{"role":"tool","content":")" + result +
           R"("},{"role":"assistant","content":")" + result + "\"}]";
  };
  EXPECT_EQ(Read(pair(calls("1"), calls("2"))).answers[0]["prompt"].size(), 1);
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
  refused(R"({"messages":"Hi","rejected_response":"A"})", "'messages': expected a list");
  refused(std::string(R"({"messages":)") + kGood + R"(,"label":true})", "expected a list");
  refused(R"({"prompt":"Hi","completion":"A","label":"maybe"})", "true or false");
  refused(R"({"prompt":"Hi","completion":"A","label":2})", "true or false");
  refused(R"({"prompt":"Hi","completion":"A","label":null})",
          "field 'label': expected true or false, found null; leave out answers");
  refused(R"({"prompt":"Hi","completion":"A","kto_tag":null})", "field 'kto_tag': expected true");
  refused(R"({"chosen_ids":[1],"rejected_ids":[2]})", "prompt_ids");
  refused(R"({"prompt_ids":[1],"chosen_ids":[],"rejected_ids":[2]})", "not empty");
}

}  // namespace
}  // namespace qlora
