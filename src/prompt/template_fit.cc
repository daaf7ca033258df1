#include "prompt/template_fit.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/calls_as_messages.h"
#include "prompt/known_fields.h"
#include "prompt/missing_values.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using Render = std::function<JinjaOutput(const OrderedJson&)>;

bool IsNamePart(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Calls found(begin, end) for each place of the whole word, until it returns true.
template <typename Found>
bool AnyWord(std::string_view text, std::string_view word, const Found& found) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool whole =
        (at == 0 || !IsNamePart(text[at - 1])) && (end == text.size() || !IsNamePart(text[end]));
    if (whole && found(at, end)) return true;
  }
  return false;
}

// Gives thoughts a second name where the template does not seem to read them under their own; the
// source may put the name together.
void OfferThoughts(std::string_view source, OrderedJson& messages,
                   std::vector<std::string>& readings) {
  const std::vector<std::string> names = NamesOf(FieldMeaning::kThoughts);
  const auto named = [source](const std::string& name) { return NamesField(source, name); };
  const auto read = std::find_if(names.begin(), names.end(), named);
  if (read == names.end()) return;
  for (OrderedJson& message : messages) {
    if (message.at("role") != "assistant") continue;
    for (const std::string& name : names) {
      const auto thoughts = message.find(name);
      if (thoughts == message.end() || SaysNothing(*thoughts) || named(name)) continue;
      if (message.contains(*read) && !SaysNothing(message[*read])) continue;
      const OrderedJson text = *thoughts;
      message[*read] = text;
      readings.push_back(name + " as " + *read);
    }
  }
}

// Returns the text of a value as Python's json.dumps writes it.
std::string PythonJson(const OrderedJson& value) {
  const OrderedJson argument = value;
  const std::array<JinjaVariable, 1> variables = {{{"value", &argument}}};
  return JinjaTemplate("{{ value | tojson }}").Render(variables).text;
}

// Calls body(arguments, text of the record or "") for the arguments of each call.
template <typename Messages, typename Body>
void ForEachArguments(const Conversation& conversation, Messages& messages, const Body& body) {
  for (std::size_t m = 0; m < messages.size(); ++m) {
    const auto calls = messages[m].find("tool_calls");
    if (calls == messages[m].end() || !calls->is_array()) continue;
    for (std::size_t c = 0; c < calls->size(); ++c) {
      auto& call = (*calls)[c];
      if (!call.is_object()) continue;
      auto& function = call.contains("function") ? call["function"] : call;
      if (!function.is_object() || !function.contains("arguments")) continue;
      const bool has_text =
          m < conversation.argument_texts.size() && c < conversation.argument_texts[m].size();
      body(function["arguments"], has_text ? conversation.argument_texts[m][c] : std::string());
    }
  }
}

OrderedJson WithTextArguments(const Conversation& conversation, OrderedJson messages) {
  ForEachArguments(conversation, messages, [](OrderedJson& arguments, const std::string& text) {
    if (!arguments.is_string()) arguments = text.empty() ? PythonJson(arguments) : text;
  });
  return messages;
}

// True when the text shows arguments as Python shows a dict, {'name': ...}, which no model writes.
bool ShowsDict(const Conversation& conversation, const OrderedJson& messages,
               std::string_view text) {
  bool shows = false;
  ForEachArguments(conversation, messages, [&](const OrderedJson& arguments, const std::string&) {
    if (!arguments.is_object() || arguments.empty()) return;
    const std::string begin = "{'" + arguments.begin().key() + "': ";
    shows = shows || text.find(begin) != std::string_view::npos;
  });
  return shows;
}

// The first role that the text does not show and that has a usual name; "" when there is none.
std::string SkippedRole(const OrderedJson& messages, std::string_view text) {
  for (const OrderedJson& message : messages) {
    const auto& role = message.at("role").get_ref<const std::string&>();
    const auto content = message.find("content");
    const bool says = content != message.end() && content->is_string();
    if (!IsRoleOfSomeTemplates(role) || !says) continue;
    if (text.find(Trim(content->get_ref<const std::string&>())) == text.npos) return role;
  }
  return {};
}

// True when the text shows the thoughts of an answer, or no answer has any.
bool ShowsThoughts(const OrderedJson& messages, std::string_view text) {
  bool has_thoughts = false;
  for (const OrderedJson& message : messages) {
    const FoundField thoughts = FindByMeaning(message, FieldMeaning::kThoughts);
    if (!thoughts || !thoughts.value->is_string()) continue;
    has_thoughts = true;
    if (text.find(Trim(thoughts.value->get_ref<const std::string&>())) != text.npos) return true;
  }
  return !has_thoughts;
}

