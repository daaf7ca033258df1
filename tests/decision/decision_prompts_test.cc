// Prompts: their text, their tokens, and the order of their options.
#include "decision/decision_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "data/data_test_util.h"
#include "data/decision_encoder.h"
#include "decision/decision_record.h"
#include "prompt/chat_template_load.h"
#include "prompt/thought_forms.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tokenizer TinyTokenizer() {
  return Tokenizer::Load(SourceDir() / "tests/golden/decision/tiny-qwen3");
}
Tokenizer SentencePiece() { return Tokenizer::Load(SourceDir() / "tests/fixtures/llama2"); }

Decision DecisionOf(const std::string& record) {
  return ReadDecisionRecord(OrderedJson::parse(record), {}).decision;
}

constexpr const char* kWho =
    R"({"state": "Once.", "questions": {"who": {"type": "choice", "instructions": "Who?",
        "criteria": {"cat": "it says meow", "dog": null, "cow": {"says": "moo"}}},
        "glad": {"type": "noul", "instructions": {"ask": "glad?"}, "criteria": {"true": "yes"}},
        "hats": {"type": "score", "instructions": "How many?", "criteria": ["no", "one"]}}})";

// The prompts of a template and a tokenizer, which the tests ask for.
class Prompts {
 public:
  explicit Prompts(Tokenizer tokenizer, const std::string& choice = "plain",
                   PromptSpace space = PromptSpace::kOfPrompt, const ChatTemplate* chat = nullptr)
      : tokenizer_(std::move(tokenizer)),
        decisions_(tokenizer_, space),
        prompter_(LoadDecisionTemplate(choice, decisions_, chat), decisions_) {}

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const DecisionTokenizer& decisions() const { return decisions_; }
  const DecisionPrompter& prompter() const { return prompter_; }
  DecisionPrompt Encode(const Decision& decision, std::int64_t q) const {
    return prompter_.Encode(decision, q, GivenOrder(decision.questions[q]));
  }
  std::string Text(const Decision& decision, std::int64_t q) const {
    return prompter_.Text(decision, q, GivenOrder(decision.questions[q]));
  }

 private:
  Tokenizer tokenizer_;
  DecisionTokenizer decisions_;
  DecisionPrompter prompter_;
};

class TemplateFile {
 public:
  explicit TemplateFile(const std::string& text) {
    std::ofstream(folder_ / "t.jinja", std::ios::binary) << text;
  }
  std::string path() const { return (folder_ / "t.jinja").string(); }

 private:
  TemporaryFolder folder_;
};

std::string LoadError(const std::string& text, const Tokenizer& tokenizer) {
  const TemplateFile file(text);
  const DecisionTokenizer decisions(tokenizer);
  return ErrorOf([&] { LoadDecisionTemplate(file.path(), decisions, nullptr); }).what();
}

TEST(DecisionPromptsTest, EqualTheGoldenTokens) {
  const Prompts prompts(TinyTokenizer());
  std::ifstream file(SourceDir() / "tests/golden/decision/prompts.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    const OrderedJson golden = OrderedJson::parse(line);
    const DecisionRecord record = ReadDecisionRecord(golden["record"], {});
    ASSERT_EQ(record.decision.questions.size(), golden["prompts"].size());
    for (std::int64_t q = 0; q < std::ssize(record.decision.questions); ++q, ++count) {
      const OrderedJson& expected = golden["prompts"][q];
      const DecisionPrompt prompt = prompts.Encode(record.decision, q);
      EXPECT_EQ(record.decision.questions[q].id, expected["id"]);
      EXPECT_EQ(prompt.ids, expected["prompt_ids"].get<Ids>());
      EXPECT_EQ(prompt.label_ids, expected["label_ids"].get<Ids>());
      const auto target = expected["target"].get<std::vector<double>>();
      ASSERT_EQ(record.targets[q]->size(), target.size());
      for (std::size_t k = 0; k < target.size(); ++k) {
        EXPECT_NEAR((*record.targets[q])[k], target[k], 1e-15);
      }
    }
  }
  EXPECT_GT(count, 20);
}

