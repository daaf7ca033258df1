#include "task/instruction_checks.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "io/pattern.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

using jinja::Side;
using jinja::StripText;

std::string Trimmed(std::string_view text) { return std::string(StripText(text)); }
bool IsBlank(std::string_view text) { return StripText(text).empty(); }

// The arguments of an instruction, and the searches of a text that it makes.
class Check {
 public:
  Check(std::string_view answer, const Instruction& instruction)
      : answer_(answer), instruction_(instruction) {}

  std::string_view answer() const { return answer_; }

  std::string Text(const char* name) const {
    const OrderedJson& value = Argument(name);
    if (!value.is_string()) Fail(name, "a text");
    return value.get<std::string>();
  }
  std::int64_t Number(const char* name) const {
    const OrderedJson& value = Argument(name);
    if (!value.is_number()) Fail(name, "a number");
    return static_cast<std::int64_t>(value.get<double>());
  }
  std::vector<std::string> Texts(const char* name) const {
    std::vector<std::string> texts;
    for (const OrderedJson& item : Argument(name)) {
      if (!item.is_string()) Fail(name, "a list of texts");
      texts.push_back(item.get<std::string>());
    }
    return texts;
  }

  std::int64_t Count(const std::string& pattern) const {
    return std::ssize(FindAll(pattern, answer_, instruction_.id));
  }
  std::vector<std::string> Matches(const std::string& pattern) const {
    std::vector<std::string> texts;
    for (const auto& match : FindAll(pattern, answer_, instruction_.id)) {
      texts.push_back(match.front());
    }
    return texts;
  }
  std::vector<std::string> Parts(const std::string& pattern) const {
    return SplitAtMatches(pattern, answer_, instruction_.id);
  }
  // "less than" or "at least" so many.
  bool Holds(std::int64_t found, const char* relation, const char* bound) const {
    return Text(relation) == "less than" ? found < Number(bound) : found >= Number(bound);
  }

 private:
  const OrderedJson& Argument(const char* name) const {
    const auto found = instruction_.arguments.find(name);
    if (found == instruction_.arguments.end()) Fail(name, "a value");
    return *found;
  }
  [[noreturn]] void Fail(const char* name, const char* expected) const {
    ThrowInvalidInput("kwargs: {} needs {}: expected {}", instruction_.id, name, expected);
  }

  std::string_view answer_;
  const Instruction& instruction_;
};

bool HasKeywords(const Check& check) {
  for (const std::string& word : check.Texts("keywords")) {
    if (check.Count("(?i)" + word) == 0) return false;
  }
  return true;
}

bool LacksWords(const Check& check) {
  for (const std::string& word : check.Texts("forbidden_words")) {
    if (check.Count("(?i)\\b" + word + "\\b") > 0) return false;
  }
  return true;
}

bool CountsKeyword(const Check& check) {
  return check.Holds(check.Count("(?i)" + check.Text("keyword")), "relation", "frequency");
}

bool CountsLetter(const Check& check) {
  const std::string letter = LowerText(check.Text("letter"));
  const std::string text = LowerText(check.answer());
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.find(letter, at)) != std::string::npos; at += letter.size()) {
    if (letter.empty()) break;
    ++count;
  }
  return check.Holds(count, "let_relation", "let_frequency");
}

bool CountsWords(const Check& check) {
  return check.Holds(check.Count("\\w+"), "relation", "num_words");
}

// Paragraphs between "***"; only the first and the last may be empty.
bool CountsParagraphs(const Check& check) {
  const std::vector<std::string> parts = check.Parts("\\s?\\*\\*\\*\\s?");
  auto count = std::ssize(parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!IsBlank(parts[i])) continue;
    if (i != 0 && i + 1 != parts.size()) return false;
    --count;
  }
  return count == check.Number("num_paragraphs");
}

