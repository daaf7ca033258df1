#include "data/text_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "data/text_search.h"
#include "io/json.h"
#include "prompt/known_fields.h"
#include "prompt/turn_reader.h"

namespace qlora {
namespace {

using Meaning = FieldMeaning;

constexpr std::size_t kNone = static_cast<std::size_t>(-1);
constexpr std::string_view kProbe = "Xylemquartz";

enum class Kind { kContent, kThoughts, kCalls, kTools, kSystem, kOther };
enum class Loss { kNotShown, kInPart, kNotTrained, kOfOthers, kBare };

// Where a text of the record stands.
struct Site {
  std::string path;  // "messages[].content"
  Kind kind;
  std::size_t message = kNone;  // of the conversation
};

struct Leaf {
  std::string_view text;
  const Site* site;
};

// The fields of turns and calls that say what something is, or tie one to another. They are used
// before a template sees them, or say nothing to the model.
bool IsLabel(std::string_view name) {
  return name == "role" || name == "from" || name == "type" || IsKnownAs(name, Meaning::kFlag);
}

// Words of JSON Schema whose values are words of JSON Schema, or names that stand elsewhere.
bool IsSchemaWord(std::string_view name) { return HasWord("type required $schema $id $ref", name); }

// The pieces of a text that templates take apart: lines, tags, and what is between them.
std::vector<std::string_view> PiecesOf(std::string_view text) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    std::size_t end = text.find_first_of("\n<>", 1);
    if (end != text.npos && text[end] == '>') ++end;
    end = std::min(end, text.size());
    if (const auto piece = Trim(text.substr(0, end)); !piece.empty()) pieces.push_back(piece);
    text.remove_prefix(end);
  }
  return pieces;
}

// Replaces `part` in all texts of a value, and numbers that are written so.
void ReplaceText(OrderedJson& value, std::string_view part) {
  if (value.is_structured()) {
    for (OrderedJson& item : value) ReplaceText(item, part);
  } else if (value.is_string()) {
    value = ReplaceAll(value.get<std::string>(), part, kProbe);
  } else if (!value.is_null() && FormatJson(value) == part) {
    value = kProbe;
  }
}

std::string Quote(std::string_view text) {
  constexpr std::size_t kMost = 40;
  text = Trim(text);
  if (text.size() <= kMost) return std::string(text);
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + " ...";
}

std::string_view Describe(Kind kind, Loss loss, bool is_answer) {
  switch (loss) {
    case Loss::kNotTrained:
      return "what the assistant wrote, shown at another place than its answer, and not trained on";
    case Loss::kOfOthers:
      return "trained on as if the assistant had written it";
    case Loss::kBare:
      return "thoughts that the chat template shows without a mark between them and the answer";
    case Loss::kInPart:
      if (kind == Kind::kThoughts) {
        return "thoughts that the chat template leaves out, so that the model learns to answer "
               "without them; name one that shows them with chat_template";
      }
      return is_answer ? "texts of which the chat template leaves out or moves a part, so that the "
                         "model learns to write something else"
                       : "texts of which the chat template leaves out or moves a part, so that the "
                         "model reads something else";
    case Loss::kNotShown:
      break;
  }
  switch (kind) {
    case Kind::kContent:
      return is_answer ? "answers that the chat template does not show, so that they are not learnt"
                       : "texts that the chat template does not show, so that the model does not "
                         "see them";
    case Kind::kThoughts:
      return "thoughts that the chat template does not show, so that the model learns to answer "
             "without them; name one that shows them with chat_template";
    case Kind::kCalls:
      return "calls of tools that the chat template does not show, so that they are not learnt; "
             "name one that knows tools with chat_template";
    case Kind::kTools:
      return "descriptions of tools that the chat template does not show, so that the model does "
             "not see them";
    case Kind::kSystem:
      return "a system text that the chat template does not show, so that the model does not see "
             "it";
    case Kind::kOther:
      break;
  }
  return "a field that the chat template does not show, so that the model does not see it";
}

