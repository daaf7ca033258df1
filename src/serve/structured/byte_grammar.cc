#include "serve/structured/byte_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "qlora/error.h"

namespace qlora {
namespace {

using Kind = ByteGrammar::State::Kind;

// Looks for a rule that can be called within itself before a byte was read.
class CallSearch {
 public:
  explicit CallSearch(const ByteGrammar& grammar)
      : grammar_(grammar), seen_(grammar.states.size()), marks_(grammar.rules.size()) {}

  bool FindsCycle() {
    for (GrammarRule rule = 0; rule < grammar_.rules.size(); ++rule) {
      if (Enter(rule)) return true;
    }
    return false;
  }

 private:
  enum class Mark : std::uint8_t { kNew, kOpen, kDone };

  // No rule is empty: nothing behind a call is reached without a byte.
  bool Enter(GrammarRule rule) {
    if (marks_[rule] != Mark::kNew) return marks_[rule] == Mark::kOpen;
    marks_[rule] = Mark::kOpen;
    const bool found = Walk(grammar_.rules[rule]);
    marks_[rule] = Mark::kDone;
    return found;
  }
  bool Walk(GrammarState begin) {
    std::vector<GrammarState> open = {begin};
    while (!open.empty()) {
      const GrammarState at = open.back();
      open.pop_back();
      if (seen_[at]) continue;
      seen_[at] = true;
      const ByteGrammar::State& state = grammar_.states[at];
      if (state.kind == Kind::kCall && Enter(state.what)) return true;
      if (state.kind != Kind::kEither) continue;
      const std::vector<GrammarState>& choices = grammar_.choices[state.what];
      open.insert(open.end(), choices.begin(), choices.end());
    }
    return false;
  }

  const ByteGrammar& grammar_;
  std::vector<bool> seen_;
  std::vector<Mark> marks_;
};

}  // namespace

ByteSet AnyByteOf(std::string_view any_of) {
  ByteSet set;
  for (const char byte : any_of) set.set(static_cast<unsigned char>(byte));
  return set;
}

ByteSet ByteRange(unsigned char first, unsigned char last) {
  ByteSet set;
  for (unsigned int byte = first; byte <= last; ++byte) set.set(byte);
  return set;
}

GrammarBuilder::GrammarBuilder() { Add({.kind = Kind::kEnd}); }

GrammarState GrammarBuilder::Literal(std::string_view text, GrammarState next) {
  for (std::size_t i = text.size(); i > 0; --i)
    next = OneOf(AnyByteOf(text.substr(i - 1, 1)), next);
  return next;
}

GrammarState GrammarBuilder::AnyText(std::vector<std::string> texts, GrammarState next) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return TextsFrom(texts, 0, next);
}

// sorted: texts whose first `at` bytes are equal.
GrammarState GrammarBuilder::TextsFrom(std::span<const std::string> sorted, std::size_t at,
                                       GrammarState next) {
  if (sorted.size() == 1) return Literal(std::string_view(sorted[0]).substr(at), next);
  std::vector<GrammarState> choices;
  while (!sorted.empty()) {
    if (sorted[0].size() == at) {
      choices.push_back(next);
      sorted = sorted.subspan(1);
      continue;
    }
    const auto is_other = [&](const std::string& text) { return text[at] != sorted[0][at]; };
    const auto alike = sorted.first(std::ranges::find_if(sorted, is_other) - sorted.begin());
    const GrammarState rest = TextsFrom(alike, at + 1, next);
    choices.push_back(Literal(alike[0].substr(at, 1), rest));
    sorted = sorted.subspan(alike.size());
  }
  return choices.size() == 1 ? choices[0] : Either(std::move(choices));
}

GrammarState GrammarBuilder::OneOf(const ByteSet& set, GrammarState next) {
  const auto at = std::ranges::find(grammar_.sets, set);
  const auto number = static_cast<std::uint32_t>(at - grammar_.sets.begin());
  if (at == grammar_.sets.end()) grammar_.sets.push_back(set);
  return Add({.kind = Kind::kBytes, .what = number, .next = next});
}

