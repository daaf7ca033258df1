// The functions that every template sees.
#include <array>
#include <ctime>
#include <utility>

#include "jinja/eval.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

Value Range(Runtime& runtime, Arguments arguments) {
  constexpr std::int64_t kMaxLength = 100000;  // as in Jinja's sandbox
  const auto args = Bind("range", std::move(arguments), {"start", "stop", "step"}, 1);
  const std::int64_t step = args[2] ? NeedInteger(*args[2], "range") : 1;
  const std::int64_t first = NeedInteger(*args[0], "range");
  const std::int64_t begin = args[1] ? first : 0;
  const std::int64_t end = args[1] ? NeedInteger(*args[1], "range") : first;
  if (step == 0) Fail("range: the step is zero");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<std::int64_t>(items.size()) == kMaxLength) {
      Fail("range: more than {} numbers", kMaxLength);
    }
    items.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return runtime.NewList(std::move(items), List::kRange);
}

// dict(other, name=value, ...), other being a dict or pairs.
Dict* MakeDict(Runtime& runtime, std::string_view name, Arguments arguments) {
  Dict* dict = runtime.NewDict();
  if (arguments.positional.size() > 1) Fail("{} takes at most one positional argument", name);
  if (!arguments.positional.empty()) {
    const Value& other = arguments.positional.front();
    if (const Dict* source = AsDict(other)) {
      runtime.Charge(source->items.size() * sizeof(source->items[0]));
      dict->items = source->items;
    } else {
      for (const Value& pair : Elements(runtime, other)) {
        const std::vector<Value> parts = Elements(runtime, pair);
        if (parts.size() != 2) Fail("{}: expected pairs of key and value", name);
        Insert(runtime, *dict, parts[0], parts[1]);
      }
    }
  }
  for (auto& [key, value] : arguments.named) {
    Insert(runtime, *dict, runtime.MakeText(std::string(key)), std::move(value));
  }
  return dict;
}

Value MakeNamespace(Runtime& runtime, Arguments arguments) {
  Namespace* space = runtime.NewNamespace();
  for (auto& [key, value] : MakeDict(runtime, "namespace", std::move(arguments))->items) {
    space->items.emplace_back(NeedText(key, "namespace"), std::move(value));
  }
  return space;
}

Value FormatNow(Runtime& runtime, Arguments arguments) {
  const auto args = Bind("strftime_now", std::move(arguments), {"format"}, 1);
  const std::string& format = NeedText(*args[0], "strftime_now");
  std::tm now = {};
  if (runtime.options().now) {
    now = *runtime.options().now;
  } else {
    const std::time_t clock = std::time(nullptr);
    localtime_r(&clock, &now);
  }
  if (format.empty()) return runtime.MakeText("");
  std::array<char, 1024> buffer = {};
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &now);
  if (size == 0) Fail("strftime_now: the format '{}' gives no text", format);
  std::string storage;
  return runtime.MakeText(std::string(ValidUtf8(std::string_view(buffer.data(), size), &storage)));
}

}  // namespace

Value Interpreter::CallBuiltin(Builtin builtin, Arguments arguments) {
  switch (builtin) {
    case Builtin::kRange:
      return Range(runtime_, std::move(arguments));
    case Builtin::kDict:
      return MakeDict(runtime_, "dict", std::move(arguments));
    case Builtin::kNamespace:
      return MakeNamespace(runtime_, std::move(arguments));
    case Builtin::kStrftimeNow:
      return FormatNow(runtime_, std::move(arguments));
    case Builtin::kRaiseException: {
      const auto args = Bind("raise_exception", std::move(arguments), {"message"}, 1);
      Fail("the template refuses: {}", Str(runtime_, *args[0]));
    }
  }
  return None();
}

}  // namespace qlora::jinja