// Collects the texts of the fields that a conversation holds.
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

  std::vector<Leaf> Collect() {
    std::vector<std::string> fields = conversation_.fields;
    std::ranges::sort(fields);
    for (const auto& [name, value] : record_.items()) {
      if (!std::ranges::binary_search(fields, name) || SaysNothing(value)) continue;
      CollectField(name, value);
    }
    return std::move(leaves_);
  }

  // Results whose id is that of no call, where calls have ids.
  bool has_foreign_ids() const { return has_foreign_ids_; }

 private:
  const Site* NewSite(std::string path, Kind kind, std::size_t message = kNone) {
    return &sites_.emplace_back(Site{std::move(path), kind, message});
  }

  void CollectField(const std::string& name, const OrderedJson& value) {
    const bool has_turns = std::ranges::any_of(
        conversation_.origins, [&](const auto& origin) { return origin.field == name; });
    if (IsKnownAs(name, Meaning::kVariables) || IsKnownAs(name, Meaning::kVariable)) return;
    if (IsKnownAs(name, Meaning::kTools)) return CollectTools(name);
    if (IsKnownAs(name, Meaning::kSystem)) {
      return CollectTexts(value, NewSite(name, Kind::kSystem, MessageOf(name, 0, "")));
    }
    if (has_turns && value.is_array()) return CollectTurns(name, value);
    if (has_turns && value.is_object()) return CollectTurn(name, 0, value);
    const bool is_thoughts = IsKnownAs(name, Meaning::kThoughts) && !layout_.Uses(name);
    const bool is_answer =
        is_thoughts || layout_.Answers(name) || (has_turns && !layout_.Uses(name));
    const std::size_t message = is_answer ? conversation_.messages.size() - 1 : kNone;
    const bool is_other = !is_answer && name == "documents";
    CollectTexts(value, NewSite(name,
                                IsKnownAs(name, Meaning::kThoughts) ? Kind::kThoughts
                                : is_other                          ? Kind::kOther
                                                                    : Kind::kContent,
                                message));
  }

  void CollectTurns(const std::string& name, const OrderedJson& turns) {
    std::int64_t last = -1;  // that the conversation has; it may end before the record does
    for (const auto& origin : conversation_.origins) {
      if (origin.field == name) last = std::max(last, origin.turn);
    }
    for (std::int64_t t = 0; t <= last; ++t) CollectTurn(name, t, turns[t]);
  }

  // The message of a turn that has the role, or any but it ("!user"); kNone when there is none.
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
    return kNone;
  }

  void CollectTurn(const std::string& name, std::int64_t t, const OrderedJson& turn) {
    const std::string list = name + "[].";
    if (turn.is_array()) {  // a pair of history
      CollectTexts(turn[0], NewSite(name + "[][0]", Kind::kContent, MessageOf(name, t, "user")));
      CollectTexts(turn[1],
                   NewSite(name + "[][1]", Kind::kContent, MessageOf(name, t, "assistant")));
      return;
    }
    const bool is_pair = !turn.contains("role") && !turn.contains("from");
    const std::size_t message = MessageOf(name, t, "");
    for (const auto& [key, value] : turn.items()) {
      if (SaysNothing(value) || IsLabel(key)) continue;
      if (is_pair) {
        const bool is_answer = key == "assistant" || key == "output";
        const std::string_view role = is_answer ? "assistant" : key == "system" ? "system" : "user";
        CollectTexts(value, NewSite(list + key, Kind::kContent, MessageOf(name, t, role)));
        continue;
      }
      CollectTurnField(list + key, key, value, turn, message);
    }
  }

  void CollectTurnField(const std::string& path, const std::string& key, const OrderedJson& value,
                        const OrderedJson& turn, std::size_t message) {
    if (key == "tool_call_id") {
      has_foreign_ids_ = has_foreign_ids_ || (!calls_.empty() && !calls_.contains(value.dump()));
      return;
    }
    // The name of a called function, which stands in the call.
    if (key == "name" && functions_.contains(value.dump())) return;
    if (key == "tool_calls" || key == "function_call") {
      return CollectCalls(path, value, message);
    }
    if (key == "content" || key == "value") {
      const OrderedJson& role = turn.contains("role") ? turn["role"] : turn["from"];
      const std::string name = role.is_string() ? LowerCase(role.get<std::string>()) : "";
      if (RoleOfTemplates(name) == kCallRole) return CollectCalls(path, value, message);
      return CollectContent(path, value, message);
    }
    const bool is_thoughts = IsKnownAs(key, Meaning::kThoughts);
    CollectTexts(value, NewSite(path, is_thoughts ? Kind::kThoughts : Kind::kOther, message));
  }

  void CollectContent(const std::string& path, const OrderedJson& content, std::size_t message) {
    const Site* site = NewSite(path, Kind::kContent, message);
    if (!content.is_array()) return CollectTexts(content, site);
    for (const OrderedJson& part : content) {
      const bool is_part = part.is_object() && part.contains("type") && part["type"].is_string();
      if (!is_part) {
        CollectTexts(part, site);
        continue;
      }
      const std::string type = part["type"];
      if (type == "redacted_thinking") continue;
      const Site* inner = type == "thinking" || type == "reasoning"
                              ? NewSite(path + "[]." + type, Kind::kThoughts, message)
                          : type == "tool_use"
                              ? NewSite(path + "[].tool_use", Kind::kCalls, message)
                          : type == "tool_result" ? NewSite(path + "[].tool_result", Kind::kContent)
                                                  : site;
      for (const auto& [key, value] : part.items()) {
        const bool is_tie = key == "id" || key == "tool_use_id" || key == "is_error";
        if (is_tie || IsLabel(key)) continue;
        const bool is_extra = key == "signature" || key == "cache_control" || key == "citations";
        CollectTexts(value, is_extra ? NewSite(path + "[]." + key, Kind::kOther, message) : inner);
      }
    }
  }

  void CollectCalls(const std::string& path, const OrderedJson& value, std::size_t message) {
    OrderedJson parsed;
    bool is_text = false;
    if (value.is_string()) {
      const WrittenCalls written = SplitWrittenCalls(value.get_ref<const std::string&>());
      AddText(written.thoughts, NewSite(path, Kind::kThoughts, message));
      is_text = !TryParseJson(written.calls, parsed);
    }
    const OrderedJson& calls = is_text ? parsed_.emplace_back(std::move(parsed)) : value;
    const Site* name = NewSite(path + "[].name", Kind::kCalls, message);
    const Site* arguments = NewSite(path + "[].arguments", Kind::kCalls, message);
    const auto add = [&](const OrderedJson& call) {
      if (!call.is_object()) return CollectTexts(call, name);
      for (const auto& [key, field] : call.items()) {
        if (key == "id" || key == "index" || IsLabel(key) || key == "function") continue;
        const Site* site = key == "name" ? name : key == "arguments" ? arguments : nullptr;
        if (site == nullptr) site = NewSite(path + "[]." + key, Kind::kOther, message);
        CollectTexts(field, site);
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
        CollectSchema(value,
                      NewSite(name + (key == "name" ? "" : "[].function." + key), Kind::kTools));
      }
    }
  }

  void CollectSchema(const OrderedJson& value, const Site* site) {
    if (value.is_string()) return CollectTexts(value, site);
    if (!value.is_structured()) return;
    for (const auto& [key, item] : value.items()) {
      if (value.is_object() && IsSchemaWord(key) && !item.is_object()) continue;
      const bool is_names = value.is_object() && key == "properties" && item.is_object();
      if (is_names) {
        for (const auto& property : item.items()) leaves_.push_back({property.key(), site});
        for (const OrderedJson& property : item) CollectSchema(property, site);
        continue;
      }
      CollectSchema(item, site);
    }
  }

  // Keys of objects are texts, too: names of arguments and of fields of results.
  void CollectTexts(const OrderedJson& value, const Site* site) {
    if (value.is_structured()) {
      for (const auto& [key, item] : value.items()) {
        if (value.is_object() && site->kind != Kind::kOther) AddText(key, site);
        CollectTexts(item, site);
      }
    } else if (value.is_string()) {
      AddText(value.get_ref<const std::string&>(), site);
    } else if (!value.is_null() && !(site->kind == Kind::kOther && value.is_boolean())) {
      AddText(texts_.emplace_back(FormatJson(value)), site);
    }
  }

  void AddText(std::string_view text, const Site* site) {
    if (!Trim(text).empty()) leaves_.push_back({text, site});
  }

  const OrderedJson& record_;
  const Conversation& conversation_;
  const RecordLayout& layout_;
  std::set<std::string> functions_;  // names of called functions, as JSON
  std::set<std::string> calls_;      // ids of calls, as JSON
  bool has_foreign_ids_ = false;
  std::size_t next_ = 0;
  std::vector<Leaf> leaves_;
  std::deque<Site> sites_;
  std::deque<std::string> texts_;
  std::deque<OrderedJson> parsed_;
};

