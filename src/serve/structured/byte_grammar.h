// A grammar of byte strings, as states that read a byte each, and rules that may call each other.
//
//   GrammarBuilder    makes one from its end to its beginning: each part is told what follows it
//   GrammarReader     grammar_reader.h: which bytes may come next
//
// `{"a": N}` with the rule N of numbers is
//
//   Literal("{\"a\": ") -> Call(N) -> Literal("}") -> end
#ifndef QLORA_SERVE_STRUCTURED_BYTE_GRAMMAR_H_
#define QLORA_SERVE_STRUCTURED_BYTE_GRAMMAR_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

using ByteSet = std::bitset<256>;
ByteSet AnyByteOf(std::string_view any_of);
ByteSet ByteRange(unsigned char first, unsigned char last);

using GrammarState = std::uint32_t;
using GrammarRule = std::uint32_t;

struct ByteGrammar {
  static constexpr std::uint32_t kMostDepth = 64;  // of rules that nest, in what is read

  struct State {
    enum class Kind : std::uint8_t { kBytes, kEither, kCall, kEnd };

    Kind kind = Kind::kEnd;
    std::uint32_t what = 0;  // kBytes: number of the set; kCall: the rule; kEither: of the choices
    GrammarState next = 0;   // after a byte, or when the called rule has ended
  };

  std::vector<State> states;
  std::vector<ByteSet> sets;
  std::vector<std::vector<GrammarState>> choices;
  std::vector<GrammarState> rules;  // where each begins
  std::vector<bool> nests;          // of rules: calls within each other are counted
  // Of states: how many rules that nest stand in each other, at least, up to the end of its rule.
  std::vector<std::uint32_t> depths;
  GrammarState begin = 0;

  std::size_t bytes() const {
    std::size_t all = states.size() * sizeof(State) + sets.size() * sizeof(ByteSet) +
                      choices.size() * sizeof(choices[0]) + rules.size() * sizeof(GrammarState);
    for (const auto& list : choices) all += list.size() * sizeof(GrammarState);
    return all;
  }
};

class GrammarBuilder {
 public:
  // Errors, of all that add states: InvalidInput above so many.
  static constexpr std::size_t kMostStates = 100'000;

  GrammarBuilder();

  // The end of the text, or of a rule. Rules read a byte at least.
  GrammarState end() const { return 0; }
  GrammarState Literal(std::string_view text, GrammarState next);
  // One of the texts. Those that begin alike share their beginning.
  GrammarState AnyText(std::vector<std::string> texts, GrammarState next);
  GrammarState OneOf(const ByteSet& set, GrammarState next);
  GrammarState Either(std::vector<GrammarState> choices);
  // What part reads, from `least` to `most` times. part: (next) -> its beginning.
  template <typename Part>
  GrammarState Repeat(std::int64_t least, std::int64_t most, const Part& part, GrammarState next) {
    const GrammarState done = next;
    for (std::int64_t i = most; i > least; --i) next = Either({part(next), done});
    for (std::int64_t i = 0; i < least; ++i) next = part(next);
    return next;
  }
  // As often as it comes, or not at all.
  template <typename Part>
  GrammarState RepeatAny(const Part& part, GrammarState next) {
    const GrammarState again = Either({});
    SetChoices(again, {part(again), next});
    return again;
  }

  // A rule may be called before it is set. nests: calls of it within each other are counted.
  GrammarRule NewRule(bool nests = false);
  void SetRule(GrammarRule rule, GrammarState begin) { grammar_.rules[rule] = begin; }
  GrammarState Call(GrammarRule rule, GrammarState next);

  // Leaves out what comes to no end. Errors: InvalidInput where nothing is left that ends within
  // kMostDepth, and for rules that call themselves before they read a byte.
  ByteGrammar Finish(GrammarState begin);

 private:
  static constexpr std::uint32_t kEndless = ~std::uint32_t{0};  // a depth: no end is reached

  GrammarState Add(ByteGrammar::State state);
  GrammarState TextsFrom(std::span<const std::string> sorted, std::size_t at, GrammarState next);
  void FindDepths();
  void SetChoices(GrammarState either, std::vector<GrammarState> choices);

  ByteGrammar grammar_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_STRUCTURED_BYTE_GRAMMAR_H_
