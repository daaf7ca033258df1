#include "foreign/option_sources.h"

#include "base/check.h"
#include "foreign/foreign_option.h"

namespace qlora {

void OptionSources::Set(const std::string& key, const OptionSource& source,
                        const std::function<void()>& set) {
  const Option* option = table_.Find(key);
  const std::string before = option->ToString();
  const auto [place, is_new] = sources_.emplace(option, source);
  set();
  if (is_new) return;
  OptionSource& earlier = place->second;
  if (option->ToString() == before) {
    // What another one disagrees with is the one of the two that does not yield.
    if (earlier.yields) earlier = source;
    return;
  }
  if (earlier.yields == source.yields) {
    ThrowInvalidInput("{}: {} is given twice, the first time at {}; keep one", source.origin,
                      option->name, earlier.place);
  }
  if (source.yields) {
    table_.Set(option->name, before, source.origin);
    notes_.push_back(YieldNote(source.origin, earlier.place, option->name));
  } else {
    notes_.push_back(YieldNote(earlier.origin, source.place, option->name));
    earlier = source;
  }
}

}  // namespace qlora
