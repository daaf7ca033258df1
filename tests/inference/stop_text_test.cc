#include "inference/stop_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace qlora {
namespace {

std::string Shown(const std::string& stop, const std::vector<std::string>& pieces, bool found) {
  StopText text(stop);
  std::string shown;
  for (const std::string& piece : pieces) shown += text.Add(piece);
  EXPECT_EQ(text.found(), found);
  return shown + text.Finish();
}

TEST(StopTextTest, EndsTheAnswerWhereverThePiecesEnd) {
  EXPECT_EQ(Shown("###", {"ab", "#", "#", "# more"}, true), "ab");
  EXPECT_EQ(Shown("###", {"ab####"}, true), "ab");
  EXPECT_EQ(Shown("aab", {"a", "a", "a", "b", "c"}, true), "a");
  EXPECT_EQ(Shown("###", {"ab", "##", "c#"}, false), "ab##c#");
  EXPECT_EQ(Shown("", {"ab", "c"}, false), "abc");
}

TEST(StopTextTest, HoldsBackNothingElse) {
  StopText text("\n\n");
  EXPECT_EQ(text.Add("one\n"), "one");
  EXPECT_EQ(text.Add("two"), "\ntwo");
  EXPECT_EQ(text.Add("\n\nthree"), "");
  EXPECT_TRUE(text.found());
  EXPECT_EQ(text.Add("four"), "");
}

}  // namespace
}  // namespace qlora
