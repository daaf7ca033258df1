#include "data/sample_hash.h"

#include <bit>
#include <span>

#include "preference/preference_pair.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

std::uint64_t HashIds(std::span<const std::int32_t> ids) {
  std::uint64_t hash = MixBits(ids.size());
  for (const std::int32_t id : ids) hash = MixBits(hash ^ static_cast<std::uint32_t>(id));
  return hash;
}

}  // namespace

std::uint64_t HashSample(const Sample& sample) {
  std::uint64_t hash = MixBits(sample.ids.size());
  for (std::size_t t = 0; t < sample.ids.size(); ++t) {
    // Through 32 bits without sign: otherwise -100 would set all upper bits and hide the id.
    const std::uint64_t both = std::uint64_t{static_cast<std::uint32_t>(sample.ids[t])} << 32 |
                               static_cast<std::uint32_t>(sample.labels[t]);
    hash = MixBits(hash ^ both);
  }
  const auto add = [&hash](std::int64_t value) {
    hash = MixBits(hash ^ static_cast<std::uint64_t>(value));
  };
  for (const std::int64_t branch : sample.branches) add(branch);
  for (const Choice& choice : sample.choices) {
    add(choice.row);
    add(choice.kind);
    for (const std::int32_t label : choice.labels) add(label);
    for (const double target : choice.targets) add(std::bit_cast<std::int64_t>(target));
  }
  if (!sample.desirable) add(0);
  return hash;
}

std::uint64_t HashText(const Sample& sample) { return HashIds(sample.ids); }

std::uint64_t HashPrompt(const Sample& sample) {
  return HashIds(std::span(sample.ids).first(FirstTrained(sample)));
}

}  // namespace qlora
