#include "prompt/fit/call_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "io/json.h"
#include "jinja/jinja.h"
#include "prompt/known_fields.h"
#include "prompt/missing_values.h"

namespace qlora {
namespace {

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

std::int64_t CountPlaces(std::string_view text, std::string_view part) {
  std::int64_t count = 0;
  if (part.empty()) return count;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

}  // namespace

std::string PythonJson(const OrderedJson& value) {
  const OrderedJson argument = value;
  const std::array<JinjaVariable, 1> variables = {{{"value", &argument}}};
  return JinjaTemplate("{{ value | tojson }}").Render(variables).text;
}

OrderedJson WithTextArguments(const Conversation& conversation, OrderedJson messages) {
  ForEachArguments(conversation, messages, [](OrderedJson& arguments, const std::string& text) {
    if (!arguments.is_string()) arguments = text.empty() ? PythonJson(arguments) : text;
  });
  return messages;
}

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

OrderedJson WithWrappedCalls(OrderedJson messages) {
  for (OrderedJson& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (OrderedJson& call : *calls) {
      if (!call.is_object() || call.contains("function")) continue;
      OrderedJson wrapped = {{"type", "function"}};
      if (call.contains("id")) wrapped["id"] = call["id"];
      for (const char* outside : {"id", "type", "index"}) call.erase(outside);
      wrapped["function"] = std::move(call);
      call = std::move(wrapped);
    }
  }
  return messages;
}

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

OrderedJson WithNamesOfResults(OrderedJson messages) {
  const OrderedJson* calls = nullptr;
  std::size_t next = 0;
  for (OrderedJson& message : messages) {
    if (const auto made = message.find("tool_calls"); made != message.end()) {
      calls = &*made;
      next = 0;
      continue;
    }
    if (RoleOfTemplates(message.at("role").get<std::string>()) != "tool" || calls == nullptr)
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

// By their order: what follows in a longer conversation changes no id.
OrderedJson WithShortIds(OrderedJson messages) {
  std::map<std::string, std::string> ids;
  const auto shorten = [&ids](OrderedJson& holder, const char* name) {
    const auto id = holder.find(name);
    if (id == holder.end() || !id->is_string()) return;
    *id = ids.emplace(id->get<std::string>(), fmt::format("call{:05}", ids.size())).first->second;
  };
  for (OrderedJson& message : messages) {
    const auto calls = message.find("tool_calls");
    const bool has_calls = calls != message.end() && calls->is_array();
    for (std::size_t c = 0; has_calls && c < calls->size(); ++c) {
      if ((*calls)[c].is_object()) shorten((*calls)[c], "id");
    }
    shorten(message, "tool_call_id");
  }
  return messages;
}

}  // namespace qlora
