// The functions that every template sees.
#include <array>
#include <ctime>

#include "jinja/functions/call.h"
#include "jinja/operations.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

// All numbers are made at once, so their count is limited.
Value Range(Call& call) {
  constexpr std::int64_t kMaxLength = 100000;  // as in Jinja's sandbox
  const BoundArguments args = call.Take({"start", "stop", "step"}, 1);
  const std::int64_t step = args.IntegerOr(2, 1);
  const std::int64_t first = args.IntegerOr(0, 0);
  const std::int64_t begin = args.Has(1) ? first : 0;
  const std::int64_t end = args.IntegerOr(1, first);
  if (step == 0) Fail("range: the step is zero");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (std::ssize(items) == kMaxLength) Fail("range: more than {} numbers", kMaxLength);
    items.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return call.runtime.NewList(std::move(items), List::kRange);
}

// dict(other, name=value, ...); `other` is a dict or has pairs of key and value.
Value MakeDict(Call& call) {
  const auto& positional = call.arguments.positional;
  if (positional.size() > 1) Fail("{} takes at most one positional argument", call.name);
  Dict* dict = call.runtime.New<Dict>();
  const Dict* source = positional.empty() ? nullptr : AsDict(positional[0]);
  if (source != nullptr) {
    call.runtime.Charge(source->items.size(), sizeof(source->items[0]));
    dict->items = source->items;
  } else if (!positional.empty()) {
    for (const Value& pair : Elements(call.runtime, positional[0])) {
      const std::vector<Value> parts = Elements(call.runtime, pair);
      if (parts.size() != 2) Fail("{}: expected pairs of key and value", call.name);
      Insert(call.runtime, *dict, parts[0], parts[1]);
    }
  }
  for (auto& [key, value] : call.arguments.named) {
    Insert(call.runtime, *dict, call.runtime.NewText(std::string(key)), std::move(value));
  }
  return dict;
}

// The object that carries values out of a loop, whose {% set %} ends with its pass:
//   {% set ns = namespace(found=false) %}{% for ... %}{% set ns.found = true %}{% endfor %}
Value MakeNamespace(Call& call) { return call.runtime.New(Namespace{*AsDict(MakeDict(call))}); }

// joiner(separator): a function that gives nothing the first time, then the separator. What it is
// to give is a list that loses its first element.
Value JoinNext(Call& call) {
  call.Take({});
  std::vector<Value>& texts = AsList(call.self)->items;
  Value text = texts.front();
  if (texts.size() > 1) texts.erase(texts.begin());
  return text;
}
constexpr Function kJoinNext = {"joiner", JoinNext};

Value MakeJoiner(Call& call) {
  const BoundArguments args = call.Take({"sep"});
  Value separator = args.Or(0, call.runtime.NewText(", "));
  List* texts = call.runtime.NewList({call.runtime.NewText(""), std::move(separator)});
  return call.runtime.New(Callable{BoundFunction{&kJoinNext, texts}});
}

Value Unsupported(Call& call) {
  Fail("function '{}' is not supported; write a template without it{}", call.name,
       call.name == "cycler" ? ", perhaps with loop.cycle" : "");
}

// Lets a template refuse a conversation.
Value RaiseException(Call& call) {
  const BoundArguments args = call.Take({"message"}, 1);
  Fail("the template refuses: {}", Str(call.runtime, args[0]));
}

// The clock is the only thing that a template can see apart from its variables; a caller that needs
// the same text each time sets JinjaOptions::now.
Value FormatNow(Call& call) {
  const BoundArguments args = call.Take({"format"}, 1);
  const std::string& format = args.NeedTextAt(0);
  std::tm now = {};
  if (call.runtime.now()) {
    now = *call.runtime.now();
  } else {
    const std::time_t clock = std::time(nullptr);
    localtime_r(&clock, &now);
  }
  if (format.empty()) return call.runtime.NewText("");
  std::array<char, 1024> buffer = {};
  call.runtime.Charge(format.size() + buffer.size() * WorkBudget::kStepWork);
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &now);
  if (size == 0) Fail("strftime_now: the format '{}' gives no text", format);
  std::string storage;
  return call.runtime.NewText(
      std::string(ValidUtf8(std::string_view(buffer.data(), size), &storage)));
}

constexpr Function kGlobalFunctions[] = {
    {"cycler", Unsupported}, {"dict", MakeDict},           {"joiner", MakeJoiner},
    {"lipsum", Unsupported}, {"namespace", MakeNamespace}, {"raise_exception", RaiseException},
    {"range", Range},        {"strftime_now", FormatNow},
};

}  // namespace

std::span<const Function> GlobalFunctions() { return kGlobalFunctions; }

}  // namespace qlora::jinja
