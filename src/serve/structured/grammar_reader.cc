#include "serve/structured/grammar_reader.h"

#include <algorithm>
#include <utility>

#include "qlora/error.h"

namespace qlora {
namespace {

using Kind = ByteGrammar::State::Kind;

}  // namespace

GrammarReader::GrammarReader(std::shared_ptr<const ByteGrammar> grammar)
    : grammar_(std::move(grammar)) {
  Clear();
  begin_ = Number(Follow({{grammar_->begin, 0}}));
}

GrammarReader::Position GrammarReader::Next(Position position, unsigned char byte) {
  if (positions_[position].next[byte] != kUnknown) return positions_[position].next[byte];
  std::vector<Place> places;
  ByteSet alike = ~ByteSet();  // bytes that lead to the same position
  const std::vector<Place>& from = positions_[position].found->places;
  CountWork(from.size());
  for (const Place& place : from) {
    const ByteGrammar::State& state = grammar_->states[place.state];
    const ByteSet& set = grammar_->sets[state.what];
    if (set[byte]) places.push_back({state.next, place.calls});
    alike &= set[byte] ? set : ~set;
  }
  const Position next = Number(Follow(std::move(places)));
  std::array<Position, 256>& known = positions_[position].next;
  for (std::size_t other = 0; other < known.size(); ++other) {
    if (alike[other]) known[other] = next;
  }
  return next;
}

void GrammarReader::CountWork(std::size_t units) {
  work_left_ -= static_cast<std::int64_t>(units);
  if (work_left_ >= 0) return;
  throw Error(ErrorCode::kInvalidInput,
              "too many ways to read the answer at the same time: name fewer alternatives that "
              "begin alike, and bound fewer texts and lists");
}

// The calls of what is kept are known again by where they go on.
GrammarReader::Position GrammarReader::ForgetOthers(Position position) {
  const std::vector<Calls> calls = calls_;
  const Found kept = *positions_[position].found;
  Clear();
  Found found{.places = {}, .can_end = kept.can_end};
  for (const Place& place : kept.places) {
    std::vector<std::uint32_t> open;
    for (std::uint32_t at = place.calls; at != 0; at = calls[at].before) open.push_back(at);
    std::uint32_t top = 0;
    for (auto at = open.rbegin(); at != open.rend(); ++at) {
      top = Push(calls[*at].next, top, calls[*at].depth > calls_[top].depth);
    }
    found.places.push_back({place.state, top});
  }
  std::ranges::sort(found.places);
  begin_ = kNowhere;
  return Number(std::move(found));
}

// The states that read a byte and are reached from these places without one.
GrammarReader::Found GrammarReader::Follow(std::vector<Place> places) {
  Found found;
  seen_.clear();
  while (!places.empty() && found.places.size() < kMostPlaces) {
    const Place place = places.back();
    places.pop_back();
    CountWork(1);
    // What would come to its end too deep alone is not begun.
    if (grammar_->depths[place.state] > kMostDepth - calls_[place.calls].depth) continue;
    if (!seen_.insert(std::uint64_t{place.calls} << 32 | place.state).second) continue;
    const ByteGrammar::State& state = grammar_->states[place.state];
    switch (state.kind) {
      case Kind::kBytes:
        found.places.push_back(place);
        break;
      case Kind::kEither:
        for (const GrammarState choice : grammar_->choices[state.what]) {
          places.push_back({choice, place.calls});
        }
        break;
      case Kind::kCall: {
        const bool nests = grammar_->nests[state.what];
        places.push_back({grammar_->rules[state.what], Push(state.next, place.calls, nests)});
        break;
      }
      case Kind::kEnd:
        if (place.calls == 0) {
          found.can_end = true;
        } else {
          places.push_back({calls_[place.calls].next, calls_[place.calls].before});
        }
        break;
    }
  }
  std::ranges::sort(found.places);
  return found;
}

// Where nothing follows a call, what called before goes on at its end; calls that nest are counted
// all the same.
std::uint32_t GrammarReader::Push(GrammarState next, std::uint32_t before, bool nests) {
  if (!nests && grammar_->states[next].kind == Kind::kEnd) return before;
  const Calls made{next, before, calls_[before].depth + (nests ? 1 : 0)};
  const auto [at, is_new] = call_numbers_.emplace(made, static_cast<std::uint32_t>(calls_.size()));
  if (is_new) calls_.push_back(made);
  return at->second;
}

GrammarReader::Position GrammarReader::Number(Found found) {
  const auto at = numbers_.find(found);
  if (at != numbers_.end()) return at->second;
  CountWork(kPositionWork);
  const auto number = static_cast<Position>(positions_.size());
  found.places.shrink_to_fit();
  places_ += found.places.size();
  Known& known = positions_.emplace_back();
  known.found = &numbers_.emplace(std::move(found), number).first->first;
  known.next.fill(kUnknown);
  return number;
}

// Position 0 is the one where nothing is allowed.
void GrammarReader::Clear() {
  calls_ = {{0, 0, 0}};
  call_numbers_.clear();
  positions_.clear();
  numbers_.clear();
  places_ = 0;
  Number({});
}

}  // namespace qlora
