#include "task/instruction_checks.h"

#include <gtest/gtest.h>

#include "qlora/error.h"

namespace qlora {
namespace {

struct Case {
  const char* id;
  OrderedJson arguments;
  const char* follows;
  const char* breaks;
};

TEST(InstructionChecksTest, DecideByTheText) {
  const Case cases[] = {
      {"keywords:existence", {{"keywords", {"sun", "moon"}}}, "Moon and Sun", "the sun"},
      {"keywords:frequency",
       {{"keyword", "a"}, {"frequency", 2}, {"relation", "at least"}},
       "a A",
       "a b"},
      {"keywords:forbidden_words", {{"forbidden_words", {"cat"}}}, "concatenate", "A Cat."},
      {"keywords:letter_frequency",
       {{"letter", "e"}, {"let_frequency", 2}, {"let_relation", "less than"}},
       "Me",
       "Eve"},
      {"length_constraints:number_words",
       {{"num_words", 3}, {"relation", "at least"}},
       "one, two three",
       "one two"},
      {"length_constraints:number_paragraphs", {{"num_paragraphs", 2}}, "a\n***\nb", "a b"},
      {"length_constraints:nth_paragraph_first_word",
       {{"num_paragraphs", 2}, {"nth_paragraph", 2}, {"first_word", "well"}},
       "a b\n\n\"Well, c",
       "well\n\na"},
      {"detectable_content:number_placeholders", {{"num_placeholders", 2}}, "[a] [b]", "[a]"},
      {"detectable_content:postscript", {{"postscript_marker", "P.S."}}, "x\nP. S. y", "x PS y"},
      {"detectable_format:number_bullet_lists", {{"num_bullets", 2}}, "* a\n- b", "* a"},
      {"detectable_format:constrained_response", {}, "My answer is no.", "no"},
      {"detectable_format:number_highlighted_sections", {{"num_highlights", 1}}, "*a*", "* *"},
      {"detectable_format:multiple_sections",
       {{"section_spliter", "Part"}, {"num_sections", 2}},
       "Part 1\na\nPart 2\nb",
       "Part 1\na"},
      {"detectable_format:json_format", {}, "```json\n{\"a\": 1}\n```", "{a}"},
      {"detectable_format:title", {}, "<<a>>", "<<>>"},
      {"combination:two_responses", {}, "a\n******\nb", "a******a"},
      {"combination:repeat_prompt", {{"prompt_to_repeat", "Say it."}}, "say IT. Yes", "Yes"},
      {"startend:end_checker", {{"end_phrase", "The end."}}, "x the End.\"", "the end. x"},
      {"startend:quotation", {}, "\"a\"", "\"a"},
      {"punctuation:no_comma", {}, "a b", "a, b"},
  };
  for (const Case& one : cases) {
    const Instruction instruction{one.id, one.arguments};
    EXPECT_TRUE(IsCheckOfText(one.id)) << one.id;
    EXPECT_TRUE(Follows(one.follows, instruction)) << one.id;
    EXPECT_FALSE(Follows(one.breaks, instruction)) << one.id;
    EXPECT_FALSE(Follows(" ", instruction)) << one.id;
  }
}

TEST(InstructionChecksTest, LooselyWithoutWhatSurroundsAnAnswer) {
  const Instruction quoted{"startend:quotation", OrderedJson::object()};
  EXPECT_TRUE(FollowsLoosely("Here you are:\n\"a\"", quoted));
  EXPECT_TRUE(FollowsLoosely("Sure:\n\"a\"\nBye", quoted));
  EXPECT_TRUE(FollowsLoosely("**\"a\"**", quoted));
  EXPECT_FALSE(FollowsLoosely("a", quoted));
}

TEST(InstructionChecksTest, RefusesARecordWithoutInstructions) {
  const OrderedJson empty = OrderedJson::array();
  EXPECT_THROW(InstructionsOf({{"instruction_id_list", empty}, {"kwargs", empty}}), Error);
}

TEST(InstructionChecksTest, NamesWhatItCannotDecide) {
  EXPECT_FALSE(IsCheckOfText("language:response_language"));
  EXPECT_THROW(Follows("a", {"language:response_language", {}}), Error);
  EXPECT_THROW(Follows("a", {"keywords:existence", OrderedJson::object()}), Error);
}

}  // namespace
}  // namespace qlora
