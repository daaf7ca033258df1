// Answers that have the form of a grammar: which tokens may follow.
#include "serve/structured/grammar_edit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json.h"
#include "serve/structured/grammar_reader.h"
#include "serve/structured/json_schema_grammar.h"
#include "serve/structured/random_schema.h"
#include "serve/structured/token_texts.h"
#include "serve/tiny_model.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class GrammarEditTest : public testing::Test {
 protected:
  static constexpr std::int64_t kVocabulary = 288;
  static constexpr std::int32_t kEnd = 2;

  AnswerGrammar Form(const std::string& schema, const std::string& begins_behind = "") const {
    return {.grammar = std::make_shared<const ByteGrammar>(
                JsonSchemaGrammar(OrderedJson::parse(schema), "schema")),
            .texts = texts_,
            .begins_behind = begins_behind};
  }
  std::vector<float> Logits(GrammarEdit& edit, const std::vector<std::int32_t>& answer) const {
    std::vector<float> logits(kVocabulary);
    edit.Apply(answer, logits);
    EXPECT_TRUE(std::ranges::any_of(logits, IsAllowed));
    return logits;
  }
  static bool IsAllowed(float logit) { return logit == 0; }

  TestModelFolder folder_;
  Tokenizer tokenizer_ = Tokenizer::Load(folder_.path());
  std::shared_ptr<const TokenTexts> texts_ =
      std::make_shared<const TokenTexts>(tokenizer_, kVocabulary);
};

// Each token by itself is what the walk over sorted texts says.
TEST_F(GrammarEditTest, MasksAreThoseOfTheTexts) {
  const std::string schema = R"({"type": "object", "properties": {"the": {"type": "string"}}})";
  GrammarReader reader(Form(schema).grammar);
  for (const std::string begin : {"", "{", "{\"the", "{\"the\": \"", "{\"the\":\"a\"", "{}"}) {
    GrammarReader::Position at = reader.begin();
    for (const char byte : begin) at = reader.Next(at, static_cast<unsigned char>(byte));
    const std::vector<bool> allowed = texts_->Allowed(reader, at);
    for (std::int32_t token = 0; token < kVocabulary; ++token) {
      GrammarReader::Position behind = at;
      for (const char byte : texts_->Of(token)) {
        behind = reader.Next(behind, static_cast<unsigned char>(byte));
      }
      const bool is_text = token > 2 && !texts_->Of(token).empty();  // <unk>, <s> and </s> are none
      EXPECT_EQ(allowed[token], is_text && behind != GrammarReader::kNowhere)
          << begin << " " << texts_->Of(token);
    }
  }
}

// Ends need not be special tokens.
TEST_F(GrammarEditTest, AnEndIsNoTextOfTheForm) {
  std::int32_t a = 0;
  while (texts_->Of(a) != "a") ++a;
  GrammarEdit edit(Form(R"({"type": "string"})"), {a});
  std::int32_t quote = 0;
  while (texts_->Of(quote) != "\"") ++quote;
  EXPECT_FALSE(IsAllowed(Logits(edit, {quote})[a]));
  EXPECT_TRUE(IsAllowed(Logits(edit, {quote, quote})[a]));
}