// As real llama.cpp and Python's Jinja print it.
TEST(DecisionPromptsTest, PlainText) {
  const Prompts prompts(TinyTokenizer());
  const Decision decision = DecisionOf(kWho);
  EXPECT_EQ(prompts.Text(decision, 0),
            "Once.\nWho?\nA. cat: it says meow\nB. dog\nC. cow: {\"says\": \"moo\"}\nAnswer:\n");
  EXPECT_EQ(prompts.Text(decision, 1),
            "Once.\n{\"ask\": \"glad?\"}\nA. false\nB. true: yes\nAnswer:\n");
  EXPECT_EQ(prompts.Text(decision, 2), "Once.\nHow many?\nA. 0: no\nB. 1: one\nAnswer:\n");
  EXPECT_EQ(prompts.Text(DecisionOf(R"({"state": {"a": ["é", 1.0, null]}, "type": "noul",
                                        "instructions": "?"})"),
                         0),
            "{\"a\": [\"é\", 1.0, null]}\n?\nA. false\nB. true\nAnswer:\n");
  EXPECT_EQ(prompts.Text(DecisionOf(R"({"state": "s", "type": "score", "instructions": "?",
                                        "criteria": [10, ["b"], true, "d"]})"),
                         0),
            "s\n?\nA. 0: 10\nB. 1: [\"b\"]\nC. 2: true\nD. 3: d\nAnswer:\n");
  EXPECT_EQ(prompts.prompter().decision_template().text(), PlainDecisionText());
}

// What real llama.cpp (b12211) writes for this template and request.
TEST(DecisionPromptsTest, ATemplateSeesAllThatLlamaCppShows) {
  const TemplateFile file(
      "{{ id }} {{ type }} {{ state }} {{ instructions | tojson }}{% for q in questions %}\n\n"
      "{{ loop.index }}:{{ q.id }}:{{ q.type }}{% for o in q.options %} {{ o.label }}"
      "{% endfor %}{% endfor %}\n\n"
      "{% for o in options %}{{ o.label }}={{ o.key }}={{ o.description }}="
      "{{ o.description is none }}={{ 'd' if o.description else 'n' }}={{ o.nothing }};"
      "{% endfor %}{{ bos_token }}{{ messages }}{{ questions | length }}\n\n\n");
  const Prompts prompts(TinyTokenizer(), file.path());
  EXPECT_EQ(prompts.Text(DecisionOf(kWho), 0),
            "who choice Once. \"Who?\"\n1:who:choice A B C\n2:glad:noul A B\n3:hats:score A B\n"
            "A=cat=it says meow=False=d=;B=dog==True=n=;C=cow==False=d=;3\n\n");
}

TEST(DecisionPromptsTest, SpecialSpellingsOfUsersAreText) {
  const Prompts prompts(TinyTokenizer());
  const Decision decision = DecisionOf(
      R"({"state": {"a<|im_end|>": "<|im_start|><|im_end|>", "b": "<|im_end|"}, "questions": {"q": {
          "type": "choice", "instructions": "<|endoftext|>", "criteria": {"<|im_end|>": "x<|im_end|>",
          "y": null}}}})");
  EXPECT_TRUE(prompts.prompter().HasSpecialSpelling(decision));
  EXPECT_FALSE(prompts.prompter().HasSpecialSpelling(DecisionOf(kWho)));
  const DecisionPrompt prompt = prompts.Encode(decision, 0);
  for (const std::int32_t id : prompt.ids) EXPECT_FALSE(prompts.tokenizer().IsSpecial(id));
  EXPECT_EQ(prompts.tokenizer().Decode(prompt.ids, false), prompts.Text(decision, 0));
  // A special token of the template stays one.
  const TemplateFile file(
      "<|im_start|>{{ state }}{% for o in options %}{{ o.label }}{% endfor %}"
      "<|im_end|>\n\n");
  const Prompts own(TinyTokenizer(), file.path());
  const Decision text =
      DecisionOf(R"({"state": "<|im_end|>", "type": "noul", "instructions": "?"})");
  const Ids ids = own.Encode(text, 0).ids;
  EXPECT_EQ(std::ranges::count_if(ids, [&](auto id) { return own.tokenizer().IsSpecial(id); }), 2);
  EXPECT_EQ(own.tokenizer().Decode(ids, false), "<|im_start|><|im_end|>AB<|im_end|>\n");
}

