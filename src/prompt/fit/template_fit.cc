#include "prompt/fit/template_fit.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "prompt/fit/call_forms.h"
#include "prompt/fit/calls_as_messages.h"
#include "prompt/fit/message_forms.h"
#include "prompt/fit/template_names.h"
#include "prompt/known_fields.h"
#include "prompt/missing_values.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using Render = std::function<JinjaOutput(const OrderedJson&)>;

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

// A text without whitespace, and without the words that templates print for nothing.
std::string WithoutNothing(std::string_view text) {
  std::string rest = ReplaceAll(std::string(text), "None", "");
  rest = ReplaceAll(std::move(rest), "null", "");
  std::erase_if(rest, [](char c) { return c == ' ' || c == '\n'; });
  return rest;
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
    Fitted fitted = FitCalls(start);
    if (OrderedJson wrapped = WithWrappedCalls(start.messages);
        !fitted && wrapped != start.messages) {
      start.messages = std::move(wrapped);
      start.readings.emplace_back("tool calls inside 'function'");
      fitted = FitCalls(start);
    }
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

  // Calls as they are.
  Fitted FitCalls(const FittedConversation& written) {
    FittedConversation start = written;
    OfferThoughts(source_, start.messages, start.readings);
    offered_ = start.readings;
    Fitted fitted = FitResults(start);
    if (!fitted) fitted = FitNames(start);
    // gpt-oss takes no thoughts beside a content and calls.
    if (!fitted && start.messages != written.messages) fitted = FitResults(written);
    if (!fitted) fitted = FitIds(start);
    return fitted;
  }

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
        messages, [this](std::string_view role) { return IsForeignRole(source_, role); }, readings);
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
      std::int64_t calls = CountCalls(messages, text);
      if (best && best->output.text == text) break;  // the content makes no difference
      // A word for nothing may have letters of a call.
      if (best && calls != most && WithoutNothing(best->output.text) == WithoutNothing(text)) {
        calls = most;
      }
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

  // A template of Mistral, which takes no other ids.
  Fitted FitIds(FittedConversation before) {
    OrderedJson shortened = WithShortIds(before.messages);
    if (shortened == before.messages) return std::nullopt;
    before.messages = std::move(shortened);
    before.readings.emplace_back("ids of calls as nine letters and digits");
    Fitted fitted = FitResults(before);
    return fitted ? std::move(fitted) : FitNames(before);
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

}  // namespace qlora
