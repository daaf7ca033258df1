#include "io/pattern.h"

#include <gtest/gtest.h>

#include <string>

namespace qlora {
namespace {

TEST(PatternTest, ReplacesByTheTextAsItIs) {
  EXPECT_EQ(ReplaceMatches("[0-9]+", "\\1\\n", "a12b3", "test"), "a\\1\\nb\\1\\n");
  EXPECT_EQ(ReplaceMatches("x", "", "axbx", "test"), "ab");
  EXPECT_EQ(ReplaceMatches("x", "y", "", "test"), "");
}

// As Python: re.sub("b*", "-", "abc") == "-a--c-".
TEST(PatternTest, LooksBehindAnEmptyMatchForOneThatIsNot) {
  EXPECT_EQ(ReplaceMatches("b*", "-", "abc", "test"), "-a--c-");
}

TEST(PatternTest, FindsAllMatchesOfALongTextWithWideCharacters) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\xC3\xA9 ";
  EXPECT_EQ(FindAll("\\S", text, "test").size(), 1000U);
  EXPECT_EQ(SplitAtMatches(" ", text, "test").size(), 1001U);
}

}  // namespace
}  // namespace qlora
