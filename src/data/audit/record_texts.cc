#include "data/audit/record_texts.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>

#include "base/text.h"
#include "io/json.h"
#include "prompt/content_parts.h"
#include "prompt/known_fields.h"
#include "prompt/missing_values.h"
#include "prompt/turn_reader.h"

namespace qlora {
namespace {

// Words of JSON Schema whose values are words of JSON Schema, or names that stand elsewhere.
bool IsSchemaWord(std::string_view name) { return HasWord("type required $schema $id $ref", name); }

class Collector {
 public:
  Collector(const OrderedJson& record, const Conversation& conversation, const RecordLayout& layout)
      : record_(record), conversation_(conversation), layout_(layout) {
    for (const OrderedJson& message : conversation.messages) {
      const auto calls = message.find("tool_calls");
      if (calls == message.end() || !calls->is_array()) continue;
      for (const OrderedJson& call : *calls) {
        const OrderedJson& function = call.contains("function") ? call["function"] : call;
        if (function.contains("name")) functions_.insert(function["name"].dump());
        if (call.contains("id")) calls_.insert(call["id"].dump());
      }
    }
  }

  RecordTexts Collect() {
    std::vector<std::string> fields = conversation_.fields;
    std::ranges::sort(fields);
    for (const auto& [name, value] : record_.items()) {
      if (!std::ranges::binary_search(fields, name) || SaysNothing(value)) continue;
      CollectField(name, value);
    }
    return std::move(out_);
  }

 private:
  const TextSite* NewSite(std::string path, TextKind kind, std::size_t message = kNoMessage) {
    return &out_.sites.emplace_back(TextSite{std::move(path), kind, message});
  }

  void CollectField(const std::string& name, const OrderedJson& value) {
    const bool has_turns = std::ranges::any_of(
        conversation_.origins, [&](const auto& origin) { return origin.field == name; });
    if (IsKnownAs(name, FieldMeaning::kVariables) || IsKnownAs(name, FieldMeaning::kVariable))
      return;
    if (IsKnownAs(name, FieldMeaning::kTools)) return CollectTools(name);
    if (IsKnownAs(name, FieldMeaning::kSystem)) {
      return AddTexts(value, NewSite(name, TextKind::kSystem, MessageOf(name, 0, "")));
    }
    if (OrderedJson list; has_turns && value.is_string() && !layout_.Answers(name) &&
                          !TryParseJson(value.get_ref<const std::string&>(), list) &&
                          list.is_array()) {
      return CollectTurns(name, out_.parsed.emplace_back(std::move(list)));
    }
    if (has_turns && value.is_array()) return CollectTurns(name, value);
    if (has_turns && value.is_object()) return CollectTurn(name, 0, value);
    const bool is_thoughts =
        IsKnownAs(name, FieldMeaning::kThoughts) && !layout_.Reads(name) && !layout_.Answers(name);
    const bool is_answer =
        is_thoughts || layout_.Answers(name) || (has_turns && !layout_.Uses(name));
    const std::size_t message = is_answer ? conversation_.messages.size() - 1 : kNoMessage;
    const bool is_other = !is_answer && name == "documents";
    AddTexts(value, NewSite(name,
                            IsKnownAs(name, FieldMeaning::kThoughts) ? TextKind::kThoughts
                            : is_other                               ? TextKind::kOther
                                                                     : TextKind::kContent,
                            message));
  }

  void CollectTurns(const std::string& name, const OrderedJson& turns) {
    std::int64_t last = -1;  // that the conversation has; it may end before the record does
    for (const auto& origin : conversation_.origins) {
      if (origin.field == name) last = std::max(last, origin.turn);
    }
    for (std::int64_t t = 0; t <= last; ++t) CollectTurn(name, t, turns[t]);
  }

  // The message of a turn that has the role; kNoMessage when there is none.
  std::size_t MessageOf(const std::string& name, std::int64_t turn, std::string_view role) {
    const Conversation::Origin origin = {name, turn};
    for (std::size_t i = 0; i < conversation_.origins.size(); ++i) {
      // Turns come in order, so that the search begins where the last one ended.
      const std::size_t m = (next_ + i) % conversation_.origins.size();
      if (!(conversation_.origins[m] == origin)) continue;
      if (!role.empty() && conversation_.messages[m]["role"] != role) continue;
      next_ = m;
      return m;
    }
    return kNoMessage;
  }