// Returns the messages with thoughts as parts of the contents, before the text.
OrderedJson WithThoughtParts(OrderedJson messages) {
  for (OrderedJson& message : messages) {
    const FoundField thoughts = FindByMeaning(message, FieldMeaning::kThoughts);
    if (!thoughts) continue;
    OrderedJson parts = OrderedJson::array();
    parts.push_back({{"type", "thinking"}, {"thinking", *thoughts.value}});
    const OrderedJson& content = message["content"];
    if (!SaysNothing(content)) parts.push_back({{"type", "text"}, {"text", content}});
    message["content"] = std::move(parts);
  }
  return messages;
}

// Returns the messages with texts in the parts that the record has, or, with `joined`, as one part;
// empty when all texts are in one. origins: as of FittedConversation.
OrderedJson WithTextParts(const Conversation& conversation, OrderedJson messages,
                          const std::vector<std::size_t>& origins, bool joined) {
  bool has_parts = false;
  for (std::size_t m = 0; m < messages.size(); ++m) {
    const std::size_t origin = origins.empty() ? m : origins[m];
    if (origin >= conversation.text_parts.size()) continue;
    const std::vector<std::string>& texts = conversation.text_parts[origin];
    const std::string whole = fmt::format("{}", fmt::join(texts, ""));
    // A message without a content, as of calls alone, gets none.
    const auto content = messages[m].find("content");
    if (texts.size() < 2 || content == messages[m].end() || *content != whole) continue;
    has_parts = true;
    *content = OrderedJson::array();
    for (const std::string& text : joined ? std::vector<std::string>{whole} : texts) {
      content->push_back({{"type", "text"}, {"text", text}});
    }
  }
  return has_parts ? messages : OrderedJson();
}

// True for another name of a role that the template does not name, where it names the usual one:
// such a template may show the message, but not as what it is.
bool IsForeignRole(std::string_view source, std::string_view role) {
  return IsRoleOfSomeTemplates(role) && !NamesField(source, role) &&
         NamesField(source, RoleOfTemplates(role));
}

// Returns the messages with usual names of roles in place of those that `replaced` is true of.
template <typename Replaced>
OrderedJson WithUsualRoles(OrderedJson messages, const Replaced& replaced,
                           std::vector<std::string>& readings) {
  for (OrderedJson& message : messages) {
    const auto role = message.at("role").get<std::string>();
    if (!replaced(role)) continue;
    message["role"] = RoleOfTemplates(role);
    readings.push_back("role " + role + " as " + std::string(RoleOfTemplates(role)));
  }
  return messages;
}

constexpr std::string_view kTool = "tool";
constexpr std::string_view kTextArguments = "arguments of tool calls as text";

// True where messages of a role are there, and other contents of theirs are not shown.
bool HidesRole(OrderedJson messages, std::string_view role, const Render& render) {
  constexpr std::string_view kProbe = "Xylem quartz";
  bool has_role = false;
  for (OrderedJson& message : messages) {
    if (message.at("role") != role) continue;
    message["content"] = kProbe;
    has_role = true;
  }
  if (!has_role) return false;
  try {
    return render(messages).text.find(kProbe) == std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

OrderedJson WithRole(OrderedJson messages, std::string_view from, std::string_view to) {
  for (OrderedJson& message : messages) {
    if (message.at("role") == from) message["role"] = to;
  }
  return messages;
}

// Returns the messages with results that are data as JSON; empty when there is no such result.
OrderedJson WithResultsAsText(OrderedJson messages) {
  bool has_data = false;
  for (OrderedJson& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_structured()) continue;
    *content = PythonJson(*content);
    has_data = true;
  }
  return has_data ? messages : OrderedJson();
}

// True when all texts of results that are data are shown, and not in the way of Python's repr.
bool ShowsData(const OrderedJson& messages, std::string_view text) {
  for (const OrderedJson& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_structured()) continue;
    const auto shows = [&](const std::string& part, const OrderedJson*) {
      const std::string quoted = FormatJson(OrderedJson(part));
      const std::string_view inside = std::string_view(quoted).substr(1, quoted.size() - 2);
      return (text.find(part) != text.npos || text.find(inside) != text.npos) &&
             text.find("'" + part + "': ") == text.npos;
    };
    if (!ForEachText(*content, shows)) return false;
  }
  return true;
}

