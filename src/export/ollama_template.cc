#include "export/ollama_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "io/json.h"
#include "prompt/chat_template_load.h"
#include "qlora/error.h"

namespace qlora {
namespace {

// Words that no template has, and that nothing trims.
constexpr std::string_view kSystem = "Qsystem0q";

std::string UserOf(int turn) { return fmt::format("Quser{}q", turn); }
std::string AnswerOf(int turn) { return fmt::format("Qanswer{}q", turn); }

// Messages of `users` turns; the last one has no answer.
OrderedJson MessagesOf(bool system, int users, bool answered) {
  OrderedJson messages = OrderedJson::array();
  const auto add = [&](const char* role, std::string content) {
    messages.push_back({{"role", role}, {"content", std::move(content)}});
  };
  if (system) add("system", std::string(kSystem));
  for (int i = 0; i < users; ++i) {
    add("user", UserOf(i));
    if (i + 1 < users || answered) add("assistant", AnswerOf(i));
  }
  return messages;
}

// The text of MessagesOf in these turns, with the prompt for an answer.
std::string Compose(const TurnTexts& turns, bool system, int users) {
  std::string text;
  const bool own = system && turns.place == SystemPlace::kOwn;
  if (own) {
    text = turns.before_system + std::string(kSystem) + turns.after_system;
  } else if (!system) {
    text = turns.opening;
  }
  for (int i = 0; i < users; ++i) {
    text += turns.before_user;
    const bool has_system = turns.place == SystemPlace::kFirstUser  ? i == 0
                            : turns.place == SystemPlace::kLastUser ? i + 1 == users
                                                                    : false;
    if (system && has_system) {
      text += turns.before_system + std::string(kSystem) + turns.after_system;
    }
    text += UserOf(i) + turns.after_user;
    if (i + 1 < users) text += turns.before_answer + AnswerOf(i) + turns.after_answer;
  }
  return text + turns.prompt;
}

// Takes `end` off the end; false where it is not there.
bool TakeEnd(std::string& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.resize(text.size() - end.size());
  return true;
}
bool TakeBegin(std::string& text, std::string_view begin) {
  if (!text.starts_with(begin)) return false;
  text.erase(0, begin.size());
  return true;
}

// The text between two words of a rendering; nothing where they are not there once, in this order.
// "" stands for the beginning and the end.
std::optional<std::string> Between(std::string_view text, std::string_view from,
                                   std::string_view to) {
  std::size_t begin = 0;
  if (!from.empty()) {
    begin = text.find(from);
    if (begin == text.npos || text.find(from, begin + 1) != text.npos) return std::nullopt;
    begin += from.size();
  }
  const std::size_t end = to.empty() ? text.size() : text.find(to, begin);
  if (end == text.npos) return std::nullopt;
  return std::string(text.substr(begin, end - begin));
}

std::string Trimmed(const std::string& text) {
  constexpr const char* kSpace = " \n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

class Prober {
 public:
  explicit Prober(const ChatTemplate& chat, std::string bos) : chat_(chat), bos_(std::move(bos)) {}

  // Nothing where the turns are of another form.
  std::optional<TurnTexts> Run() {
    const auto one = Render(false, 1, false, TurnPrompt::kUsual);
    const auto two = Render(false, 2, false, TurnPrompt::kUsual);
    const auto bare = Render(false, 1, false, TurnPrompt::kNone);
    const auto answered = Render(false, 1, true, TurnPrompt::kNone);
    if (!one || !two || !bare || !answered) return std::nullopt;
    const auto before = Between(*one, "", UserOf(0));
    const auto after = Between(*one, UserOf(0), "");
    const auto to_answer = Between(*two, UserOf(0), AnswerOf(0));
    const auto to_user = Between(*two, AnswerOf(0), UserOf(1));
    const auto user_end = Between(*bare, UserOf(0), "");
    const auto answer_end = Between(*answered, AnswerOf(0), "");
    if (!before || !after || !to_answer || !to_user || !user_end || !answer_end) {
      return std::nullopt;
    }
    TurnTexts turns;
    turns.opening = *before;
    turns.after_user = *user_end;
    turns.prompt = *after;
    turns.before_answer = *to_answer;
    turns.before_user = *to_user;
    turns.after_answer = *answer_end;
    const bool fits = TakeBegin(turns.prompt, turns.after_user) &&
                      TakeBegin(turns.before_answer, turns.after_user) &&
                      TakeBegin(turns.before_user, turns.after_answer);
    if (!fits) return std::nullopt;
    // A BOS before each user: the first one is the tokenizer's, the others end the answers.
    if (!turns.opening.ends_with(turns.before_user) && !bos_.empty() &&
        TakeBegin(turns.before_user, bos_)) {
      turns.after_answer += bos_;
    }
    if (!TakeEnd(turns.opening, turns.before_user)) return std::nullopt;
    return PlaceSystem(turns) && Holds(turns) ? std::optional(turns) : std::nullopt;
  }

 private:
  // Without a BOS that the tokenizer puts in front. Nothing where the template refuses.
  std::optional<std::string> Render(bool system, int users, bool answered,
                                    TurnPrompt prompt) const {
    const OrderedJson messages = MessagesOf(system, users, answered);
    try {
      std::string text =
          chat_.Run(messages, {.messages = messages, .tools = nullptr, .trained = {}}, prompt).text;
      TakeBegin(text, bos_);
      return text;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // False for a system message that is shown elsewhere than TurnTexts can say. One that is refused
  // or not shown has no place.
  bool PlaceSystem(TurnTexts& turns) const {
    const auto one = Render(true, 1, false, TurnPrompt::kUsual);
    const auto two = Render(true, 2, false, TurnPrompt::kUsual);
    const auto shows = [](const std::optional<std::string>& text) {
      return text && text->find(kSystem) != text->npos;
    };
    if (!shows(one) && !shows(two)) return true;
    if (!one || !two) return false;
    const auto before = Between(*one, "", kSystem);
    const auto after = Between(*one, kSystem, UserOf(0));
    if (!before || !after) return false;
    turns.before_system = *before;
    turns.after_system = *after;
    if (TakeEnd(turns.after_system, turns.before_user)) {
      turns.place = SystemPlace::kOwn;
      return true;
    }
    if (!TakeBegin(turns.before_system, turns.before_user)) return false;
    turns.place = two->find(kSystem) < two->find(UserOf(0)) ? SystemPlace::kFirstUser
                                                            : SystemPlace::kLastUser;
    return true;
  }

  bool Holds(const TurnTexts& turns) const {
    for (const bool system : {false, true}) {
      if (system && turns.place == SystemPlace::kNone) continue;
      for (const int users : {1, 2, 3}) {
        const auto expected = Render(system, users, false, TurnPrompt::kUsual);
        if (!expected || *expected != Compose(turns, system, users)) return false;
      }
    }
    return true;
  }

  const ChatTemplate& chat_;
  std::string bos_;  // "" where the tokenizer puts none in front
};

// Whether the template shows a tool. One that reads the tools to refuse them shows none.
bool ShowsTools(const ChatTemplate& chat) {
  constexpr const char* kTool = "Qtool0q";
  const OrderedJson messages = MessagesOf(false, 1, false);
  const OrderedJson tools = {
      {{"type", "function"},
       {"function",
        {{"name", kTool},
         {"description", "Q"},
         {"parameters", {{"type", "object"}, {"properties", OrderedJson::object()}}}}}}};
  try {
    return chat.Prompt(messages, tools).find(kTool) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

// Whether the text may stand in a TEMPLATE in three quotes, outside of actions.
bool IsPlain(std::string_view text) {
  for (const std::string_view mark : {"{{", "}}", "\"\"\"", "{%"}) {
    if (text.find(mark) != text.npos) return false;
  }
  return std::ranges::all_of(text,
                             [](unsigned char c) { return (c >= ' ' && c != 127) || c == '\n'; });
}

}  // namespace

std::string GoTemplate(const TurnTexts& turns) {
  std::string text;
  if (!turns.opening.empty()) {
    text += fmt::format("{{{{ if not .System }}}}{}{{{{ end }}}}", turns.opening);
  }
  text += "{{ range $i, $m := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}";
  if (turns.place == SystemPlace::kOwn) {
    text += fmt::format("{{{{ if eq .Role \"system\" }}}}{}{{{{ .Content }}}}{}{{{{ end }}}}",
                        turns.before_system, turns.after_system);
  }
  text += fmt::format("{{{{ if eq .Role \"user\" }}}}{}", turns.before_user);
  if (turns.place == SystemPlace::kFirstUser || turns.place == SystemPlace::kLastUser) {
    // The system message is the first of all.
    const char* const here = turns.place == SystemPlace::kLastUser ? "$last" : "(eq $i 1)";
    text += fmt::format("{{{{ if and $.System {} }}}}{}{{{{ $.System }}}}{}{{{{ end }}}}", here,
                        turns.before_system, turns.after_system);
  }
  text += fmt::format("{{{{ .Content }}}}{}{{{{ if $last }}}}{}{{{{ end }}}}{{{{ end }}}}",
                      turns.after_user, turns.prompt);
  text += fmt::format(
      "{{{{ if eq .Role \"assistant\" }}}}{}{{{{ .Content }}}}{{{{ if not $last }}}}{}{{{{ end "
      "}}}}{{{{ end }}}}",
      turns.before_answer, turns.after_answer);
  return text + "{{ end }}";
}

OllamaTemplate OllamaTemplateOf(const Tokenizer& tokenizer) {
  OllamaTemplate found;
  const auto refuse = [&](std::string_view why) {
    found.notes.push_back(fmt::format(
        "the Modelfile has no TEMPLATE: {}; Ollama takes one of its own where it knows the chat "
        "template in the file, otherwise the bare prompt: compare with `ollama show --template`",
        why));
    return found;
  };
  // The day of training, as data are rendered.
  const auto chat = LoadChatTemplate({}, tokenizer, ChatClock::kFixed);
  if (chat == nullptr) return found;
  const auto bos = tokenizer.adds_bos() ? tokenizer.bos_id() : std::nullopt;
  const auto turns = Prober(*chat, bos ? tokenizer.spec().pieces[*bos] : "").Run();
  if (!turns) {
    return refuse("the chat template does more than to put texts around messages");
  }
  for (const std::string* text :
       {&turns->opening, &turns->before_system, &turns->after_system, &turns->before_user,
        &turns->after_user, &turns->before_answer, &turns->after_answer, &turns->prompt}) {
    if (!IsPlain(*text)) return refuse("its texts have braces or quotes that Go's templates read");
  }
  found.text = GoTemplate(*turns);
  found.turn_end = Trimmed(turns->after_answer);
  if (turns->place == SystemPlace::kNone) {
    found.notes.push_back(
        "the chat template has no place for a system message, and so has TEMPLATE of the "
        "Modelfile");
  }
  if (ShowsTools(*chat)) {
    found.notes.push_back(
        "TEMPLATE of the Modelfile has messages alone: tools of the chat template cannot be "
        "written in Go's language of templates");
  }
  return found;
}

}  // namespace qlora
