#include "data/audit/text_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.h"
#include "data/audit/record_texts.h"
#include "data/audit/text_search.h"
#include "io/json.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

constexpr std::string_view kProbe = "Xylemquartz";
constexpr std::string_view kProbeEnd = "Vexedjumbo";

enum class Loss { kNotShown, kInPart, kNotTrained, kOfOthers, kBare, kOnce };

// A text of the length of another, and of words as it is, by whose two ends a text that is cut
// tells itself.
std::string ProbeFor(std::string_view text) {
  const std::string_view between = text.find(' ') == text.npos ? "" : " ";
  const std::size_t ends = kProbe.size() + kProbeEnd.size() + 2 * between.size();
  std::string probe(kProbe);
  if (text.size() < ends) return probe;
  probe.append(between).append(text.size() - ends, 'q').append(between);
  return probe.append(kProbeEnd);
}

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
void ReplaceText(OrderedJson& value, std::string_view part, std::string_view probe) {
  if (value.is_structured()) {
    for (OrderedJson& item : value) ReplaceText(item, part, probe);
  } else if (value.is_string()) {
    value = ReplaceAll(value.get<std::string>(), part, probe);
  } else if (!value.is_null() && FormatJson(value) == part) {
    value = probe;
  }
}

std::string Quote(std::string_view text) {
  constexpr std::size_t kMost = 40;
  text = Trim(text);
  if (text.size() <= kMost) return std::string(text);
  return std::string(FirstBytes(text, kMost)) + " ...";
}