class TextAudit {
 public:
  TextAudit(const OrderedJson& record, RenderedConversation& chat, const TrainedTurns& trained,
            const RecordLayout& layout)
      : chat_(chat),
        conversation_(chat.conversation()),
        trained_(trained),
        collector_(record, conversation_, layout),
        places_(PlacesOf(trained.turns)),
        search_(chat.text(), places_),
        turn_of_(conversation_.messages.size(), kNone) {
    for (std::size_t t = 0; t < trained.turns.size(); ++t) turn_of_[trained.turns[t].message] = t;
  }

  std::vector<TextFinding> Run() {
    const std::vector<Leaf> leaves = collector_.Collect();
    // What the assistant wrote takes its places first, then what others wrote: what is missing of
    // an answer is not in a word of theirs.
    std::vector<const Leaf*> missing;
    for (const Leaf& leaf : leaves) {
      if (IsLearnt(*leaf.site) && !IsInTurn(leaf.text, *leaf.site)) missing.push_back(&leaf);
    }
    for (const Leaf& leaf : leaves) {
      if (!IsLearnt(*leaf.site)) CheckOutside(leaf.text, *leaf.site);
    }
    for (const Leaf* leaf : missing) CheckMissing(leaf->text, *leaf->site);
    NameTools();
    if (collector_.has_foreign_ids()) {
      Add("tool_call_id: results of tools with the id of no call", "");
    }
    for (const auto& [name, value] : conversation_.variables.items()) {
      if (name == "documents" || chat_.ReadsVariable(name)) continue;
      Add("chat_template_kwargs." + name + ": a variable that the chat template does not read", "");
    }
    CheckEmptyAnswers();
    return std::move(findings_);
  }

