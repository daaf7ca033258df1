#include "terminal/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <sstream>

#include "command/common.h"

namespace qlora {
namespace {

constexpr TerminalStyle kNoTerminal = {};
constexpr TerminalStyle kNarrow = {.live = true, .color = true, .columns = 40};

TEST(Terminal, AsksTheDescriptorAndTheEnvironment) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(master, 0);
  ASSERT_EQ(grantpt(master), 0);
  ASSERT_EQ(unlockpt(master), 0);
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  struct winsize size = {};
  size.ws_col = 123;
  ASSERT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);

  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(StyleOf(terminal).live);
  EXPECT_TRUE(StyleOf(terminal).color);
  EXPECT_EQ(StyleOf(terminal).columns, 123);
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(StyleOf(terminal).color) << "only a value that is not empty counts";
  setenv("NO_COLOR", "1", 1);
  EXPECT_TRUE(StyleOf(terminal).live);
  EXPECT_FALSE(StyleOf(terminal).color);
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(StyleOf(terminal).live);
  EXPECT_FALSE(StyleOf(terminal).color);
  setenv("TERM", "xterm", 1);
  const int file = open("/dev/null", O_WRONLY);
  EXPECT_FALSE(StyleOf(file).live);
  EXPECT_FALSE(StyleOf(file).color);
  for (const int fd : {file, terminal, master}) close(fd);
}

// A file has the text of a model as it is; a terminal would obey it.
TEST(Terminal, ShowsNoControlCharactersOfAModel) {
  std::ostringstream out;
  Console console{out, out, kNoTerminal, kNoTerminal};
  EXPECT_EQ(Shown(console, "a\x1b[2Jb\n"), "a\x1b[2Jb\n");
  console.out_style = kNarrow;
  EXPECT_EQ(Shown(console, "a\x1b[2Jb\n"), "a\\x1b[2Jb\n");
}

TEST(Terminal, FormatsDurations) {
  EXPECT_EQ(FormatDuration(8.25), "8.2 s");
  EXPECT_EQ(FormatDuration(59.99), "1:00");
  EXPECT_EQ(FormatDuration(245), "4:05");
  EXPECT_EQ(FormatDuration(3723), "1:02:03");
  EXPECT_EQ(FormatDuration(-1), "?");
  EXPECT_EQ(FormatDuration(std::numeric_limits<double>::infinity()), "?");
}

TEST(Terminal, DrawsBars) {
  EXPECT_EQ(Bar(0, 6), "[>   ]");
  EXPECT_EQ(Bar(0.5, 6), "[==> ]");
  EXPECT_EQ(Bar(1, 6), "[====]");
  EXPECT_EQ(Bar(7, 6), "[====]");
  EXPECT_EQ(Bar(std::numeric_limits<double>::quiet_NaN(), 6), "[>   ]");
}

TEST(Terminal, ColoursOnlyWhereWanted) {
  EXPECT_EQ(Colored(kNoTerminal, "31", "x"), "x");
  EXPECT_EQ(Colored(kNarrow, "31", "x"), "\033[31mx\033[0m");
}

TEST(StatusLineTest, KeepsToTheWidthAndLeavesNothing) {
  std::ostringstream out;
  {
    StatusLine line(out, kNarrow);
    EXPECT_TRUE(line.Due());
    line.Show(std::string(100, 'x'));
    EXPECT_FALSE(line.Due()) << "not twice within a tenth of a second";
    line.Print("lasting");
    EXPECT_TRUE(line.Due());
    line.Show("end");
  }
  EXPECT_EQ(out.str(), "\r\033[K" + std::string(39, 'x') + "\r\033[Klasting\n\r\033[Kend\r\033[K");
}

TEST(StatusLineTest, ShowsProgressOnATerminalOnly) {
  std::ostringstream live;
  std::ostringstream plain;
  StatusLine live_line(live, {.live = true});
  StatusLine plain_line(plain, kNoTerminal);
  for (StatusLine* line : {&live_line, &plain_line}) {
    ShowProgress(*line, "loading", 0, 0);
    ShowProgress(*line, "loading", 1, 4);
    ShowProgress(*line, "loading", 4, 4);
  }
  EXPECT_NE(live.str().find("loading [======>                 ]  25 %"), std::string::npos)
      << live.str();
  EXPECT_NE(live.str().find("100 %"), std::string::npos);
  EXPECT_EQ(plain.str(), "");
}

}  // namespace
}  // namespace qlora
