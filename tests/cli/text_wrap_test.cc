#include "terminal/text_wrap.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(TextWrap, BreaksAtSpaces) {
  EXPECT_EQ(Wrap("one two three", 7), "one two\nthree");
  EXPECT_EQ(Wrap("one two three", 13), "one two three");
  EXPECT_EQ(Wrap("one  two", 4), "one\ntwo") << "no space is left at the break";
  EXPECT_EQ(Wrap("unbreakable words", 5), "unbreakable\nwords");
  EXPECT_EQ(Wrap("a b c", 4, 2), "a b\n  c");
  EXPECT_EQ(Wrap("a b c", 12, 8, 10), "a\n        b c") << "the first line starts further right";
  EXPECT_EQ(Wrap("", 5), "");
  EXPECT_EQ(Wrap("äöü äöü", 7), "äöü äöü") << "characters, not bytes, are counted";
}

TEST(TextWrap, KeepsLinesThatFit) {
  EXPECT_EQ(WrapLines("peak  12 MiB\n\n  weights   3 MiB\n", 20),
            "peak  12 MiB\n\n  weights   3 MiB\n");
  EXPECT_EQ(WrapLines("  one two three\nfour", 10), "  one two\n    three\nfour");
  EXPECT_EQ(WrapLines("one two three", 8), "one two\n  three");
}

TEST(TextWrap, CommandsStayCommands) {
  EXPECT_EQ(WrapCommand("qlora eval m --adapter a", 80, 2), "  qlora eval m --adapter a");
  EXPECT_EQ(WrapCommand("qlora eval m --adapter a --json", 26, 2),
            "  qlora eval m \\\n      --adapter a --json");
  EXPECT_EQ(WrapCommand("qlora eval m --adapter a --json", 23, 2),
            "  qlora eval m \\\n      --adapter a \\\n      --json");
}

TEST(TextWrap, MessagesHaveALength) {
  const std::string message = "a.jsonl:1: key '" + std::string(5'000'000, 'x') + "' appears twice";
  const std::string shown = Shortened(message);
  EXPECT_LT(shown.size(), 6000u);
  EXPECT_EQ(shown.rfind("a.jsonl:1: key 'xxx", 0), 0u);
  EXPECT_NE(shown.find(" bytes are not shown) ... xxx"), std::string::npos);
  EXPECT_TRUE(shown.ends_with("xxx' appears twice"));
  const std::string page(16'384, 'y');
  EXPECT_EQ(Shortened(page), page);
  // No half of a character stands at a cut.
  std::string wide;
  for (int i = 0; i < 10'000; ++i) wide += "\u4e9b";
  for (const char* before : {"", "a", "ab"}) {
    std::string text = Shortened(before + wide);
    for (std::size_t at = 0; (at = text.find("\u4e9b")) != text.npos;) text.erase(at, 3);
    EXPECT_EQ(text.find_first_of("\xe4\xba\x9b"), text.npos) << before;
  }
}

TEST(TextWrap, FollowsTheTerminal) {
  EXPECT_EQ(TextColumns({}), 80);
  EXPECT_EQ(TextColumns({.live = true, .columns = 100}), 100);
  EXPECT_EQ(TextColumns({.live = true, .columns = 20}), 60);
  EXPECT_EQ(TextColumns({.live = true, .columns = 300}), 110);
  const std::string text = std::string(70, 'x') + " and more";
  EXPECT_EQ(Fitted({}, text), text) << "files and pipes get lines as they are";
  EXPECT_EQ(Fitted({.live = true, .columns = 72}, text), std::string(70, 'x') + "\n  and more");
}

}  // namespace
}  // namespace qlora