 private:
  static std::vector<TextPlace> PlacesOf(std::span<const ChatSpan> turns) {
    std::vector<TextPlace> places;
    for (const ChatSpan& turn : turns) places.push_back({turn.begin, turn.end});
    return places;
  }

  bool IsAnswer(const Site& site) const {
    return site.message != kNone && conversation_.messages[site.message]["role"] == "assistant";
  }
  // True for what the assistant wrote and the training is to have.
  bool IsLearnt(const Site& site) const {
    return IsAnswer(site) && conversation_.trained[site.message] && !trained_.everything &&
           std::ranges::count(trained_.stripped, site.message) == 0;
  }

  // True when an answer has a text, or all texts of a text that holds JSON.
  bool IsInTurn(std::string_view text, const Site& site) {
    const std::size_t turn = turn_of_[site.message];
    if (turn == kNone) return false;
    const auto place = search_.TakeWithin(text, turn);
    if (place) NoteMark(*place, site);
    if (place || search_.HasWithin(text, turn)) return true;
    return ForTexts(text, [&](std::string_view part) { return IsInTurn(part, site); });
  }

  // Names a text of an answer that does not have it.
  void CheckMissing(std::string_view text, const Site& site) {
    if (IsInTurn(text, site)) return;  // a part of a text that holds JSON
    const bool is_elsewhere = search_.TakeOutside(text) || search_.HasOutside(text);
    if (is_elsewhere) return Add(site, Loss::kNotTrained, text);
    const bool is_taken_apart = ForTexts(text, [&](std::string_view part) {
      CheckMissing(part, site);
      return true;
    });
    if (!is_taken_apart) CheckLost(text, site);
  }

