#include "chat/chat_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "chat/dialogue.h"

namespace qlora {
namespace {

ChatCommand CommandOf(std::string_view line) { return ParseChatLine(line).command; }

TEST(ChatLineTest, TellsCommandsFromMessages) {
  EXPECT_EQ(CommandOf("/help"), ChatCommand::kHelp);
  for (const char* line : {"/exit", "/quit", "/bye", "/exit  ", "/exit\r"}) {
    EXPECT_EQ(CommandOf(line), ChatCommand::kExit) << line;
  }
  EXPECT_EQ(CommandOf("/reset"), ChatCommand::kReset);
  EXPECT_EQ(CommandOf("/frobnicate now"), ChatCommand::kUnknown);
  for (const char* line :
       {"", "Hello", " /help", "/", "/ help", "/etc/hosts is a file", "/3", "//help", "/help/me"}) {
    EXPECT_EQ(CommandOf(line), ChatCommand::kNone) << line;
  }
  EXPECT_EQ(CommandOf("/save talk.jsonl"), ChatCommand::kSave);
  EXPECT_EQ(ParseChatLine("/save  my talk.jsonl \r").argument, "my talk.jsonl");
  EXPECT_EQ(CommandOf("/system Be brief."), ChatCommand::kSystem);
  EXPECT_EQ(ParseChatLine("/system Be brief.").argument, "Be brief.");
  EXPECT_EQ(ParseChatLine("/system").argument, "");
}

TEST(ChatLineTest, HelpNamesEveryCommand) {
  for (const char* part : {"/help", "/reset", "/save FILE", "/system TEXT", "/exit", "/quit"}) {
    EXPECT_THAT(ChatHelp(), ::testing::HasSubstr(part));
  }
}

TEST(MessageLinesTest, ABackslashContinues) {
  MessageLines lines;
  EXPECT_TRUE(lines.empty());
  EXPECT_TRUE(lines.Add("one"));
  EXPECT_EQ(lines.Take(), "one");
  EXPECT_FALSE(lines.Add("two\\"));
  EXPECT_FALSE(lines.empty());
  EXPECT_FALSE(lines.Add("\\"));
  EXPECT_TRUE(lines.Add("lines"));
  EXPECT_EQ(lines.Take(), "two\n\nlines");
  EXPECT_TRUE(lines.empty());
  EXPECT_TRUE(lines.Add(""));
  EXPECT_EQ(lines.Take(), "");
}

TEST(MessageLinesTest, QuotesHoldSeveralLines) {
  MessageLines lines;
  EXPECT_FALSE(lines.Add("\"\"\""));
  EXPECT_FALSE(lines.empty());
  EXPECT_FALSE(lines.Add("for x in y:\\"));
  EXPECT_FALSE(lines.Add(""));
  EXPECT_FALSE(lines.Add("  /exit"));
  EXPECT_TRUE(lines.Add("\"\"\""));
  EXPECT_EQ(lines.Take(), "for x in y:\\\n\n  /exit");
  EXPECT_FALSE(lines.Add("\"\"\"a"));
  EXPECT_TRUE(lines.Add("b\"\"\""));
  EXPECT_EQ(lines.Take(), "a\nb");
  EXPECT_TRUE(lines.Add("\"\"\"a\"\"\""));
  EXPECT_EQ(lines.Take(), "a");
  EXPECT_FALSE(lines.Add("\"\"\"dropped"));
  lines.Take();
  EXPECT_TRUE(lines.Add("plain")) << "a message that is dropped leaves nothing behind";
}

TEST(DialogueTest, RecordsWhatTheModelIsNoLongerShown) {
  Dialogue dialogue;
  EXPECT_TRUE(dialogue.empty());
  dialogue.system = "Be brief.";
  dialogue.Ask("Who?");
  dialogue.Answer("Bears.");
  dialogue.Ask("Where?");
  EXPECT_EQ(dialogue.Text(), "Who?\nBears.\nWhere?\n");
  const OrderedJson all = dialogue.Messages();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].dump(), R"({"role":"system","content":"Be brief."})");
  EXPECT_EQ(all[3].dump(), R"({"role":"user","content":"Where?"})");

  EXPECT_TRUE(dialogue.LeaveOutOldest());
  EXPECT_FALSE(dialogue.LeaveOutOldest()) << "the question stays";
  EXPECT_EQ(dialogue.Messages().size(), 2u);
  EXPECT_EQ(dialogue.Text(), "Where?\n");
  EXPECT_EQ(dialogue.Record(false), (OrderedJson{{"messages", all}}));
  EXPECT_EQ(dialogue.Record(true), (OrderedJson{{"text", "Who?\nBears.\nWhere?\n"}}));

  dialogue.TakeBack();
  EXPECT_EQ(dialogue.Text(), "Who?\nBears.\n");
  dialogue.Reset();
  EXPECT_TRUE(dialogue.empty());
  EXPECT_EQ(dialogue.system, "Be brief.");
}

}  // namespace
}  // namespace qlora