std::int64_t CountPlaces(std::string_view text, std::string_view part) {
  std::int64_t count = 0;
  if (part.empty()) return count;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// The number of places where the text shows names and arguments of calls.
std::int64_t CountCalls(const OrderedJson& messages, std::string_view text) {
  std::int64_t count = 0;
  for (const OrderedJson& message : messages) {
    if (!CallsInSilence(message)) continue;
    for (const OrderedJson& call : message["tool_calls"]) {
      ForEachText(call.contains("function") ? call["function"] : call,
                  [&](const std::string& part, const OrderedJson*) {
                    count += CountPlaces(text, part);
                    return true;
                  });
    }
  }
  return count;
}

// Returns the order of messages in which results of tools follow their calls as the calls do; empty
// when they do already, or when their ids do not tell.
std::vector<std::size_t> OrderOfCalls(const OrderedJson& messages) {
  std::vector<std::size_t> order(messages.size());
  std::iota(order.begin(), order.end(), 0);
  std::map<std::string, std::size_t> places;  // of the calls of the last answer, by id
  const auto place_of = [&](std::size_t m) {
    const auto id = messages[m].find("tool_call_id");
    const bool is_result = id != messages[m].end() && id->is_string() &&
                           RoleOfTemplates(messages[m]["role"].get<std::string>()) == "tool";
    const auto place = is_result ? places.find(id->get<std::string>()) : places.end();
    return place == places.end() ? std::optional<std::size_t>() : place->second;
  };
  for (std::size_t m = 0; m < messages.size();) {
    const auto calls = messages[m].find("tool_calls");
    if (calls != messages[m].end()) {
      places.clear();
      for (const OrderedJson& call : *calls) {
        const auto id = call.find("id");
        if (id != call.end() && id->is_string()) {
          places.emplace(id->get<std::string>(), places.size());
        }
      }
    }
    std::size_t end = m;
    while (end < messages.size() && place_of(end)) ++end;
    std::stable_sort(order.begin() + static_cast<std::ptrdiff_t>(m),
                     order.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](auto a, auto b) { return *place_of(a) < *place_of(b); });
    m = std::max(end, m + 1);
  }
  return std::is_sorted(order.begin(), order.end()) ? std::vector<std::size_t>() : order;
}

// Returns the messages with the names of the called functions in results that have none: by the id
// of the call, or by their place behind the calls.
OrderedJson WithNamesOfResults(OrderedJson messages) {
  const OrderedJson* calls = nullptr;
  std::size_t next = 0;
  for (OrderedJson& message : messages) {
    if (const auto made = message.find("tool_calls"); made != message.end()) {
      calls = &*made;
      next = 0;
      continue;
    }
    if (RoleOfTemplates(message.at("role").get<std::string>()) != kTool || calls == nullptr)
      continue;
    const auto id = message.find("tool_call_id");
    std::size_t place = next++;
    for (std::size_t c = 0; id != message.end() && c < calls->size(); ++c) {
      if ((*calls)[c].value("id", OrderedJson()) == *id) place = c;
    }
    if (message.contains("name") || place >= calls->size()) continue;
    const OrderedJson& call = (*calls)[place];
    const OrderedJson& function = call.contains("function") ? call["function"] : call;
    if (function.contains("name")) message["name"] = function["name"];
  }
  return messages;
}

// Tries one form after the other, of all that templates ask for in different ways.
class Fitter {
 public:
  Fitter(const Conversation& conversation, std::string_view source, const Render& render)
      : conversation_(conversation), source_(source), render_(render) {}

  FittedConversation Fit() {
    FittedConversation start{.messages = conversation_.messages, .output = {}};
    if (ReadsCallsAsMessages(source_)) {
      SplitMessages split = CallsAsMessages(conversation_, PythonJson);
      if (split.messages != start.messages) {
        start.messages = std::move(split.messages);
        start.origins = std::move(split.origins);
        start.readings.push_back("tool calls as messages");
      }
    }
    const FittedConversation written = start;
    OfferThoughts(source_, start.messages, start.readings);
    offered_ = start.readings;
    Fitted fitted = FitResults(start);
    if (!fitted) fitted = FitNames(start);
    // gpt-oss takes no thoughts beside a content and calls.
    if (!fitted && start.messages != written.messages) fitted = FitResults(written);
    if (!fitted) ThrowRefusal(start.messages);
    FitRoleOfResults(*fitted);
    FitDicts(*fitted);
    FitThoughts(*fitted);
    FitOrder(*fitted);
    FitParts(*fitted);
    return std::move(*fitted);
  }