  void CollectTurn(const std::string& name, std::int64_t t, const OrderedJson& turn) {
    const std::string list = name + "[].";
    if (turn.is_array()) {  // a pair of history
      AddTexts(turn[0], NewSite(name + "[][0]", TextKind::kContent, MessageOf(name, t, "user")));
      AddTexts(turn[1],
               NewSite(name + "[][1]", TextKind::kContent, MessageOf(name, t, "assistant")));
      return;
    }
    const bool is_pair = !turn.contains("role") && !turn.contains("from");
    const std::size_t message = MessageOf(name, t, "");
    for (const auto& [key, value] : turn.items()) {
      if (SaysNothing(value) || IsLabelField(key)) continue;
      if (is_pair) {
        CollectPairField(name, t, key, value, turn);
      } else {
        CollectTurnField(list + key, key, value, turn, message);
      }
    }
  }

  // What is neither of the two texts is about the answer.
  void CollectPairField(const std::string& name, std::int64_t t, const std::string& key,
                        const OrderedJson& value, const OrderedJson& turn) {
    const std::string path = name + "[]." + key;
    const bool is_question = key == "human" || key == "input";
    const bool is_answer = key == "assistant" || key == "output";
    const std::string_view role = is_question ? "user" : key == "system" ? "system" : "assistant";
    const std::size_t message = MessageOf(name, t, role);
    if (is_question || is_answer || key == "system") {
      AddTexts(value, NewSite(path, TextKind::kContent, message));
    } else {
      CollectTurnField(path, key, value, turn, message);
    }
  }

  void CollectTurnField(const std::string& path, const std::string& key, const OrderedJson& value,
                        const OrderedJson& turn, std::size_t message) {
    if (key == "tool_call_id") {
      out_.has_foreign_ids =
          out_.has_foreign_ids || (!calls_.empty() && !calls_.contains(value.dump()));
      return;
    }
    // The name of a called function, which stands in the call.
    if (key == "name" && functions_.contains(value.dump())) return;
    if (key == "tool_calls" || key == "function_call") {
      return CollectCalls(path, value, message);
    }
    if (key == "content" || key == "value") {
      const OrderedJson role = turn.value("role", turn.value("from", OrderedJson()));
      const std::string name = role.is_string() ? LowerCase(Trim(role.get<std::string>())) : "";
      if (RoleOfTemplates(name) == kCallRole) return CollectCalls(path, value, message);
      return CollectContent(path, value, message);
    }
    const bool is_thoughts = IsKnownAs(key, FieldMeaning::kThoughts);
    AddTexts(value, NewSite(path, is_thoughts ? TextKind::kThoughts : TextKind::kOther, message));
  }

  void CollectContent(const std::string& path, const OrderedJson& content, std::size_t message) {
    const TextSite* site = NewSite(path, TextKind::kContent, message);
    const bool is_part = content.is_object() && !IsData(content);
    if (!content.is_array() && !is_part) return AddTexts(content, site);
    const std::span<const OrderedJson> parts =
        is_part ? std::span(&content, 1)
                : std::span(content.get_ref<const OrderedJson::array_t&>());
    for (const OrderedJson& part : parts) {
      const bool has_type = part.is_object() && part.contains("type") && part["type"].is_string();
      if (!has_type && !(part.is_object() && part.contains("text"))) {
        AddTexts(part, site);
        continue;
      }
      const std::string type = has_type ? part["type"] : OrderedJson("text");
      if (type == "redacted_thinking") continue;
      const TextSite* inner =
          type == "thinking" || type == "reasoning"
              ? NewSite(path + "[]." + type, TextKind::kThoughts, message)
          : type == "tool_use"    ? NewSite(path + "[].tool_use", TextKind::kCalls, message)
          : type == "tool_result" ? NewSite(path + "[].tool_result", TextKind::kContent)
                                  : site;
      for (const auto& [key, value] : part.items()) {
        const bool is_tie = key == "id" || key == "tool_use_id" || key == "is_error";
        if (is_tie || IsLabelField(key) || value.is_null()) continue;
        const bool is_extra = key == "signature" || key == "cache_control" || key == "citations";
        AddTexts(value, is_extra ? NewSite(path + "[]." + key, TextKind::kOther, message) : inner);
      }
    }
  }