// Whatever tokens are drawn among those that are allowed, the answer is valid.
TEST_F(GrammarEditTest, AnswersHaveTheForm) {
  for (int seed = 0; seed < 20; ++seed) {
    RandomSchema random(seed);
    const OrderedJson schema = random.Schema();
    GrammarEdit edit(Form(schema.dump()), {kEnd});
    std::vector<std::int32_t> answer;
    std::string text;
    while (true) {
      const std::vector<float> logits = Logits(edit, answer);
      std::vector<std::int32_t> allowed;
      for (std::int32_t token = 0; token < kVocabulary; ++token) {
        if (IsAllowed(logits[token])) allowed.push_back(token);
      }
      ASSERT_FALSE(allowed.empty());
      const std::int32_t token = random.Token(allowed, *texts_, kEnd, answer.size());
      if (token == kEnd) break;
      answer.push_back(token);
      text += texts_->Of(token);
      ASSERT_LT(answer.size(), 5000u);
    }
    const OrderedJson value = OrderedJson::parse(text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << text;
    EXPECT_TRUE(IsValid(value, schema, schema)) << schema << "\n" << text;
  }
}

// The engine would halt for all answers.
TEST_F(GrammarEditTest, ASchemaOfTooManyWaysIsRefused) {
  const AnswerGrammar form = Form(
      R"({"anyOf": [{"type": "string", "maxLength": 20}, {"type": "string", "maxLength": 21}]})");
  const std::vector<std::int32_t> answer = tokenizer_.Encode("\"a", false);
  std::vector<float> logits(kVocabulary);
  GrammarEdit(form, {kEnd}).Apply(answer, logits);
  GrammarEdit bounded(form, {kEnd}, /*most_work=*/100);
  try {
    bounded.Apply(answer, logits);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("alternatives"));
  }
}

TEST_F(GrammarEditTest, AThoughtComesBeforeTheForm) {
  GrammarEdit edit(Form(R"({"type": "null"})", "ok"), {kEnd});
  const auto tokens = [&](const std::string& text) { return tokenizer_.Encode(text, false); };
  std::vector<float> logits = Logits(edit, {});
  EXPECT_FALSE(IsAllowed(logits[kEnd])) << "a thought is no answer";
  EXPECT_EQ(std::ranges::count_if(logits, IsAllowed), kVocabulary - 1);
  const std::vector<std::int32_t> answer = tokens("so ok");
  logits = Logits(edit, answer);
  for (std::int32_t token = 0; token < kVocabulary; ++token) {
    const std::string_view text = texts_->Of(token);
    if (text == "n") {
      EXPECT_TRUE(IsAllowed(logits[token]));
    } else if (text == "x" || text == "}") {
      EXPECT_FALSE(IsAllowed(logits[token])) << text;
    }
  }
}

// A token that ends the thought goes on as the form begins, or not at all.
TEST_F(GrammarEditTest, ATokenMayEndAThoughtAndBeginTheForm) {
  for (std::int32_t thought = 3; thought < kVocabulary; ++thought) {
    const std::string mark(texts_->Of(thought));
    if (mark.size() != 1) continue;
    const AnswerGrammar form = Form(R"({"type": "string"})", mark);
    GrammarEdit edit(form, {kEnd});
    GrammarReader reader(form.grammar);
    const std::vector<float> logits = Logits(edit, {});
    for (std::int32_t token = 3; token < kVocabulary; ++token) {
      const std::string_view text = texts_->Of(token);
      const std::size_t at = text.find(mark);
      GrammarReader::Position behind = reader.begin();
      for (std::size_t i = at; at != std::string_view::npos && ++i < text.size();) {
        behind = reader.Next(behind, static_cast<unsigned char>(text[i]));
      }
      EXPECT_EQ(IsAllowed(logits[token]), behind != GrammarReader::kNowhere) << mark << text;
    }
  }
}

TEST_F(GrammarEditTest, AVocabularyWithoutTheText) {
  GrammarEdit edit(Form(R"({"const": "a"})"), {});
  std::vector<std::int32_t> answer;
  std::vector<float> logits(kVocabulary);
  for (const std::string text : {"\"", "a", "\""}) {
    std::ranges::fill(logits, 0);
    edit.Apply(answer, logits);
    ASSERT_TRUE(std::ranges::any_of(logits, IsAllowed));
    EXPECT_FALSE(edit.CanEnd());
    for (std::int32_t token = 3; token < kVocabulary; ++token) {
      if (texts_->Of(token) == text) {
        answer.push_back(token);
        break;
      }
    }
  }
  std::ranges::fill(logits, 0);
  edit.Apply(answer, logits);
  EXPECT_TRUE(std::ranges::none_of(logits, IsAllowed)) << "there is no token for the end";
  EXPECT_TRUE(edit.CanEnd());
}

}  // namespace
}  // namespace qlora