  void CheckOutside(std::string_view text, const Site& site) {
    if (search_.TakeOutside(text) || search_.HasOutside(text)) {
      tools_shown_ += site.kind == Kind::kTools && site.path.find('.') != std::string::npos;
      return;
    }
    const bool is_taken_apart = ForTexts(text, [&](std::string_view part) {
      CheckOutside(part, site);
      return true;
    });
    if (is_taken_apart) return;
    if (!IsAnswer(site) && !trained_.everything) {
      for (std::size_t t = 0; t < places_.size(); ++t) {
        if (search_.TakeWithin(text, t)) return Add(site, Loss::kOfOthers, text);
      }
    }
    // A message that repeats the system text of its record stands there once.
    if ((IsAnswer(site) || site.message == kNone) && search_.HasAnywhere(text)) return;
    const bool is_stripped = site.kind == Kind::kThoughts && IsAnswer(site) &&
                             std::ranges::count(trained_.stripped, site.message) > 0;
    if (!is_stripped) CheckLost(text, site);
  }

  // Calls check(part) for the texts of a text that holds a list or an object as JSON, until it
  // returns false. True when it returned true for all.
  template <typename Check>
  bool ForTexts(std::string_view text, const Check& check) {
    const std::string_view inside = Trim(text);
    if (inside.front() != '{' && inside.front() != '[') return false;
    OrderedJson value;
    if (TryParseJson(inside, value) || !value.is_structured()) return false;
    return AllTexts(value, check);
  }
  template <typename Check>
  bool AllTexts(const OrderedJson& value, const Check& check) {
    if (value.is_structured()) {
      for (const auto& [key, item] : value.items()) {
        if (value.is_object() && !Trim(key).empty() && !check(key)) return false;
        if (!AllTexts(item, check)) return false;
      }
      return true;
    }
    const std::string text = value.is_null()     ? std::string()
                             : value.is_string() ? value.get<std::string>()
                                                 : FormatJson(value);
    return Trim(text).empty() || check(text);
  }

  // Names thoughts and an answer that nothing is between.
  void NoteMark(const TextPlace& place, const Site& site) {
    if (site.kind != Kind::kThoughts && site.kind != Kind::kContent) return;
    if (marked_.message != site.message) marked_ = {site.message, {}, {}};
    (site.kind == Kind::kThoughts ? marked_.thoughts : marked_.answer) = place;
    if (!marked_.thoughts || !marked_.answer) return;
    const std::size_t begin = marked_.thoughts->end;
    const std::size_t end = marked_.answer->begin;
    if (end < begin) return;
    if (Trim(std::string_view(chat_.text()).substr(begin, end - begin)).empty()) {
      Add(site, Loss::kBare, {});
    }
  }

  void CheckLost(std::string_view text, const Site& site) {
    const std::vector<std::string_view> pieces = PiecesOf(text);
    std::vector<std::string_view> lost;
    for (const std::string_view piece : pieces) {
      if (!search_.HasAnywhere(piece)) lost.push_back(piece);
    }
    const auto words = std::ranges::find_if(
        lost, [](std::string_view piece) { return piece.front() != '<' || piece.back() != '>'; });
    const std::string_view first = lost.empty()          ? Trim(text)
                                   : words != lost.end() ? *words
                                                         : lost.front();
    const Loss loss = lost.size() == pieces.size() ? Loss::kNotShown : Loss::kInPart;
    Site named = site;
    const std::size_t close = text.find("</think>");
    if (IsAnswer(site) && loss == Loss::kInPart && close != text.npos &&
        (lost.empty() || first.data() < text.data() + close)) {
      named.kind = Kind::kThoughts;
    }
    if (IsNamed(named, loss) || FollowsOtherText(first, site)) return;
    if (site.kind == Kind::kTools) {
      lost_tools_.push_back({WhatOf(site, loss), Quote(first)});
    } else {
      Add(named, loss, first);
    }
  }

  // One finding for tools of which nothing but names is shown, which calls have as well.
  void NameTools() {
    if (lost_tools_.empty()) return;
    if (tools_shown_ > 0) {
      for (TextFinding& one : lost_tools_) Add(std::move(one.what), one.quote);
    } else {
      const Site tools = {"tools", Kind::kTools, kNone};
      Add(tools, Loss::kNotShown, lost_tools_.front().quote);
    }
  }

