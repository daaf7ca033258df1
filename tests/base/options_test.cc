#include "qlora/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class OptionsTest : public ::testing::Test {
 protected:
  OptionsTest() {
    table_.Section("One");
    table_.Add("packing", &flag_, "a flag", {"sample_packing"});
    table_.Add("max_length", &integer_, "an integer", {"sequence_len", "cutoff_len"});
    table_.Section("Two");
    table_.Add("learning_rate", &number_, "a number", {"lr"});
    table_.Add("output_dir", &text_, "text");
    table_.Choice("format", &choice_, {"gguf", "hf"}, "a choice");
    table_.Add("dataset", &list_, "a list");
  }

  std::string ErrorOf(std::string_view key, std::string_view text) {
    try {
      table_.Set(key, text, "here");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    ADD_FAILURE() << key << " took " << text;
    return "";
  }

  bool flag_ = false;
  std::int64_t integer_ = 7;
  double number_ = 0.25;
  std::string text_ = "out";
  std::string choice_ = "gguf";
  std::vector<std::string> list_;
  OptionTable table_;
};

TEST_F(OptionsTest, SetsEveryTypeByNameOrAliasWithDashOrUnderscore) {
  table_.Set("sample-packing", "Yes", "");
  table_.Set("sequence-len", "1e3", "");
  table_.Set("lr", "2e-4", "");
  table_.Set("output_dir", "a b,c", "");
  table_.Set("format", "hf", "");
  table_.Set("dataset", "a.jsonl,,b.jsonl", "");
  EXPECT_TRUE(flag_);
  EXPECT_EQ(integer_, 1000);
  EXPECT_EQ(number_, 2e-4);
  EXPECT_EQ(text_, "a b,c");
  EXPECT_EQ(choice_, "hf");
  EXPECT_THAT(list_, ElementsAre("a.jsonl", "b.jsonl"));
  for (const Option& option : table_.options()) EXPECT_TRUE(option.set) << option.name;
}

TEST_F(OptionsTest, PrintsWhatSetReads) {
  table_.Set("learning_rate", "0.0002", "");
  table_.Set("max_length", "-1", "");
  table_.Set("packing", "on", "");
  table_.Set("dataset", "a,b", "");
  EXPECT_EQ(table_.Find("learning_rate")->ToString(), "0.0002");
  EXPECT_EQ(table_.Find("max_length")->ToString(), "-1");
  EXPECT_EQ(table_.Find("packing")->ToString(), "true");
  EXPECT_EQ(table_.Find("dataset")->ToString(), "a,b");
  EXPECT_EQ(table_.Find("output_dir")->ToString(), "out");
}

TEST_F(OptionsTest, ReplacesLists) {
  table_.Set("dataset", "a,b", "");
  table_.Set("dataset", std::vector<std::string>{"c,d"}, "");
  EXPECT_THAT(list_, ElementsAre("c,d"));
  EXPECT_THROW(table_.Set("output_dir", std::vector<std::string>{"a", "b"}, ""), Error);
}

TEST_F(OptionsTest, RefusesWrongValuesAndKeepsTheOldOnes) {
  EXPECT_THAT(ErrorOf("packing", "maybe"), HasSubstr("here: packing expects true or false"));
  EXPECT_THAT(ErrorOf("cutoff_len", "12x"),
              HasSubstr("max_length expects an integer, found '12x'"));
  for (const char* text : {"", "1.5", "1e99", "9223372036854775808", "nan"}) {
    ErrorOf("max_length", text);
  }
  for (const char* text : {"", "fast", "1,5", "nan", "inf", "1e999"}) {
    EXPECT_THAT(ErrorOf("lr", text), HasSubstr("learning_rate expects a number"));
  }
  EXPECT_THAT(ErrorOf("max_length", "99999999999999999999"), HasSubstr("between -2^63 and 2^63"));
  EXPECT_THAT(ErrorOf("lr", "1e-400"),
              HasSubstr("a number whose size a double can hold (1e-307 to 1e308), found"));
  EXPECT_THAT(ErrorOf("format", "onnx"), HasSubstr("one of gguf, hf, found 'onnx'"));
  EXPECT_FALSE(flag_);
  EXPECT_EQ(integer_, 7);
  EXPECT_EQ(number_, 0.25);
  EXPECT_EQ(choice_, "gguf");
  for (const Option& option : table_.options()) EXPECT_FALSE(option.set) << option.name;
}

