// `qlora chat`: commands, saved conversations, and a person at a terminal.
#include <gmock/gmock.h>

#include <thread>

#include "cli/pseudo_terminal.h"
#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

class ChatTest : public TinyModelTest {
 protected:
  Words Chat(const Words& more = {}) const {
    Words words = {"chat", "model", "--max_new_tokens=4", "--threads=1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // At the prompt. Returns the conversation as it was saved.
  nlohmann::json SaveAndEnd(PseudoTerminal& terminal) const {
    terminal.Type("/save talk.jsonl\n");
    terminal.WaitFor("saved in talk.jsonl");
    terminal.WaitFor("\n> ");
    terminal.Type("\x04");
    EXPECT_EQ(terminal.End(), 0);
    return nlohmann::json::parse(ReadAll(scratch_ / "talk.jsonl"));
  }
};

TEST_F(ChatTest, CommandsAreNotSentToTheModel) {
  const Outcome outcome =
      Run(Chat(), "/help\n/frobnicate\n/save\n/save x.jsonl\n/bye\nnever read\n");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("unknown command; the commands are:\n  /help"));
  EXPECT_THAT(outcome.err, HasSubstr("/save needs the name of a file"));
  EXPECT_THAT(outcome.err, HasSubstr("nothing has been said yet"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("> "))) << "no prompt for a program";
  const Outcome path = Run(Chat(), "/etc/hosts is a file\n");
  EXPECT_NE(path.out, "") << "a path is not a command";
}

TEST_F(ChatTest, SavesRecordsThatTrainingReads) {
  EditJson(model() / "config.json",
           [](nlohmann::json& config) { config["max_position_embeddings"] = 1000; });
  const std::string input =
      "/system Be brief.\nOnce upon\na time\n/save talk.jsonl\nmore\n"
      "/save talk.jsonl\n/save data.jsonl\n";
  const std::string data = ReadAll(scratch_ / "data.jsonl");
  const Outcome outcome = Run(Chat({"--chat_template", "plain"}), input);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the system message is set"));
  EXPECT_THAT(outcome.err, HasSubstr("data.jsonl exists; choose another name"));
  EXPECT_EQ(data, ReadAll(scratch_ / "data.jsonl"));
  const nlohmann::json record = nlohmann::json::parse(ReadAll(scratch_ / "talk.jsonl"));
  const nlohmann::json& messages = record.at("messages");
  ASSERT_EQ(messages.size(), 7u) << "a file of this session is written again";
  EXPECT_EQ(messages[0], (nlohmann::json{{"role", "system"}, {"content", "Be brief."}}));
  EXPECT_EQ(messages[1], (nlohmann::json{{"role", "user"}, {"content", "Once upon"}}));
  EXPECT_EQ(messages[2].at("role"), "assistant");
  const Outcome inspected = Run({"inspect", "--dataset", "talk.jsonl", "--model", "model",
                                 "--chat_template", "plain", "--json"});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_EQ(nlohmann::json::parse(inspected.out).at("samples"), 1);
}

TEST_F(ChatTest, SavesPlainText) {
  const Outcome outcome = Run(Chat(), "Once upon\n/system x\n/save talk.jsonl\n");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("a system message needs a chat template"));
  const nlohmann::json record = nlohmann::json::parse(ReadAll(scratch_ / "talk.jsonl"));
  EXPECT_THAT(record.at("text").get<std::string>(), ::testing::StartsWith("Once upon\n"));
  const Outcome inspected =
      Run({"inspect", "--dataset", "talk.jsonl", "--model", "model", "--json"});
  EXPECT_EQ(nlohmann::json::parse(inspected.out).at("samples"), 1) << inspected.err;
}

TEST_F(ChatTest, APersonTypesSeveralLinesAndDropsOthers) {
  PseudoTerminal terminal(scratch_, Chat({"--chat_template", "plain"}));
  terminal.WaitFor("/help lists the commands");
  terminal.WaitFor("\n> ");
  terminal.Type("Once\\\n");
  terminal.WaitFor("... ");
  terminal.Type("upon\n");
  terminal.WaitFor("by max_new_tokens");
  terminal.WaitFor("\n> ");
  terminal.Type("\"\"\"\n");
  terminal.WaitFor("... ");
  terminal.Type("dropped");
  terminal.WaitFor("dropped");
  terminal.Type("\x03");
  terminal.WaitFor("\n> ");
  terminal.Type("\n");  // nothing to answer
  terminal.WaitFor("\n> ");
  const nlohmann::json record = SaveAndEnd(terminal);
  ASSERT_EQ(record.at("messages").size(), 2u);
  EXPECT_EQ(record.at("messages")[0].at("content"), "Once\nupon");
}

TEST_F(ChatTest, APersonEditsLinesAndHasTheirHistory) {
  const nlohmann::json doctor = nlohmann::json::parse(Run({"doctor", "--json"}).out);
  if (doctor.at("libraries").at("libedit") == "none") GTEST_SKIP() << "this build has no libedit";
  PseudoTerminal terminal(scratch_, Chat({"--raw"}));
  terminal.WaitFor("\n> ");
  terminal.Type(
      "Ohce\x1b[D\x1b[D\x1b[D\x7f"
      "O\x1b[3~n\n");  // left, back space, delete
  terminal.WaitFor("by max_new_tokens");
  terminal.WaitFor("\n> ");
  terminal.Type("/reset\n");
  terminal.WaitFor("\n> ");
  terminal.Type(
      "\x1b[A\x1b[A gr\xC3"
      "üße\n");  // up, up, and half a character, which is dropped
  terminal.WaitFor("by max_new_tokens");
  terminal.WaitFor("\n> ");
  const nlohmann::json record = SaveAndEnd(terminal);
  EXPECT_THAT(record.at("text").get<std::string>(), ::testing::StartsWith("Once grüße\n"));
}

TEST_F(ChatTest, CtrlCStopsTheAnswerAndKeepsTheConversation) {
  EditJson(model() / "config.json",
           [](nlohmann::json& config) { config["max_position_embeddings"] = 100000; });
  PseudoTerminal terminal(scratch_,
                          {"chat", "model", "--max_new_tokens=99000", "--threads=1", "--raw"});
  terminal.WaitFor("\n> ");
  terminal.Type("Once\n");
  terminal.WaitFor("Once\r\n");
  terminal.WaitForMore();  // the answer has begun
  terminal.Type("\x03");
  terminal.WaitFor("\n> ");
  terminal.Type("/save talk.jsonl\n");
  terminal.WaitFor("saved in talk.jsonl");
  const nlohmann::json record = nlohmann::json::parse(ReadAll(scratch_ / "talk.jsonl"));
  EXPECT_THAT(record.at("text").get<std::string>(), ::testing::StartsWith("Once\n"));
  terminal.WaitFor("\n> ");
  // Another signal ends the session.
  EXPECT_THAT(terminal.EndBy(SIGTERM), ::testing::AnyOf(130, 128 + SIGTERM));
}

}  // namespace
}  // namespace qlora