bool BeginsParagraph(const Check& check) {
  constexpr std::string_view kPunctuation = ".,?!'\"";
  const std::vector<std::string> parts = check.Parts("\\n\\n");
  const auto count = std::count_if(parts.begin(), parts.end(),
                                   [](const std::string& part) { return !IsBlank(part); });
  const std::int64_t nth = check.Number("nth_paragraph");
  if (nth < 1 || nth > count || IsBlank(parts[nth - 1])) return false;
  const std::string_view paragraph = StripText(parts[nth - 1]);
  std::size_t end = 0;
  while (end < paragraph.size() && !IsBlank(paragraph.substr(end, 1))) ++end;
  std::string_view word = paragraph.substr(0, end);
  word = StripText(StripText(word, Side::kLeft, "'"), Side::kLeft, "\"");
  word = word.substr(0, word.find_first_of(kPunctuation));
  return count == check.Number("num_paragraphs") &&
         LowerText(word) == LowerText(check.Text("first_word"));
}

bool HasPlaceholders(const Check& check) {
  return check.Count("\\[.*?\\]") >= check.Number("num_placeholders");
}

bool HasPostscript(const Check& check) {
  const std::string marker = check.Text("postscript_marker");
  const std::string pattern = marker == "P.P.S"  ? "p\\.\\s?p\\.\\s?s"
                              : marker == "P.S." ? "p\\.\\s?s\\."
                                                 : LowerText(marker);
  return !FindAll("(?m)\\s*" + pattern + ".*$", LowerText(check.answer()), "postscript").empty();
}

bool CountsBullets(const Check& check) {
  return check.Count("(?m)^\\s*\\*[^\\*].*$") + check.Count("(?m)^\\s*-.*$") ==
         check.Number("num_bullets");
}

bool AnswersAsAsked(const Check& check) {
  constexpr std::string_view kAnswers[] = {"My answer is yes.", "My answer is no.",
                                           "My answer is maybe."};
  return std::any_of(std::begin(kAnswers), std::end(kAnswers), [&](std::string_view text) {
    return check.answer().find(text) != std::string_view::npos;
  });
}

bool HasHighlights(const Check& check) {
  std::int64_t count = 0;
  for (const char* pattern : {"\\*[^\\n\\*]*\\*", "\\*\\*[^\\n\\*]*\\*\\*"}) {
    for (const std::string& text : check.Matches(pattern)) {
      count += IsBlank(StripText(text, Side::kBoth, "*")) ? 0 : 1;
    }
  }
  return count >= check.Number("num_highlights");
}

bool HasSections(const Check& check) {
  const std::string pattern = "\\s?" + check.Text("section_spliter") + "\\s?\\d+\\s?";
  return std::ssize(check.Parts(pattern)) - 1 >= check.Number("num_sections");
}

bool IsJson(const Check& check) {
  std::string_view text = StripText(check.answer());
  for (const std::string_view fence : {"```json", "```Json", "```JSON", "```"}) {
    if (text.starts_with(fence)) text.remove_prefix(fence.size());
  }
  if (text.ends_with("```")) text.remove_suffix(3);
  Json value;
  return !TryParseJson(StripText(text), value).has_value();
}

bool HasTitle(const Check& check) {
  const std::vector<std::string> titles = check.Matches("<<[^\\n]+>>");
  return std::any_of(titles.begin(), titles.end(), [](const std::string& title) {
    return !IsBlank(StripText(StripText(title, Side::kLeft, "<"), Side::kRight, ">"));
  });
}

bool GivesTwoAnswers(const Check& check) {
  const std::vector<std::string> parts = check.Parts("\\*\\*\\*\\*\\*\\*");
  std::vector<std::string> answers;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!IsBlank(parts[i])) {
      answers.push_back(Trimmed(parts[i]));
    } else if (i != 0 && i + 1 != parts.size()) {
      return false;
    }
  }
  return answers.size() == 2 && answers[0] != answers[1];
}

bool RepeatsPrompt(const Check& check) {
  return LowerText(StripText(check.answer()))
      .starts_with(LowerText(StripText(check.Text("prompt_to_repeat"))));
}

bool EndsAsAsked(const Check& check) {
  const std::string_view text = StripText(StripText(check.answer()), Side::kBoth, "\"");
  return LowerText(text).ends_with(LowerText(StripText(check.Text("end_phrase"))));
}

bool IsQuoted(const Check& check) {
  const std::string_view text = StripText(check.answer());
  return text.size() > 1 && text.front() == '"' && text.back() == '"';
}