 private:
  using Fitted = std::optional<FittedConversation>;

  // Throws the refusal of the conversation as it is, with the first message of which it comes.
  [[noreturn]] void ThrowRefusal(const OrderedJson& messages) const {
    for (std::size_t m = 0; m < messages.size(); ++m) {
      const OrderedJson first(OrderedJson::array_t(messages.begin(), messages.begin() + m + 1));
      try {
        render_(first);
      } catch (const Error& error) {
        if (error.what() != *refusal_) continue;
        std::vector<std::string> fields;
        for (const auto& item : messages[m].items()) fields.push_back(item.key());
        ThrowInvalidInput("{}; at messages[{}], which has {}, in a conversation {} tools",
                          *refusal_, m, fmt::join(fields, ", "),
                          conversation_.tools.is_null() ? "without" : "with");
      }
    }
    ThrowInvalidInput("{}", *refusal_);
  }

  // Renders other messages of the conversation. Nothing when the template refuses them.
  Fitted Try(const FittedConversation& before, OrderedJson messages,
             const std::vector<std::string>& readings = {}) {
    FittedConversation fitted{.messages = std::move(messages),
                              .output = {},
                              .origins = before.origins,
                              .readings = before.readings};
    fitted.readings.insert(fitted.readings.end(), readings.begin(), readings.end());
    try {
      fitted.output = render_(fitted.messages);
    } catch (const Error& error) {
      if (!refusal_) refusal_ = error.what();
      return std::nullopt;
    }
    return fitted;
  }

  Fitted FitArguments(const FittedConversation& before, const OrderedJson& messages,
                      std::vector<std::string> readings = {}) {
    if (Fitted fitted = Try(before, messages, readings)) return fitted;
    OrderedJson texts = WithTextArguments(conversation_, messages);
    if (texts == messages) return std::nullopt;
    readings.emplace_back(kTextArguments);
    return Try(before, std::move(texts), readings);
  }

  Fitted FitRoles(const FittedConversation& before, const OrderedJson& messages) {
    std::vector<std::string> readings;
    const OrderedJson named = WithUsualRoles(
        messages, [this](const std::string& role) { return IsForeignRole(source_, role); },
        readings);
    Fitted fitted = FitArguments(before, named, readings);
    if (!fitted && !readings.empty()) fitted = FitArguments(before, messages);
    if (fitted && SkippedRole(fitted->messages, fitted->output.text).empty()) return fitted;
    readings.clear();
    const OrderedJson usual = WithUsualRoles(messages, IsRoleOfSomeTemplates, readings);
    if (readings.empty() || usual == named) return fitted;
    Fitted other = FitArguments(before, usual, readings);
    return other ? std::move(other) : std::move(fitted);
  }

  // Of the forms of a content that says nothing: one that shows the calls, and nothing else.
  Fitted FitNoContent(const FittedConversation& before, const OrderedJson& messages) {
    if (std::none_of(messages.begin(), messages.end(), CallsInSilence)) {
      return FitRoles(before, messages);
    }
    Fitted best;
    std::int64_t most = 0;
    for (const NoContent form : {NoContent::kEmpty, NoContent::kNull, NoContent::kAbsent}) {
      Fitted fitted = FitRoles(before, WithNoContent(messages, form));
      if (!fitted) continue;
      const std::string& text = fitted->output.text;
      const std::int64_t calls = CountCalls(messages, text);
      if (best && best->output.text == text) break;  // the content makes no difference
      if (!best || calls > most || (calls == most && text.size() < best->output.text.size())) {
        best = std::move(fitted);
        most = calls;
      }
    }
    return best;
  }

  Fitted FitResults(const FittedConversation& before) {
    OrderedJson texts = WithResultsAsText(before.messages);
    if (texts.is_null()) return FitNoContent(before, before.messages);
    Fitted data = FitNoContent(before, before.messages);
    if (data && ShowsData(before.messages, data->output.text)) return data;
    Fitted fitted = FitNoContent(before, texts);
    if (!fitted) return data;
    fitted->readings.emplace_back("results of tools as JSON");
    return fitted;
  }

  // A template that asks for the name of the function in each result.
  Fitted FitNames(FittedConversation before) {
    OrderedJson named = WithNamesOfResults(before.messages);
    if (named == before.messages) return std::nullopt;
    before.messages = std::move(named);
    before.readings.emplace_back("names of functions in the results of their calls");
    return FitResults(before);
  }

