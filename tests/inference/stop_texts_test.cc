#include "inference/stop_texts.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

// The text that is shown of an answer in pieces of `size` bytes, and the stop text that ends it.
std::pair<std::string, std::string> Shown(const std::vector<std::string>& stops,
                                          std::string_view answer, std::size_t size) {
  StopTexts texts(stops);
  std::string shown;
  for (std::size_t at = 0; at < answer.size(); at += size) {
    shown += texts.Add(answer.substr(at, size));
  }
  shown += texts.Finish();
  return {shown, texts.found()};
}

TEST(StopTexts, CutWhereverThePiecesEnd) {
  for (std::size_t size = 1; size < 16; ++size) {
    EXPECT_EQ(Shown({}, "all of it", size), std::pair(std::string("all of it"), std::string()));
    EXPECT_EQ(Shown({"END"}, "xENDy", size), std::pair(std::string("x"), std::string("END")));
    EXPECT_EQ(Shown({"END"}, "xENxEN", size), std::pair(std::string("xENxEN"), std::string()));
    EXPECT_EQ(Shown({"aab"}, "aaab", size), std::pair(std::string("a"), std::string("aab")));
    EXPECT_EQ(Shown({"zz", "b"}, "aabzz", size), std::pair(std::string("aa"), std::string("b")));
    EXPECT_EQ(Shown({"é字"}, "aé字b", size), std::pair(std::string("a"), std::string("é字")));
  }
}

TEST(StopTexts, NothingOfAStopTextLeavesEarly) {
  StopTexts texts({"END", "x"});
  EXPECT_EQ(texts.Add("aE"), "a");
  EXPECT_EQ(texts.Add("N"), "");
  EXPECT_EQ(texts.Add("N"), "ENN");
  EXPECT_EQ(texts.Add("bEN"), "b");
  EXPECT_EQ(texts.Finish(), "EN");
}

// "abcab" is a stop text, whose beginning and end are another one.
TEST(StopTexts, ThoseThatEndTooEarlyAreText) {
  StopTexts texts({"ab", "abcab"});
  EXPECT_EQ(texts.Add("xab", false), "x");
  EXPECT_EQ(texts.Add("d"), "abd");
  EXPECT_EQ(texts.found(), "");
  EXPECT_EQ(texts.Add("abc", false), "");
  EXPECT_EQ(texts.Add("ab"), "");
  EXPECT_EQ(texts.found(), "abcab");
  StopTexts begun({"END"});
  EXPECT_EQ(begun.Add("ENDaEN", false), "ENDa");
  EXPECT_EQ(begun.Add("D"), "");
  EXPECT_EQ(begun.found(), "END");
}

}  // namespace
}  // namespace qlora