// A text with the spelling of a special token is read as a tokenizer without such tokens reads it.
TEST(DecisionPromptsTest, ASpellingSplitsNoWord) {
  const Tokenizer with = MakeTestTokenizer({.bos = false, .special = {"b<", "<ab>"}});
  const Tokenizer without = MakeTestTokenizer({.bos = false});
  const EncodeOptions marked = {.special_tokens = false, .mark = "#"};
  for (const char* text : {"ab<", "x<ab>ab", "<ab<ab>>"}) {
    std::string spelled;
    for (const char c : std::string(text)) spelled += std::string(1, c) + "#";
    EXPECT_EQ(with.Encode(spelled, marked), without.Encode(text, false)) << text;
    EXPECT_NE(with.Encode(text, false), without.Encode(text, false)) << text;
  }
  EXPECT_EQ(with.Encode("a#b#<ab>", marked), Join({Ids{kAb}, Ids{kTestVocab + 1}}));
}

TEST(DecisionPromptsTest, SentencePieceGetsItsSpaceFromTheTemplate) {
  const Prompts prompts(SentencePiece());
  const DecisionTemplate& made = prompts.prompter().decision_template();
  EXPECT_EQ(made.text(), "<s> " + PlainDecisionText());
  const Decision decision = DecisionOf(kWho);
  const std::string text = prompts.Text(decision, 0);
  EXPECT_EQ(
      text,
      "<s> Once.\nWho?\nA. cat: it says meow\nB. dog\nC. cow: {\"says\": \"moo\"}\nAnswer:\n");
  // The tokens are those of the text alone, as training on texts has them.
  EXPECT_EQ(prompts.Encode(decision, 0).ids, prompts.tokenizer().Encode(text.substr(4)));
  // The labels are bare pieces; with the space of the tokenizer one letter of this vocabulary is
  // one.
  EXPECT_EQ(prompts.decisions().labels().size(), 26u);
  const DecisionTokenizer spaced(prompts.tokenizer(), PromptSpace::kOfTokenizer);
  EXPECT_THAT(spaced.LabelTexts(), ElementsAre("I"));
  // A template that has BOS keeps what it says.
  const TemplateFile file("<s>" + PlainDecisionText());
  EXPECT_EQ(Prompts(SentencePiece(), file.path()).prompter().decision_template().text(),
            "<s>" + PlainDecisionText());
}

TEST(DecisionPromptsTest, LabelsAreLettersThatAreSingleTokens) {
  for (const char* fixture : {"qwen2", "llama3", "gpt2", "gemma"}) {
    const Tokenizer tokenizer = Tokenizer::Load(SourceDir() / "tests/fixtures" / fixture);
    const DecisionTokenizer decisions(tokenizer);
    for (const DecisionLabel& label : decisions.labels()) {
      EXPECT_EQ(decisions.Encode(label.text), Ids{label.id}) << fixture;
    }
    EXPECT_EQ(decisions.labels().size(), 26u) << fixture;
  }
  // A letter that is a special token or none is left out.
  const Tokenizer tokenizer = MakeTestTokenizer({.bos = false});
  EXPECT_EQ(DecisionTokenizer(tokenizer).LabelTexts().front(), "A");
}

TEST(DecisionPromptsTest, FrontIsQuotedWhereATagWouldTakeItsSpace) {
  const TemplateFile file(
      "{%- set s = state %}{{ s }}{% for o in options %}{{ o.label }}\n"
      "{% endfor %}Answer:\n\n");
  const Prompts prompts(SentencePiece(), file.path());
  EXPECT_THAT(prompts.prompter().decision_template().text(),
              testing::StartsWith("{{ '<s> ' }}{%- set"));
  EXPECT_EQ(prompts.Text(DecisionOf(kWho), 0), "<s> Once.A\nB\nC\nAnswer:\n");
}

