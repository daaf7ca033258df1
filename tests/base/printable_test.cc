#include "base/printable.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(Printable, WritesControlCharactersAsNumbers) {
  EXPECT_EQ(Printable("a\x1b[2Jb\n\tc\x7f"), "a\\x1b[2Jb\n\tc\\x7f");
  EXPECT_EQ(Printable("\u009b\u00a0"), "\\x9b\u00a0");
  // A character that was cut behind its first byte.
  EXPECT_EQ(Printable("\xc2..."), "\xc2...");
  EXPECT_EQ(Printable("\xc2"), "\xc2");
  // A terminal of 8 bits obeys the byte alone; in a character it is none.
  EXPECT_EQ(Printable("\x9b"
                      "2J\xe9"),
            "\\x9b"
            "2J\xe9");
  EXPECT_EQ(Printable("\u041b \u4e9b \U0001f69b"), "\u041b \u4e9b \U0001f69b");
}

TEST(Printable, ShowsCharactersThatTurnText) {
  EXPECT_EQ(Printable("a\u202egpj.exe"), "a\\u202egpj.exe");
  EXPECT_EQ(Printable("\u202a\u2066\u2069\u202f\u2065"), "\\u202a\\u2066\\u2069\u202f\u2065");
}

TEST(Printable, FormatsBytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(std::size_t{300} << 20), "300 MiB");
  EXPECT_EQ(FormatBytes((std::size_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(FormatBytes(std::size_t{3435973837}), "3.20 GiB");
}

}  // namespace
}  // namespace qlora
