#include "task/python_literal.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace qlora {
namespace {

std::string Parsed(std::string_view text) {
  const auto value = ParsePythonLiteral(text);
  return value ? value->dump() : "none";
}

TEST(PythonLiteralTest, ReadsWhatPythonPrints) {
  EXPECT_EQ(Parsed("['a', \"it's\", 'b\\n\\'\\x41\\u00e9']"), R"(["a","it's","b\n'Aé"])");
  EXPECT_EQ(Parsed("[1, -2, 2.5, True, None, (1,), []]"), "[1,-2,2.5,true,null,[1],[]]");
  EXPECT_EQ(Parsed("['a' 'b']"), R"(["ab"])");
}

TEST(PythonLiteralTest, LeavesOtherTextsAlone) {
  EXPECT_EQ(Parsed("[a, b]"), "none");
  EXPECT_EQ(Parsed("['a'"), "none");
  EXPECT_EQ(Parsed("['a'] x"), "none");
  EXPECT_EQ(Parsed("['\\u12']"), "none");
  EXPECT_EQ(Parsed("[1 2]"), "none");
}

}  // namespace
}  // namespace qlora