// ---- chat

struct ChatCase {
  const char* fixture;
  const char* front;
  const char* behind;
};

TEST(DecisionPromptsTest, ChatIsTheUsersMessage) {
  const std::vector<ChatCase> cases = {
      {"chatml", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"},
      {"qwen3", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
      {"deepseek", "<s><|User|>", "<|Assistant|><think>\n\n</think>\n\n"},
      {"llama2", "<s>[INST] ", " [/INST]"},
      {"channels", "<s><|turn>user\n", "<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"},
  };
  const std::string body =
      "Once.\nWho?\nA. cat: it says meow\nB. dog\nC. cow: {\"says\": \"moo\"}\nAnswer:";
  for (const ChatCase& c : cases) {
    SCOPED_TRACE(c.fixture);
    const Tokenizer tokenizer =
        MakeTestTokenizer({.bos = false, .special = {"<|User|>", "<|Assistant|>"}});
    const ChatTemplate chat(ReadFixture(fmt::format("chat/{}.jinja", c.fixture)), tokenizer);
    const DecisionTokenizer decisions(tokenizer);
    const DecisionTemplate made = LoadDecisionTemplate("", decisions, &chat);
    EXPECT_EQ(made.name(), "chat");
    const Decision decision = DecisionOf(kWho);
    EXPECT_EQ(made.Render(decision, 0, GivenOrder(decision.questions[0]), decisions.LabelTexts()),
              c.front + body + c.behind);
  }
}

TEST(DecisionPromptsTest, ChatNeedsATemplateThatShowsTheMessageOnce) {
  const Tokenizer tokenizer = MakeTestTokenizer();
  const DecisionTokenizer decisions(tokenizer);
  for (const char* text : {"hello", "{{ messages[0].content }}{{ messages[0].content }}",
                           "{{ messages[0].content | lower }}"}) {
    const ChatTemplate chat(text, tokenizer);
    ExpectRefused(
        [&] { LoadDecisionTemplate("chat", decisions, &chat); },
        "decision_template chat: the chat template does not show the user's message once");
  }
  ExpectRefused([&] { LoadDecisionTemplate("chat", decisions, nullptr); }, "no chat template");
  ExpectRefused([&] { LoadDecisionTemplate("plian", decisions, nullptr); },
                "decision_template: 'plian' is no file; expected plain, chat, or a Jinja file");
}

// ---- checks

TEST(DecisionPromptsTest, RefusesTemplatesThatCannotBeAnswered) {
  const Tokenizer tiny = TinyTokenizer();
  const std::string labels = "{% for o in options %}{{ o.label }}\n{% endfor %}";
  EXPECT_THAT(LoadError(labels + "\n\n", tiny), HasSubstr("it leaves out the state"));
  EXPECT_THAT(LoadError("{{ state }}\n\n", tiny),
              HasSubstr("it leaves out the label of an option"));
  EXPECT_THAT(LoadError("{{ state }}{% if type == 'noul' %}" + labels + "{% endif %}\n\n", tiny),
              HasSubstr("label of an option of a choice"));
  const Tokenizer qwen2 = Tokenizer::Load(SourceDir() / "tests/fixtures/qwen2");
  EXPECT_THAT(LoadError("{{ state }}" + labels + "Answer: \n", qwen2),  // " I" is one token
              HasSubstr("behind its end the letter I is not a token of its own"));
  for (const ThoughtForm& thought : kThoughtForms) {
    const std::string_view begin = TrimEnd(thought.begin);
    EXPECT_THAT(LoadError(fmt::format("{{{{ state }}}}{}{}\n\n", labels, begin), tiny),
                HasSubstr(fmt::format("inside a thought: close {} with {}", begin, thought.end)));
  }
  EXPECT_THAT(LoadError("{{ state }", tiny), HasSubstr("t.jinja:1:"));
  EXPECT_THAT(LoadError("{{ state | frobnicate }}" + labels + "\n\n", tiny),
              HasSubstr("filter 'frobnicate' is not supported"));
  // A thought that is closed, or that the head of a turn ends, is none.
  const DecisionTokenizer decisions(tiny);
  for (const char* end : {"<think>\n\n</think>\n\n", "<think> or not<|im_start|>assistant\n\n"}) {
    const TemplateFile file("{{ state }}" + labels + end);
    LoadDecisionTemplate(file.path(), decisions, nullptr);
  }
}

TEST(DecisionPromptsTest, RefusesStatesThatATemplateDoesNotShow) {
  const TemplateFile file(
      "{{ state }} {{ instructions }}{% for o in options %}{{ o.label }}\n"
      "{% endfor %}\n\n");
  const Prompts prompts(TinyTokenizer(), file.path());
  EXPECT_EQ(prompts.Text(DecisionOf(R"({"state": "S", "type": "noul", "instructions": "I"})"), 0),
            "S IA\nB\n");
  const Decision object = DecisionOf(R"({"state": {"a": 1}, "type": "noul", "instructions": "I"})");
  ExpectRefused([&] { prompts.Encode(object, 0); },
                "state: is an object, of which decision_template");
  ExpectRefused([&] { prompts.Encode(DecisionOf(kWho), 1); }, "instructions: is an object");
}

TEST(DecisionPromptsTest, RefusesMoreOptionsThanLetters) {
  const Prompts prompts(TinyTokenizer());
  OrderedJson keys = OrderedJson::array();
  for (int i = 0; i < 27; ++i) keys.push_back(fmt::format("k{}", i));
  const Decision decision =
      ReadDecisionRecord(
          {{"state", "s"}, {"type", "choice"}, {"instructions", "?"}, {"criteria", keys}}, {})
          .decision;
  ExpectRefused([&] { prompts.Encode(decision, 0); },
                "question 'question' has 27 options, more than the 26 letters");
  const OptionOrder some = LimitOrder(GivenOrder(decision.questions[0]), HardTarget([] {
                                        std::vector<double> target(27);
                                        target[26] = 1;
                                        return target;
                                      }()),
                                      4);
  EXPECT_THAT(some, ElementsAre(0, 1, 2, 26));
  EXPECT_EQ(prompts.prompter().Encode(decision, 0, some).label_ids.size(), 4u);
}

TEST(DecisionPromptsTest, RefusesSpecialSpellingsWithoutAFreeMark) {
  const Prompts prompts(TinyTokenizer());
  std::string spelling;
  for (const AddedToken& token : prompts.tokenizer().spec().added_tokens) {
    if (token.special && token.content.size() > 1) spelling = token.content;
  }
  ASSERT_FALSE(spelling.empty());
  std::string all;
  for (char32_t c = 0xFDD0; c <= 0xFDEF; ++c) AppendUtf8(c, &all);
  Decision decision = DecisionOf(kWho);
  decision.state = all;
  EXPECT_FALSE(prompts.Encode(decision, 0).ids.empty());
  decision.state = spelling + all;
  ExpectRefused([&] { prompts.Encode(decision, 0); }, "U+FDD0 to U+FDEF");
}

// The place of the answer says nothing, and of a score nothing is left out.
TEST(DecisionPromptsTest, LimitedChoicesShowTheAnswerAtEveryPlace) {
  const Tokenizer tokenizer = TinyTokenizer();
  DecisionOptions options;
  options.shuffles_options = true;
  options.max_options = 3;
  options.share_prefix = false;  // whose length depends on what comes first
  const DecisionEncoder encoder(PlainDecisionText(), options, tokenizer);
  const OrderedJson record = OrderedJson::parse(
      R"({"state": "s", "questions": {
          "c": {"type": "choice", "instructions": "?", "criteria": ["a", "b", "c", "d", "e"]},
          "s": {"type": "score", "instructions": "?", "criteria": ["l", "m", "n", "o"]}},
          "answers": {"c": "d", "s": 3}})");
  // The order of one visit with the options of another.
  const auto sorted = [](std::vector<std::int32_t> ids) {
    std::ranges::sort(ids);
    return ids;
  };
  const std::vector<std::int32_t> first = encoder.Encode(record).sample.ids;
  std::size_t other_orders = 0;
  std::vector<int> places(3);
  constexpr int kVisits = 300;
  for (std::uint64_t visit = 0; visit < kVisits; ++visit) {
    const std::vector<Choice> choices = encoder.Encode(record, visit).sample.choices;
    ASSERT_EQ(choices.size(), 2u);
    ASSERT_EQ(choices[0].targets.size(), 3u);
    ++places[FirstLargest(choices[0].targets)];
    EXPECT_EQ(choices[1].targets.size(), 4u);
    const std::vector<std::int32_t> ids = encoder.Encode(record, visit, 0).sample.ids;
    EXPECT_EQ(sorted(ids), sorted(first));
    other_orders += ids != first ? 1 : 0;
  }
  EXPECT_GT(other_orders, kVisits / 2u);
  for (const int count : places) EXPECT_NEAR(count, kVisits / 3, 50);
}