bool HasNoComma(const Check& check) { return check.answer().find(',') == std::string_view::npos; }

struct KnownInstruction {
  std::string_view id;
  bool (*follows)(const Check& check);
};
constexpr KnownInstruction kInstructions[] = {
    {"keywords:existence", HasKeywords},
    {"keywords:frequency", CountsKeyword},
    {"keywords:forbidden_words", LacksWords},
    {"keywords:letter_frequency", CountsLetter},
    {"length_constraints:number_words", CountsWords},
    {"length_constraints:number_paragraphs", CountsParagraphs},
    {"length_constraints:nth_paragraph_first_word", BeginsParagraph},
    {"detectable_content:number_placeholders", HasPlaceholders},
    {"detectable_content:postscript", HasPostscript},
    {"detectable_format:number_bullet_lists", CountsBullets},
    {"detectable_format:constrained_response", AnswersAsAsked},
    {"detectable_format:number_highlighted_sections", HasHighlights},
    {"detectable_format:multiple_sections", HasSections},
    {"detectable_format:json_format", IsJson},
    {"detectable_format:title", HasTitle},
    {"combination:two_responses", GivesTwoAnswers},
    {"combination:repeat_prompt", RepeatsPrompt},
    {"startend:end_checker", EndsAsAsked},
    {"startend:quotation", IsQuoted},
    {"punctuation:no_comma", HasNoComma},
};

const KnownInstruction* FindInstruction(std::string_view id) {
  const auto* found = std::find_if(std::begin(kInstructions), std::end(kInstructions),
                                   [&](const KnownInstruction& known) { return known.id == id; });
  return found == std::end(kInstructions) ? nullptr : found;
}

}  // namespace

std::vector<Instruction> InstructionsOf(const OrderedJson& record) {
  const auto ids = record.find("instruction_id_list");
  const auto kwargs = record.find("kwargs");
  const bool fit = ids != record.end() && kwargs != record.end() && ids->is_array() &&
                   kwargs->is_array() && ids->size() == kwargs->size();
  if (!fit) {
    ThrowInvalidInput("expected the lists instruction_id_list and kwargs, of one length");
  }
  if (ids->empty()) ThrowInvalidInput("instruction_id_list: there is no instruction to follow");
  std::vector<Instruction> instructions;
  for (std::size_t i = 0; i < ids->size(); ++i) {
    if (!(*ids)[i].is_string() || !(*kwargs)[i].is_object()) {
      ThrowInvalidInput("instruction_id_list[{}]: expected a name, and an object in kwargs", i);
    }
    instructions.push_back({(*ids)[i].get<std::string>(), (*kwargs)[i]});
  }
  return instructions;
}

bool IsCheckOfText(std::string_view id) { return FindInstruction(id) != nullptr; }

bool Follows(std::string_view answer, const Instruction& instruction) {
  const KnownInstruction* known = FindInstruction(instruction.id);
  if (known == nullptr) {
    ThrowInvalidInput("instruction_id_list: '{}' is no check of the text alone", instruction.id);
  }
  return !IsBlank(answer) && known->follows(Check(answer, instruction));
}

bool FollowsLoosely(std::string_view answer, const Instruction& instruction) {
  const auto behind_first = [](std::string_view text) {
    const std::size_t line = text.find('\n');
    return StripText(line == std::string_view::npos ? std::string_view() : text.substr(line + 1));
  };
  const auto before_last = [](std::string_view text) {
    const std::size_t line = text.rfind('\n');
    return StripText(line == std::string_view::npos ? std::string_view() : text.substr(0, line));
  };
  const std::string_view first = behind_first(answer);
  const std::string_view last = before_last(answer);
  // Both: a text of two lines is empty without them.
  const std::size_t begin = answer.find('\n');
  const std::size_t end = answer.rfind('\n');
  const std::string_view both =
      begin < end ? StripText(answer.substr(begin + 1, end - begin - 1)) : std::string_view();
  for (const std::string_view text : {answer, first, last, both}) {
    std::string plain(text);
    std::erase(plain, '*');
    if (Follows(text, instruction) || Follows(plain, instruction)) return true;
  }
  return false;
}

}  // namespace qlora