TEST_F(OptionsTest, NamesTheNearestKey) {
  EXPECT_THAT(ErrorOf("learning-rat", "1"),
              HasSubstr("unknown option 'learning-rat'; did you mean 'learning_rate'?"));
  EXPECT_THAT(ErrorOf("seqence_len", "1"), HasSubstr("'sequence_len'"));
  EXPECT_THAT(ErrorOf("zzzzzzzzzz", "1"), HasSubstr("see --help"));
  EXPECT_THAT(ErrorOf("rl", "1"), HasSubstr("did you mean 'lr'?"));
  EXPECT_THAT(ErrorOf("q", "1"), HasSubstr("see --help"));
}

TEST_F(OptionsTest, NamesTheChoiceThatIsMeant) {
  std::string type;
  Option& option = table_.Choice(
      "outtype", &type, {"f16", "q4_0", "q4_k_s", "q4_k_m", "q8_0", "gguf-adapter", "q5_k_m"}, "");
  option.any_case = true;
  option.hint = "a hint";
  EXPECT_THAT(ErrorOf("outtype", "q4km"), EndsWith("found 'q4km'; did you mean 'q4_k_m'?"));
  EXPECT_THAT(ErrorOf("outtype", "Q4-K"), EndsWith("; did you mean 'q4_k_s' or 'q4_k_m'?"));
  EXPECT_THAT(ErrorOf("outtype", "fp16"), EndsWith("; did you mean 'f16'?"));
  EXPECT_THAT(ErrorOf("outtype", "adapter"), EndsWith("found 'adapter'; a hint"));
  EXPECT_THAT(ErrorOf("outtype", ""), EndsWith("found ''; a hint"));
  EXPECT_THAT(ErrorOf("format", "ggfu"), EndsWith("; did you mean 'gguf'?"));
}

TEST_F(OptionsTest, DropsBlanksAroundItems) {
  table_.Set("dataset", " a.jsonl , b c.jsonl ,\t", "");
  EXPECT_THAT(list_, ElementsAre("a.jsonl", "b c.jsonl"));
}

TEST_F(OptionsTest, ChoicesMayBeInCapitals) {
  EXPECT_THROW(table_.Set("format", "HF", "here"), Error);
  table_.Find("format")->any_case = true;
  table_.Set("format", "Hf", "here");
  EXPECT_EQ(choice_, "hf");
  EXPECT_TRUE(table_.Find("format")->Takes("GGUF"));
  EXPECT_THROW(table_.Set("format", "HG", "here"), Error);
}

TEST_F(OptionsTest, AHintEndsTheMessageAboutAChoice) {
  table_.Find("format")->hint = "see the manual";
  EXPECT_THAT(ErrorOf("format", "onnx"), HasSubstr("found 'onnx'; see the manual"));
}

TEST_F(OptionsTest, ATextMayHaveToBeThere) {
  table_.Set("output_dir", "", "here");
  table_.Find("output_dir")->needs_text = true;
  EXPECT_THAT(ErrorOf("output_dir", ""), HasSubstr("output_dir expects text, found ''"));
  table_.Set("output_dir", "x", "here");
  EXPECT_EQ(text_, "x");
}

TEST_F(OptionsTest, RemembersSections) {
  ASSERT_EQ(table_.sections().size(), 2u);
  EXPECT_EQ(table_.sections()[1].first, "Two");
  EXPECT_EQ(table_.options()[table_.sections()[1].second].name, "learning_rate");
}

}  // namespace
}  // namespace qlora