// ---- orders

TEST(DecisionPromptsTest, TargetsMoveWithTheirOptions) {
  const Prompts prompts(TinyTokenizer());
  const Decision decision = DecisionOf(kWho);
  const OptionOrder order = {2, 0, 1};
  EXPECT_EQ(prompts.prompter().Text(decision, 0, order),
            "Once.\nWho?\nA. cow: {\"says\": \"moo\"}\nB. cat: it says meow\nC. dog\nAnswer:\n");
  EXPECT_THAT(InOrder({0.1, 0.2, 0.7}, order), ElementsAre(0.7, 0.1, 0.2));
  EXPECT_THAT(OfOptions({0.7, 0.1, 0.2}, order, 3), ElementsAre(0.1, 0.2, 0.7));
  EXPECT_THAT(OfOptions({0.6, 0.4}, {2, 0}, 3), ElementsAre(0.4, 0, 0.6));
}

TEST(DecisionPromptsTest, OnlyChoicesAreShuffledAndShifted) {
  const Decision decision = DecisionOf(kWho);
  std::set<OptionOrder> seen;
  for (std::int64_t visit = 0; visit < 100; ++visit) {
    OptionOrder order = ShuffledOrder(decision.questions[0], 7, visit, 0);
    EXPECT_EQ(order, ShuffledOrder(decision.questions[0], 7, visit, 0));
    seen.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 1, 2));
    for (const std::int64_t q : {1, 2}) {
      EXPECT_THAT(ShuffledOrder(decision.questions[q], 7, visit, q), ElementsAre(0, 1));
      EXPECT_THAT(ShiftedOrder(decision.questions[q], visit), ElementsAre(0, 1));
    }
  }
  EXPECT_EQ(seen.size(), 6u);
  EXPECT_THAT(ShiftedOrder(decision.questions[0], 1), ElementsAre(1, 2, 0));
  EXPECT_THAT(ShiftedOrder(decision.questions[0], 3), ElementsAre(0, 1, 2));
}

TEST(DecisionPromptsTest, PromptsOfARecordShareTheirFront) {
  const Prompts prompts(TinyTokenizer());
  const Decision decision = DecisionOf(kWho);
  const std::vector<DecisionPrompt> all = {prompts.Encode(decision, 0),
                                           prompts.Encode(decision, 1)};
  const std::int64_t shared = SharedPrefix(all);
  EXPECT_GT(shared, 2);
  EXPECT_TRUE(std::equal(all[0].ids.begin(), all[0].ids.begin() + shared, all[1].ids.begin()));
  EXPECT_NE(all[0].ids[shared], all[1].ids[shared]);
  const std::vector<DecisionPrompt> same = {all[0], all[0]};
  EXPECT_EQ(SharedPrefix(same), std::ssize(all[0].ids) - 1);
  EXPECT_EQ(SharedPrefix({}), 0);
}

}  // namespace
}  // namespace qlora
