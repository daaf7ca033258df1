#include "serve/structured/byte_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "qlora/error.h"

namespace qlora {
namespace {

using Kind = ByteGrammar::State::Kind;

using Edges = std::vector<std::vector<std::uint32_t>>;  // of each node, to which ones it leads

// True where a way leads back to where it began: where nodes are left when those that lead nowhere,
// or to such nodes alone, are taken away.
bool HasCycle(const Edges& to) {
  Edges from(to.size());
  std::vector<std::size_t> ways(to.size());  // on from each, to what is not taken away
  std::vector<std::uint32_t> dead_ends;
  for (std::uint32_t node = 0; node < to.size(); ++node) {
    for (const std::uint32_t next : to[node]) from[next].push_back(node);
    ways[node] = to[node].size();
    if (ways[node] == 0) dead_ends.push_back(node);
  }
  std::size_t left = to.size();
  while (!dead_ends.empty()) {
    const std::uint32_t node = dead_ends.back();
    dead_ends.pop_back();
    --left;
    for (const std::uint32_t before : from[node]) {
      if (--ways[before] == 0) dead_ends.push_back(before);
    }
  }
  return left > 0;
}

// The rules that each rule calls before it reads a byte. No rule is empty, so that nothing behind a
// call is reached without one.
Edges FirstCalls(const ByteGrammar& grammar) {
  Edges calls(grammar.rules.size());
  std::vector<GrammarRule> seen(grammar.states.size());  // by which rule, last, from 1
  for (GrammarRule rule = 0; rule < grammar.rules.size(); ++rule) {
    std::vector<GrammarState> open = {grammar.rules[rule]};
    while (!open.empty()) {
      const GrammarState at = open.back();
      open.pop_back();
      if (std::exchange(seen[at], rule + 1) == rule + 1) continue;
      const ByteGrammar::State& state = grammar.states[at];
      if (state.kind == Kind::kCall) calls[rule].push_back(state.what);
      if (state.kind == Kind::kEither) {
        const std::vector<GrammarState>& choices = grammar.choices[state.what];
        open.insert(open.end(), choices.begin(), choices.end());
      }
    }
  }
  return calls;
}

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
  if (HasCycle(FirstCalls(grammar_))) {
    throw Error(ErrorCode::kInvalidInput, "a schema refers to itself alone");
  }
  FindDepths();
  if (grammar_.depths[begin] > ByteGrammar::kMostDepth) {
    throw Error(ErrorCode::kInvalidInput,
                fmt::format("no value of the schema comes to an end at most {} deep",
                            ByteGrammar::kMostDepth));
  }
  for (std::vector<GrammarState>& choices : grammar_.choices) {
    std::erase_if(choices,
                  [&](GrammarState choice) { return grammar_.depths[choice] == kEndless; });
  }
  grammar_.begin = begin;
  return std::move(grammar_);
}

// Most states are younger than those that they lead to, so that few rounds find all.
void GrammarBuilder::FindDepths() {
  std::vector<std::uint32_t>& depths = grammar_.depths;
  depths.assign(grammar_.states.size(), kEndless);
  const auto depth_of = [&](const ByteGrammar::State& state) {
    if (state.kind == Kind::kEnd) return std::uint32_t{0};
    if (state.kind == Kind::kBytes) return depths[state.next];
    std::uint32_t depth = kEndless;
    if (state.kind == Kind::kEither) {
      for (const GrammarState choice : grammar_.choices[state.what]) {
        depth = std::min(depth, depths[choice]);
      }
      return depth;
    }
    const std::uint32_t inside = depths[grammar_.rules[state.what]];
    if (inside != kEndless) depth = inside + (grammar_.nests[state.what] ? 1 : 0);
    return std::max(depth, depths[state.next]);
  };
  for (bool changes = true; changes;) {
    changes = false;
    for (std::size_t i = 0; i < depths.size(); ++i) {
      const std::uint32_t depth = depth_of(grammar_.states[i]);
      changes = changes || depth < depths[i];
      depths[i] = depth;
    }
  }
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