  // True when another text in place of this one is shown: in a form that the search does not know.
  bool FollowsOtherText(std::string_view text, const Site& site) {
    constexpr int kMostProbes = 4;  // of a record; each is a rendering
    if (probes_++ >= kMostProbes) return false;
    const std::optional<RenderedConversation> other = chat_.With([&](Conversation& changed) {
      if (site.kind == Kind::kTools) {
        ReplaceText(changed.tools, text);
      } else if (site.message != kNone) {
        OrderedJson& message = changed.messages[site.message];
        for (const auto& [key, value] : message.items()) {
          if (!IsLabel(key)) ReplaceText(value, text);
        }
      } else {
        ReplaceText(changed.variables, text);
      }
    });
    return other && LowerCase(other->text()).find(LowerCase(kProbe)) != std::string::npos;
  }

  void CheckEmptyAnswers() {
    for (std::size_t m = 0; m < conversation_.messages.size(); ++m) {
      const OrderedJson& message = conversation_.messages[m];
      const OrderedJson& content = message.at("content");
      const bool says =
          !content.is_string() || !Trim(content.get_ref<const std::string&>()).empty();
      if (says || !conversation_.trained[m] || message.contains("tool_calls")) continue;
      if (FindByMeaning(message, Meaning::kThoughts)) continue;
      Add("answers without text, of which the model learns to stop alone", "");
    }
  }

  std::string WhatOf(const Site& site, Loss loss) const {
    std::string of_role;
    if (site.message != kNone && site.kind == Kind::kContent) {
      of_role = fmt::format(" of the role {}",
                            conversation_.messages[site.message]["role"].get<std::string>());
    }
    std::string what =
        fmt::format("{}{}: {}", site.path, of_role, Describe(site.kind, loss, IsAnswer(site)));
    const std::size_t dot = site.path.rfind('.');
    const KnownField* known =
        FindKnownField(dot == site.path.npos ? site.path : site.path.substr(dot + 1));
    if (site.kind == Kind::kOther && known != nullptr) what += fmt::format(" ({})", known->text);
    return what;
  }

  bool IsNamed(const Site& site, Loss loss) const {
    const std::string what = WhatOf(site, loss);
    return std::ranges::any_of(findings_, [&](const auto& one) { return one.what == what; });
  }
  void Add(const Site& site, Loss loss, std::string_view text) { Add(WhatOf(site, loss), text); }
  void Add(std::string what, std::string_view text) {
    const auto same = [&](const TextFinding& one) { return one.what == what; };
    if (std::ranges::any_of(findings_, same)) return;
    findings_.push_back({std::move(what), Quote(text)});
  }

  RenderedConversation& chat_;
  const Conversation& conversation_;
  const TrainedTurns& trained_;
  Collector collector_;
  const std::vector<TextPlace> places_;
  TextSearch search_;
  std::vector<std::size_t> turn_of_;  // per message
  struct Marked {
    std::size_t message = kNone;
    std::optional<TextPlace> thoughts = {};
    std::optional<TextPlace> answer = {};
  };
  Marked marked_;  // of the last message that has thoughts or an answer
  int probes_ = 0;
  std::int64_t tools_shown_ = 0;  // texts of tools, without names
  std::vector<TextFinding> lost_tools_;
  std::vector<TextFinding> findings_;
};

// True when the text has all texts of a value.
bool HasAllTexts(TextSearch& search, const OrderedJson& value) {
  if (value.is_structured()) {
    for (const auto& [key, item] : value.items()) {
      if (!(value.is_object() && IsLabel(key)) && !HasAllTexts(search, item)) return false;
    }
    return true;
  }
  if (value.is_null() || value.is_boolean()) return true;
  const std::string text = value.is_string() ? value.get<std::string>() : FormatJson(value);
  return search.HasAnywhere(text);
}

}  // namespace

std::vector<TextFinding> AuditTexts(const OrderedJson& record, RenderedConversation& chat,
                                    const TrainedTurns& trained, const RecordLayout& layout) {
  return TextAudit(record, chat, trained, layout).Run();
}

std::string FindUnusedPart(const OrderedJson& record, std::span<const std::string> used,
                           std::string_view text) {
  std::optional<TextSearch> search;
  for (const auto& [name, value] : record.items()) {
    if (SaysNothing(value) || !IsPartOfConversation(name)) continue;
    if (std::ranges::count(used, name) > 0) continue;
    if (!search) search.emplace(text, std::span<const TextPlace>());
    if (!HasAllTexts(*search, value)) return name;
  }
  return {};
}

}  // namespace qlora