std::string_view Describe(TextKind kind, Loss loss, bool is_answer) {
  switch (loss) {
    case Loss::kNotTrained:
      return "what the assistant wrote, shown at another place than its answer, and not trained on";
    case Loss::kOfOthers:
      return "trained on as if the assistant had written it";
    case Loss::kBare:
      return "thoughts that the chat template shows without a mark between them and the answer";
    case Loss::kOnce:
      return "texts that stand in the record more often than the chat template shows them";
    case Loss::kInPart:
      if (kind == TextKind::kThoughts) {
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
    case TextKind::kContent:
      return is_answer ? "answers that the chat template does not show, so that they are not learnt"
                       : "texts that the chat template does not show, so that the model does not "
                         "see them";
    case TextKind::kThoughts:
      return "thoughts that the chat template does not show, so that the model learns to answer "
             "without them; name one that shows them with chat_template";
    case TextKind::kCalls:
      return "calls of tools that the chat template does not show, so that they are not learnt; "
             "name one that knows tools with chat_template";
    case TextKind::kTools:
      return "descriptions of tools that the chat template does not show, so that the model does "
             "not see them";
    case TextKind::kSystem:
      return "a system text that the chat template does not show, so that the model does not see "
             "it";
    case TextKind::kOther:
      break;
  }
  return "a field that the chat template does not show, so that the model does not see it";
}

class TextAudit {
 public:
  TextAudit(const OrderedJson& record, RenderedConversation& chat, const TrainedTurns& trained,
            const RecordLayout& layout)
      : record_(record),
        chat_(chat),
        conversation_(chat.conversation()),
        trained_(trained),
        texts_(CollectTexts(record, conversation_, layout)),
        places_(PlacesOf(trained.turns)),
        search_(chat.text(), places_),
        turn_of_(conversation_.messages.size(), kNoMessage) {
    for (std::size_t t = 0; t < trained.turns.size(); ++t) turn_of_[trained.turns[t].message] = t;
  }

  std::vector<TextFinding> Run() {
    // What the assistant wrote takes its places first, then what others wrote: what is missing of
    // an answer is not in a word of theirs.
    std::vector<const RecordText*> missing;
    for (const RecordText& one : texts_.texts) {
      if (IsLearnt(*one.site) && !IsInTurn(one.text, *one.site)) missing.push_back(&one);
    }
    for (const RecordText& one : texts_.texts) {
      if (!IsLearnt(*one.site)) CheckOutside(one.text, *one.site);
    }
    for (const RecordText* one : missing) CheckMissing(one->text, *one->site);
    NameTools();
    if (texts_.has_foreign_ids) {
      Add("tool_call_id: results of tools with the id of no call", "");
    }
    for (const auto& [name, value] : conversation_.variables.items()) {
      if (name == "documents" || SaysNothing(value) || chat_.ReadsVariable(name)) continue;
      Add("chat_template_kwargs." + name + ": a variable that the chat template does not read", "");
    }
    CheckNothing(record_);
    CheckSwitches();
    CheckEmptyAnswers();
    CheckLastMessage();
    return std::move(findings_);
  }

 private:
  static std::vector<TextPlace> PlacesOf(std::span<const ChatSpan> turns) {
    std::vector<TextPlace> places;
    for (const ChatSpan& turn : turns) places.push_back({turn.begin, turn.end});
    return places;
  }

  bool IsAnswer(const TextSite& site) const {
    return site.message != kNoMessage &&
           conversation_.messages[site.message]["role"] == "assistant";
  }
  // True for what the assistant wrote and the training is to have.
  bool IsLearnt(const TextSite& site) const {
    return IsAnswer(site) && conversation_.trained[site.message] && !trained_.everything &&
           std::ranges::count(trained_.stripped, site.message) == 0;
  }

  // True when an answer has a text, or all texts of a text that holds JSON.
  bool IsInTurn(std::string_view text, const TextSite& site) {
    const std::size_t turn = turn_of_[site.message];
    if (turn == kNoMessage) return false;
    const auto place = search_.TakeWithin(text, turn);
    if (place) NoteMark(*place, site);
    if (place || search_.HasWithin(text, turn)) return true;
    return ForTexts(text, [&](std::string_view part) { return IsInTurn(part, site); });
  }

  // Names a text of an answer that does not have it.
  void CheckMissing(std::string_view text, const TextSite& site) {
    if (IsInTurn(text, site)) return;  // a part of a text that holds JSON
    const bool is_elsewhere = search_.TakeOutside(text) || search_.HasOutside(text);
    if (is_elsewhere) return Add(site, Loss::kNotTrained, text);
    const bool is_taken_apart = ForTexts(text, [&](std::string_view part) {
      CheckMissing(part, site);
      return true;
    });
    if (!is_taken_apart) CheckLost(text, site);
  }

  void CheckOutside(std::string_view text, const TextSite& site) {
    // Thoughts that are left out are named as such, and take no place of others.
    if (site.kind == TextKind::kThoughts && IsAnswer(site) &&
        std::ranges::count(trained_.stripped, site.message) > 0) {
      return;
    }
    if (search_.TakeOutside(text) || search_.HasOutside(text)) {
      tools_shown_ += site.kind == TextKind::kTools && site.path.find('.') != std::string::npos;
      return CheckEcho(text, site);
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
    const bool is_anywhere = search_.HasAnywhere(text);
    if ((IsAnswer(site) || site.message == kNoMessage) && is_anywhere) return;
    if (is_anywhere && site.kind == TextKind::kContent) return Add(site, Loss::kOnce, text);
    CheckLost(text, site);
  }

  // Names a text of others that the next answer repeats outside of what the assistant wrote.
  void CheckEcho(std::string_view text, const TextSite& site) {
    constexpr std::size_t kLong = 16;  // shorter ones are words of templates
    const bool is_said = site.kind == TextKind::kContent || site.kind == TextKind::kSystem;
    if (!is_said || IsAnswer(site) || trained_.everything || site.message == kNoMessage) return;
    const auto next =
        std::ranges::upper_bound(trained_.turns, site.message, {}, &ChatSpan::message);
    if (next == trained_.turns.end() || Trim(text).size() < kLong) return;
    const auto turn = static_cast<std::size_t>(next - trained_.turns.begin());
    if (search_.TakeWithin(text, turn)) Add(site, Loss::kOfOthers, text);
  }

  // Calls check(part) for the texts of a text that holds a list or an object as JSON, until it
  // returns false. True when it returned true for all.
  template <typename Check>
  bool ForTexts(std::string_view text, const Check& check) {
    const std::string_view inside = Trim(text);
    if (inside.front() != '{' && inside.front() != '[') return false;
    OrderedJson value;
    if (TryParseJson(inside, value) || !value.is_structured()) return false;
    return ForEachText(value, [&](const std::string& part, const OrderedJson*) {
      return Trim(part).empty() || check(part);
    });
  }

  // Names thoughts and an answer that nothing is between.
  void NoteMark(const TextPlace& place, const TextSite& site) {
    if (site.kind != TextKind::kThoughts && site.kind != TextKind::kContent) return;
    if (marked_.message != site.message) marked_ = {site.message, {}, {}};
    (site.kind == TextKind::kThoughts ? marked_.thoughts : marked_.answer) = place;
    if (!marked_.thoughts || !marked_.answer) return;
    const std::size_t begin = marked_.thoughts->end;
    const std::size_t end = marked_.answer->begin;
    if (end < begin) return;
    if (Trim(std::string_view(chat_.text()).substr(begin, end - begin)).empty()) {
      Add(site, Loss::kBare, {});
    }
  }

  void CheckLost(std::string_view text, const TextSite& site) {
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
    TextSite named = site;
    const std::size_t close = text.find("</think>");
    if (IsAnswer(site) && loss == Loss::kInPart && close != text.npos &&
        (lost.empty() || first.data() < text.data() + close)) {
      named.kind = TextKind::kThoughts;
    }
    // A probe that is shown does not help an answer that is not.
    const bool is_untrained = IsLearnt(site) && turn_of_[site.message] == kNoMessage;
    if (IsNamed(named, loss) || (!is_untrained && FollowsOtherText(first, site))) return;
    if (site.kind == TextKind::kTools) {
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
      const TextSite tools = {"tools", TextKind::kTools, kNoMessage};
      Add(tools, Loss::kNotShown, lost_tools_.front().quote);
    }
  }

  // True when another text in place of this one is shown: in a form that the search does not know.
  bool FollowsOtherText(std::string_view text, const TextSite& site) {
    constexpr int kMostProbes = 4;  // of a record; each is a rendering
    if (probes_++ >= kMostProbes) return false;
    const std::string probe = ProbeFor(text);
    const std::optional<RenderedConversation> other = chat_.With([&](Conversation& changed) {
      if (site.kind == TextKind::kTools) {
        ReplaceText(changed.tools, text, probe);
      } else if (site.message != kNoMessage) {
        OrderedJson& message = changed.messages[site.message];
        for (const auto& [key, value] : message.items()) {
          if (!IsLabelField(key)) ReplaceText(value, text, probe);
        }
      } else {
        ReplaceText(changed.variables, text, probe);
      }
    });
    if (!other) return false;
    const std::string shown = LowerCase(other->text());
    const auto shows = [&shown](std::string_view word) {
      return shown.find(LowerCase(word)) != shown.npos;
    };
    return shows(kProbe) && (!probe.ends_with(kProbeEnd) || shows(kProbeEnd));
  }

  // Python's word for nothing, which neither the record nor the template has.
  void CheckNothing(const OrderedJson& record) {
    constexpr std::string_view kNone = "None";
    if (chat_.text().find(kNone) == std::string::npos || chat_.ReadsVariable(kNone)) return;
    if (record.dump().find(kNone) != std::string::npos) return;
    Add("the chat template shows None for a field that is not there", "");
  }

  // True and false of a message stand in no text: whether the template reads the field tells.
  void CheckSwitches() {
    for (std::size_t m = 0; m < conversation_.messages.size(); ++m) {
      for (const auto& [name, value] : conversation_.messages[m].items()) {
        if (!value.is_boolean() || IsLabelField(name) || chat_.ReadsVariable(name)) continue;
        Add({conversation_.origins[m].field + "[]." + name, TextKind::kOther, m}, Loss::kNotShown,
            FormatJson(value));
      }
    }
  }

  void CheckEmptyAnswers() {
    for (std::size_t m = 0; m < conversation_.messages.size(); ++m) {
      const OrderedJson& message = conversation_.messages[m];
      const OrderedJson& content = message.at("content");
      const bool says =
          !content.is_string() || !Trim(content.get_ref<const std::string&>()).empty();
      if (says || !conversation_.trained[m] || message.contains("tool_calls")) continue;
      if (FindByMeaning(message, FieldMeaning::kThoughts)) continue;
      Add("answers without text, which teach the model to say nothing", "");
    }
  }

  // A file of requests keeps the answers elsewhere, perhaps in a field that is not read.
  void CheckLastMessage() {
    if (conversation_.messages.empty()) return;
    const OrderedJson& last = conversation_.messages.back();
    const std::string_view role = RoleOfTemplates(last.at("role").get_ref<const std::string&>());
    if (role != "user" && role != "tool") return;
    const OrderedJson& content = last.at("content");
    Add("conversations that end with a message that nobody answers; the answer belongs behind it, "
        "as a message of the assistant",
        content.is_string() ? content.get_ref<const std::string&>() : std::string());
  }

  std::string WhatOf(const TextSite& site, Loss loss) const {
    std::string of_role;
    if (site.message != kNoMessage && site.kind == TextKind::kContent) {
      of_role = fmt::format(" of the role {}",
                            conversation_.messages[site.message]["role"].get<std::string>());
    }
    std::string what =
        fmt::format("{}{}: {}", site.path, of_role, Describe(site.kind, loss, IsAnswer(site)));
    const std::size_t dot = site.path.rfind('.');
    const KnownField* known =
        FindKnownField(dot == site.path.npos ? site.path : site.path.substr(dot + 1));
    if (site.kind == TextKind::kOther && known != nullptr)
      what += fmt::format(" ({})", known->text);
    return what;
  }

  bool IsNamed(const TextSite& site, Loss loss) const {
    const std::string what = WhatOf(site, loss);
    return std::ranges::any_of(findings_, [&](const auto& one) { return one.what == what; });
  }
  void Add(const TextSite& site, Loss loss, std::string_view text) {
    Add(WhatOf(site, loss), text);
  }
  void Add(std::string what, std::string_view text) {
    const auto same = [&](const TextFinding& one) { return one.what == what; };
    if (std::ranges::any_of(findings_, same)) return;
    findings_.push_back({std::move(what), Quote(text)});
  }

  const OrderedJson& record_;
  RenderedConversation& chat_;
  const Conversation& conversation_;
  const TrainedTurns& trained_;
  const RecordTexts texts_;
  const std::vector<TextPlace> places_;
  TextSearch search_;
  std::vector<std::size_t> turn_of_;  // per message
  struct Marked {
    std::size_t message = kNoMessage;
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
      if (!(value.is_object() && IsLabelField(key)) && !HasAllTexts(search, item)) return false;
    }
    return true;
  }
  if (value.is_null() || value.is_boolean()) return true;
  return search.HasAnywhere(TextOrJson(value));
}

// True for a text that has all texts of the fields that are used.
bool ShowsAll(const OrderedJson& value, const OrderedJson& record,
              std::span<const std::string> used) {
  if (!value.is_string() || used.empty()) return false;
  TextSearch search(value.get_ref<const std::string&>(), {});
  return std::ranges::all_of(used, [&](const std::string& name) {
    return !record.contains(name) || HasAllTexts(search, record[name]);
  });
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
    if (!HasAllTexts(*search, value) && !ShowsAll(value, record, used)) return name;
  }
  return {};
}

}  // namespace qlora