  // Results of tools that are hidden, under the other names of their role.
  void FitRoleOfResults(FittedConversation& fitted) {
    for (const std::string& name : OtherNamesOfRole(kTool)) {
      if (!NamesField(source_, name)) continue;
      if (!HidesRole(fitted.messages, kTool, render_)) return;
      Fitted renamed = FitArguments(fitted, WithRole(fitted.messages, kTool, name),
                                    {fmt::format("role {} as {}", kTool, name)});
      if (renamed && !HidesRole(renamed->messages, name, render_)) fitted = std::move(*renamed);
    }
  }

  void FitDicts(FittedConversation& fitted) {
    if (!ShowsDict(conversation_, fitted.messages, fitted.output.text)) return;
    Fitted texts = Try(fitted, WithTextArguments(conversation_, fitted.messages),
                       {std::string(kTextArguments)});
    // Else the dict was a word of the conversation.
    if (texts && !ShowsDict(conversation_, fitted.messages, texts->output.text)) {
      fitted = std::move(*texts);
    }
  }

  // A template that shows thoughts as fields may leave earlier ones out.
  void FitThoughts(FittedConversation& fitted) {
    if (!NamesField(source_, "thinking")) return;
    if (ShowsThoughts(fitted.messages, fitted.output.text)) return;
    FittedConversation without = fitted;
    std::erase_if(without.readings, [&](const std::string& reading) {
      return std::ranges::count(offered_, reading) > 0;  // no field is read
    });
    Fitted parts =
        Try(without, WithThoughtParts(fitted.messages), {"thoughts as parts of the content"});
    if (!parts) return;
    const std::string& text = parts->output.text;
    const bool prints_parts =
        text.find("'thinking': ") != text.npos || text.find("\"thinking\": ") != text.npos;
    if (!prints_parts && ShowsThoughts(fitted.messages, text)) fitted = std::move(*parts);
  }

  // Results in another order than their calls, where the template does not show to which call each
  // belongs: it has other ids of the same length in the same text.
  void FitOrder(FittedConversation& fitted) {
    const std::vector<std::size_t> order = OrderOfCalls(fitted.messages);
    if (order.empty()) return;
    OrderedJson others = fitted.messages;
    for (OrderedJson& message : others) {
      const auto id = message.find("tool_call_id");
      if (id != message.end() && id->is_string())
        *id = std::string(id->get<std::string>().size(), 'q');
    }
    const Fitted shown = Try(fitted, std::move(others));
    if (!shown || shown->output.text != fitted.output.text) return;
    OrderedJson messages = OrderedJson::array();
    FittedConversation before = fitted;
    for (std::size_t m = 0; m < order.size(); ++m) {
      messages.push_back(fitted.messages[order[m]]);
      if (!before.origins.empty()) before.origins[m] = fitted.origins[order[m]];
    }
    Fitted ordered =
        Try(before, std::move(messages), {"results of tools in the order of the calls"});
    if (ordered) fitted = std::move(*ordered);
  }

  // A template reads parts when it shows a text in one part as it shows the text.
  void FitParts(FittedConversation& fitted) {
    OrderedJson one = WithTextParts(conversation_, fitted.messages, fitted.origins, true);
    if (one.is_null()) return;
    const Fitted joined = Try(fitted, std::move(one));
    if (!joined || joined->output.text != fitted.output.text) return;
    Fitted parts =
        Try(fitted, WithTextParts(conversation_, fitted.messages, fitted.origins, false));
    if (parts && parts->output.text != fitted.output.text) fitted = std::move(*parts);
  }

  const Conversation& conversation_;
  const std::string_view source_;
  const Render& render_;
  std::optional<std::string> refusal_;  // of the conversation as it is
  std::vector<std::string> offered_;    // readings of thoughts
};

}  // namespace

FittedConversation FitToTemplate(const Conversation& conversation, std::string_view source,
                                 const Render& render) {
  return Fitter(conversation, source, render).Fit();
}

bool HasWholeWord(std::string_view text, std::string_view word) {
  return AnyWord(text, word, [](std::size_t, std::size_t) { return true; });
}

bool NamesField(std::string_view source, std::string_view name) {
  return AnyWord(source, name, [source](std::size_t begin, std::size_t end) {
    const char before = begin == 0 ? ' ' : source[begin - 1];
    const char after = end == source.size() ? ' ' : source[end];
    return before == '.' || ((before == '\'' || before == '"') && after == before);
  });
}

}  // namespace qlora