GrammarState GrammarBuilder::Either(std::vector<GrammarState> choices) {
  grammar_.choices.push_back(std::move(choices));
  return Add(
      {.kind = Kind::kEither, .what = static_cast<std::uint32_t>(grammar_.choices.size() - 1)});
}

GrammarRule GrammarBuilder::NewRule(bool nests) {
  grammar_.rules.push_back(end());
  grammar_.nests.push_back(nests);
  return static_cast<GrammarRule>(grammar_.rules.size() - 1);
}

GrammarState GrammarBuilder::Call(GrammarRule rule, GrammarState next) {
  return Add({.kind = Kind::kCall, .what = rule, .next = next});
}

ByteGrammar GrammarBuilder::Finish(GrammarState begin) {
  if (CallSearch(grammar_).FindsCycle()) {
    throw Error(ErrorCode::kInvalidInput, "a schema refers to itself alone");
  }
  LeaveOutEndless(begin);
  for (GrammarRule rule = 0; rule < grammar_.rules.size(); ++rule) {
    if (grammar_.nests[rule]) grammar_.nests[rule] = CallsItself(rule);
  }
  grammar_.begin = begin;
  return std::move(grammar_);
}

// A state has an end where a way from it comes to that of its rule. Most states are younger than
// those that they lead to, so that few rounds find all.
void GrammarBuilder::LeaveOutEndless(GrammarState begin) {
  std::vector<bool> has_end(grammar_.states.size());
  const auto ends = [&](const ByteGrammar::State& state) {
    switch (state.kind) {
      case Kind::kEnd:
        return true;
      case Kind::kBytes:
        return bool{has_end[state.next]};
      case Kind::kCall:
        return has_end[state.next] && has_end[grammar_.rules[state.what]];
      case Kind::kEither:
        return std::ranges::any_of(grammar_.choices[state.what],
                                   [&](GrammarState choice) { return bool{has_end[choice]}; });
    }
    return false;
  };
  for (bool changes = true; changes;) {
    changes = false;
    for (std::size_t i = 0; i < has_end.size(); ++i) {
      if (has_end[i] || !ends(grammar_.states[i])) continue;
      has_end[i] = true;
      changes = true;
    }
  }
  if (!has_end[begin]) {
    throw Error(ErrorCode::kInvalidInput, "no value of the schema comes to an end");
  }
  for (std::vector<GrammarState>& choices : grammar_.choices) {
    std::erase_if(choices, [&](GrammarState choice) { return !has_end[choice]; });
  }
}

bool GrammarBuilder::CallsItself(GrammarRule rule) const {
  std::vector<bool> seen(grammar_.states.size());
  std::vector<GrammarState> open = {grammar_.rules[rule]};
  while (!open.empty()) {
    const GrammarState at = open.back();
    open.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    const ByteGrammar::State& state = grammar_.states[at];
    switch (state.kind) {
      case Kind::kEnd:
        break;
      case Kind::kCall:
        if (state.what == rule) return true;
        open.push_back(grammar_.rules[state.what]);
        open.push_back(state.next);
        break;
      case Kind::kBytes:
        open.push_back(state.next);
        break;
      case Kind::kEither:
        for (const GrammarState choice : grammar_.choices[state.what]) open.push_back(choice);
        break;
    }
  }
  return false;
}

GrammarState GrammarBuilder::Add(ByteGrammar::State state) {
  if (grammar_.states.size() == kMostStates) {
    throw Error(ErrorCode::kInvalidInput,
                fmt::format("the schema needs more than {} states: shorten lists, texts and "
                            "enumerations of it, or bound them less",
                            kMostStates));
  }
  grammar_.states.push_back(state);
  return static_cast<GrammarState>(grammar_.states.size() - 1);
}

void GrammarBuilder::SetChoices(GrammarState either, std::vector<GrammarState> choices) {
  grammar_.choices[grammar_.states[either].what] = std::move(choices);
}

}  // namespace qlora