  void CollectCalls(const std::string& path, const OrderedJson& value, std::size_t message) {
    OrderedJson parsed;
    bool is_text = false;
    if (value.is_string()) {
      const WrittenCalls written = SplitWrittenCalls(value.get_ref<const std::string&>());
      AddText(written.thoughts, NewSite(path, TextKind::kThoughts, message));
      is_text = !TryParseJson(written.calls, parsed);
    }
    const OrderedJson& calls = is_text ? out_.parsed.emplace_back(std::move(parsed)) : value;
    const TextSite* name = NewSite(path + "[].name", TextKind::kCalls, message);
    const TextSite* arguments = NewSite(path + "[].arguments", TextKind::kCalls, message);
    const auto add = [&](const OrderedJson& call) {
      if (!call.is_object()) return AddTexts(call, name);
      for (const auto& [key, field] : call.items()) {
        if (key == "id" || key == "index" || IsLabelField(key) || key == "function") continue;
        const TextSite* site = key == "name" ? name : IsArgumentsName(key) ? arguments : nullptr;
        if (site == nullptr) site = NewSite(path + "[]." + key, TextKind::kOther, message);
        if (site == arguments && field.is_object()) {
          DropNulls(out_.parsed.emplace_back(field));  // which the conversation may lack
          AddTexts(out_.parsed.back(), site);
        } else {
          AddTexts(field, site);
        }
      }
    };
    const auto add_call = [&](const OrderedJson& call) {
      add(call);
      if (call.is_object() && call.contains("function")) add(call["function"]);
    };
    if (calls.is_array()) {
      for (const OrderedJson& call : calls) add_call(call);
    } else {
      add_call(calls);
    }
  }

  void CollectTools(const std::string& name) {
    for (const OrderedJson& tool : conversation_.tools) {
      const OrderedJson& function = tool.contains("function") ? tool["function"] : tool;
      if (!function.is_object()) continue;
      for (const auto& [key, value] : function.items()) {
        CollectSchema(
            value, NewSite(name + (key == "name" ? "" : "[].function." + key), TextKind::kTools));
      }
    }
  }

  void CollectSchema(const OrderedJson& value, const TextSite* site) {
    if (value.is_string()) return AddTexts(value, site);
    if (!value.is_structured()) return;
    for (const auto& [key, item] : value.items()) {
      if (value.is_object() && IsSchemaWord(key) && !item.is_object()) continue;
      const bool is_names = value.is_object() && key == "properties" && item.is_object();
      if (is_names) {
        for (const auto& property : item.items()) out_.texts.push_back({property.key(), site});
        for (const OrderedJson& property : item) CollectSchema(property, site);
        continue;
      }
      CollectSchema(item, site);
    }
  }

  // Keys of objects are texts, too: names of arguments and of fields of results.
  void AddTexts(const OrderedJson& value, const TextSite* site) {
    ForEachText(value, [&](const std::string& text, const OrderedJson* leaf) {
      const bool is_word = leaf == nullptr || leaf->is_boolean();
      const bool is_stored = leaf == nullptr || leaf->is_string();
      if (!is_word || site->kind != TextKind::kOther) {
        AddText(is_stored ? text : out_.written.emplace_back(text), site);
      }
      return true;
    });
  }

  void AddText(std::string_view text, const TextSite* site) {
    if (!Trim(text).empty()) out_.texts.push_back({text, site});
  }

  const OrderedJson& record_;
  const Conversation& conversation_;
  const RecordLayout& layout_;
  std::set<std::string> functions_;  // names of called functions, as JSON
  std::set<std::string> calls_;      // ids of calls, as JSON
  std::size_t next_ = 0;
  RecordTexts out_;
};

}  // namespace

RecordTexts CollectTexts(const OrderedJson& record, const Conversation& conversation,
                         const RecordLayout& layout) {
  return Collector(record, conversation, layout).Collect();
}

bool IsLabelField(std::string_view name) {
  return name == "role" || name == "from" || name == "type" || IsKnownAs(name, FieldMeaning::kFlag);
}

}  // namespace qlora
