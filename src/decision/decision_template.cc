#include "decision/decision_template.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "prompt/thought_forms.h"
#include "records/record_error.h"

namespace qlora {
namespace {

// Up to where the answer begins. An empty line ends the block before it: blocks take one line end.
constexpr std::string_view kBody =
    "{% set s = state if state is string else state | tojson %}{{ s }}\n"
    "{% set q = instructions if instructions is string else instructions | tojson %}{{ q }}\n"
    "{% for o in options %}{{ o.label }}. {{ o.key }}"
    "{% if o.description is not none %}: {{ o.description if o.description is string else "
    "o.description | tojson }}{% endif %}\n\n"
    "{% endfor %}Answer:";

// Words that no text of a template has.
constexpr std::string_view kStateWord = "QLORASTATE";
constexpr std::string_view kInstructionsWord = "QLORAINSTRUCTIONS";
constexpr std::string_view kLabelWord = "QLORALABEL";
constexpr std::string_view kAnswerWord = "QLORAANSWER";

// Returns the thought that is open at the end of a prompt, or null: its tag is not closed, and no
// special token, such as the head of a turn, comes behind it.
const ThoughtForm* OpenThought(std::string_view prompt,
                               std::span<const std::string> special_tokens) {
  for (const ThoughtForm& thought : kThoughtForms) {
    const std::string_view begin = TrimEnd(thought.begin);
    const std::size_t open = prompt.rfind(begin);
    if (open == std::string_view::npos) continue;
    const std::string_view behind = prompt.substr(open + begin.size());
    const auto has = [&](std::string_view text) { return behind.find(text) != behind.npos; };
    if (!has(thought.end) && std::none_of(special_tokens.begin(), special_tokens.end(), has)) {
      return &thought;
    }
  }
  return nullptr;
}

// An expression that writes `text` as it is, wherever it stands.
std::string Quoted(std::string_view text) {
  std::string out = "{{ '";
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += c == '\n' ? "\\n" : "\\r";
    } else {
      out += c == '\\' || c == '\'' ? "\\" : "";
      out += c;
    }
  }
  return out + "' }}";
}

// Puts `front` before a template. A tag with a minus would take the space at its end.
std::string WithFront(const std::string& front, const std::string& text) {
  const bool is_plain = !front.starts_with(' ') && front.find('{') == std::string::npos &&
                        (text.size() < 3 || text[0] != '{' || text[2] != '-');
  return (is_plain ? front : Quoted(front)) + text;
}

OrderedJson ViewOf(const Question& question, std::span<const std::int64_t> order,
                   std::span<const std::string> labels) {
  OrderedJson options = OrderedJson::array();
  for (std::size_t i = 0; i < order.size(); ++i) {
    const DecisionOption& option = question.options[order[i]];
    options.push_back({{"key", option.key},
                       {"description", option.description},
                       {"label", i < labels.size() ? labels[i] : ""}});
  }
  return {{"id", question.id},
          {"type", NameOf(question.type)},
          {"instructions", question.instructions},
          {"options", std::move(options)}};
}

// A decision with one question of a type, of as few options as it may have.
Decision ProbeOf(QuestionType type, OrderedJson state, OrderedJson instructions) {
  Question question;
  question.id = "id";
  question.type = type;
  question.instructions = std::move(instructions);
  for (const char* key : {"false", "true"}) {
    const bool is_score = type == QuestionType::kScore;
    question.options.push_back({.key = is_score ? std::to_string(question.options.size()) : key,
                                .description = is_score ? OrderedJson("level") : OrderedJson(),
                                .value = key});
  }
  return {.state = std::move(state), .questions = {std::move(question)}};
}

// Returns what a chat template puts between its prompt and an answer, if it does: the name of the
// channel that an answer has, or the end of a thought.
std::string BeforeAnswer(const ChatTemplate& chat, OrderedJson messages,
                         const std::string& prompt) {
  messages.push_back({{"role", "assistant"}, {"content", kAnswerWord}});
  try {
    const std::string text = chat.Run(messages, {}, TurnPrompt::kNone).text;
    const std::size_t at = text.find(kAnswerWord);
    if (!text.starts_with(prompt) || at == std::string::npos || at < prompt.size()) return "";
    const std::string between = text.substr(prompt.size(), at - prompt.size());
    return Trim(between).empty() ? "" : between;  // no text has a space alone before a letter
  } catch (const Error&) {
    return "";  // the template refuses such a conversation
  }
}

std::vector<std::string> SpecialTexts(const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (const AddedToken& token : tokenizer.spec().added_tokens) {
    if (token.special) texts.push_back(token.content);
  }
  return texts;
}

}  // namespace

OptionOrder GivenOrder(const Question& question) {
  OptionOrder order(question.options.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

DecisionTemplate::DecisionTemplate(std::string text, std::string name)
    : text_(std::move(text)), name_(std::move(name)), jinja_(text_, "decision_template " + name_) {
  const std::vector<std::string> labels = {"A", "B"};
  const auto shows = [&](const OrderedJson& state, const OrderedJson& instructions,
                         std::string_view word) {
    const Decision probe = ProbeOf(QuestionType::kNoul, state, instructions);
    try {
      return Run(probe, 0, GivenOrder(probe.questions[0]), labels).find(word) != std::string::npos;
    } catch (const Error&) {
      return true;  // it says itself what it does not take
    }
  };
  shows_object_states_ = shows({{"key", kStateWord}}, "", kStateWord);
  shows_object_instructions_ = shows("", {{"key", kInstructionsWord}}, kInstructionsWord);
}

void DecisionTemplate::CheckShows(const OrderedJson& value, bool shows_objects,
                                  std::string_view field) const {
  if (!value.is_structured() || shows_objects) return;
  ThrowInvalidInput(
      "{0}: is an {1}, of which decision_template {2} prints nothing; write {{{{ {0} if {0} is "
      "string else {0} | tojson }}}} there",
      field, value.type_name(), name_);
}

std::string DecisionTemplate::Render(const Decision& decision, std::int64_t q,
                                     std::span<const std::int64_t> order,
                                     std::span<const std::string> labels) const {
  const Question& question = decision.questions[q];
  if (order.size() > labels.size()) {
    ThrowInvalidInput(
        "question '{}' has {} options, more than the {} letters that are single tokens of this "
        "model's tokenizer; give fewer options, or max_options in training",
        question.id, order.size(), labels.size());
  }
  CheckShows(decision.state, shows_object_states_, "state");
  CheckShows(question.instructions, shows_object_instructions_, "instructions");
  return Run(decision, q, order, labels);
}

std::string DecisionTemplate::Run(const Decision& decision, std::int64_t q,
                                  std::span<const std::int64_t> order,
                                  std::span<const std::string> labels) const {
  const OrderedJson view = ViewOf(decision.questions[q], order, labels);
  OrderedJson questions = OrderedJson::array();
  if (text_.find("questions") != std::string::npos) {
    for (const Question& other : decision.questions) {
      const bool is_asked = &other == &decision.questions[q];
      questions.push_back(is_asked ? view : ViewOf(other, GivenOrder(other), labels));
    }
  }
  std::vector<JinjaVariable> variables = {{"state", &decision.state}, {"questions", &questions}};
  for (const auto& [name, value] : view.items()) variables.push_back({name, &value});
  JinjaOptions options;
  options.dialect = JinjaDialect::kLlamaCpp;
  return jinja_.Render(variables, options).text;
}

std::string PlainDecisionText() { return std::string(kBody) + "\n\n"; }

std::string ChatDecisionText(const ChatTemplate& chat) {
  const OrderedJson messages = {{{"role", "user"}, {"content", kStateWord}}};
  const std::string prompt = chat.Run(messages, {}, TurnPrompt::kWithoutThoughts).text;
  const std::string text = prompt + BeforeAnswer(chat, messages, prompt);
  const std::size_t at = text.find(kStateWord);
  if (at == std::string::npos || text.find(kStateWord, at + 1) != std::string::npos) {
    ThrowInvalidInput(
        "the chat template does not show the user's message once; give a Jinja file, or "
        "decision_template plain");
  }
  std::string behind = text.substr(at + kStateWord.size());
  if (const ThoughtForm* thought = OpenThought(text, chat.special_tokens())) {
    behind = fmt::format("{}\n\n{}\n\n", TrimEnd(behind), thought->end);
  }
  return Quoted(text.substr(0, at)) + std::string(kBody) + Quoted(behind);
}

DecisionTemplate LoadDecisionTemplate(const std::string& choice, const DecisionTokenizer& tokenizer,
                                      const ChatTemplate* chat) {
  std::string text;
  std::string name = !choice.empty() ? choice : chat != nullptr ? "chat" : "plain";
  if (name == "plain") {
    text = PlainDecisionText();
  } else if (name == "chat") {
    if (chat == nullptr) {
      ThrowInvalidInput(
          "decision_template chat: this model has no chat template; expected plain, "
          "or a Jinja file");
    }
    text =
        NamePlace([] { return "decision_template chat"; }, [&] { return ChatDecisionText(*chat); });
  } else if (std::filesystem::is_regular_file(name)) {
    text = ReadTextFile(name);
  } else {
    ThrowInvalidInput("decision_template: '{}' is no file; expected plain, chat, or a Jinja file",
                      name);
  }
  DecisionTemplate made(text, name);
  const Decision probe = ProbeOf(QuestionType::kNoul, kStateWord, "");
  const std::string rendered =
      made.Render(probe, 0, GivenOrder(probe.questions[0]), std::array<std::string, 2>{"A", "B"});
  const std::string front = tokenizer.Front();
  const std::string bos(TrimEnd(front));
  if (!rendered.starts_with(bos.empty() ? front : bos)) {
    made = DecisionTemplate(WithFront(front, text), name);
  }
  CheckDecisionTemplate(made, tokenizer);
  return made;
}

void CheckDecisionTemplate(const DecisionTemplate& decision_template,
                           const DecisionTokenizer& tokenizer) {
  const auto fail = [&](std::string_view what) {
    ThrowInvalidInput("decision_template {}: {}", decision_template.name(), what);
  };
  if (tokenizer.labels().size() < 2) {
    fail(
        fmt::format("the tokenizer makes single tokens of {} letters of A to Z; options are "
                    "labelled with such letters, so that this model cannot decide",
                    tokenizer.labels().size()));
  }
  const std::vector<std::string> special_tokens = SpecialTexts(tokenizer.tokenizer());
  const std::vector<std::string> letters = tokenizer.LabelTexts();
  for (const QuestionType type : kQuestionTypes) {
    const Decision probe = ProbeOf(type, kStateWord, kInstructionsWord);
    const OptionOrder order = GivenOrder(probe.questions[0]);
    const auto render = [&](std::span<const std::string> labels) {
      return decision_template.Render(probe, 0, order, labels);
    };
    std::vector<std::string> words;
    for (const std::string& letter : letters) words.push_back(std::string(kLabelWord) + letter);
    const std::string shown = render(words);
    if (shown.find(kStateWord) == shown.npos) fail("it leaves out the state ({{ state }})");
    for (const std::int64_t option : order) {
      if (shown.find(words[option]) != shown.npos) continue;
      fail(fmt::format("it leaves out the label of an option of a {} ({{{{ o.label }}}})",
                       NameOf(type)));
    }
    const std::string prompt = render(letters);
    if (const ThoughtForm* thought = OpenThought(prompt, special_tokens)) {
      fail(fmt::format("it ends inside a thought: close {} with {} before the answer begins",
                       TrimEnd(thought->begin), thought->end));
    }
    const std::vector<std::int32_t> ids = tokenizer.Encode(prompt);
    for (const DecisionLabel& label : tokenizer.labels()) {
      std::vector<std::int32_t> answered = ids;
      answered.push_back(label.id);
      if (tokenizer.Encode(prompt + label.text) == answered) continue;
      fail(
          fmt::format("behind its end the letter {} is not a token of its own; end it with a line "
                      "end (an empty line in the file), or '('",
                      label.text));
    }
  }
}

}  // namespace qlora
