#include "serve/structured/json_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

constexpr std::int64_t kMostIndent = 32;
constexpr std::int64_t kMostDigits = 15;  // which float64 and int64 keep
constexpr std::int64_t kLargest = 999'999'999'999'999;
constexpr const char* kHex = "0123456789abcdefABCDEF";

// Digits of numbers from `least` to `most`, which have as many.
class SameLength {
 public:
  SameLength(GrammarBuilder& builder, std::string least, std::string most, GrammarState next)
      : builder_(builder), least_(std::move(least)), most_(std::move(most)), next_(next) {}

  // From digit i on; on_least, on_most: the digits before it are those of the bound.
  GrammarState From(std::size_t i, bool on_least, bool on_most) {
    if (i == least_.size()) return next_;
    // Bounds that bind no further digit.
    on_least = on_least && least_.find_first_not_of('0', i) != std::string::npos;
    on_most = on_most && most_.find_first_not_of('9', i) != std::string::npos;
    const char first = on_least ? least_[i] : '0';
    const char last = on_most ? most_[i] : '9';
    if (first == last) return Digit(first, last, From(i + 1, on_least, on_most));
    std::vector<GrammarState> choices;
    if (on_least) choices.push_back(Digit(first, first, From(i + 1, true, false)));
    if (on_most) choices.push_back(Digit(last, last, From(i + 1, false, true)));
    const char between = static_cast<char>(first + (on_least ? 1 : 0));
    const char end = static_cast<char>(last - (on_most ? 1 : 0));
    if (between <= end) choices.push_back(Digit(between, end, From(i + 1, false, false)));
    return builder_.Either(std::move(choices));
  }

 private:
  GrammarState Digit(char first, char last, GrammarState next) {
    return builder_.OneOf(ByteRange(first, last), next);
  }

  GrammarBuilder& builder_;
  std::string least_;
  std::string most_;
  GrammarState next_;
};

}  // namespace

JsonGrammar::JsonGrammar()
    : space_(builder_.NewRule()), character_(builder_.NewRule()), any_(builder_.NewRule()) {
  const GrammarState end = builder_.end();
  const auto indent = [this](GrammarState next) { return builder_.OneOf(AnyByteOf(" \t"), next); };
  builder_.SetRule(
      space_,
      builder_.Either({builder_.Literal(" ", end),
                       builder_.Literal("\n", builder_.Repeat(0, kMostIndent, indent, end))}));
  builder_.SetRule(character_, Character(end));
  builder_.SetRule(
      any_, builder_.Either({AnyObject(end), Array(any_, {}, end), String({}, end), Number(end),
                             builder_.Literal("true", end), builder_.Literal("false", end),
                             builder_.Literal("null", end)}));
}

GrammarState JsonGrammar::Any(GrammarState next) { return builder_.Call(any_, next); }

GrammarState JsonGrammar::AnyObject(GrammarState next) { return Map(any_, next); }

GrammarState JsonGrammar::String(Lengths lengths, GrammarState next) {
  const auto character = [this](GrammarState then) { return builder_.Call(character_, then); };
  GrammarState body = builder_.Literal("\"", next);
  if (lengths.most) {
    body = builder_.Repeat(lengths.least, *lengths.most, character, body);
  } else {
    body = builder_.RepeatAny(character, body);
    body = builder_.Repeat(lengths.least, lengths.least, character, body);
  }
  return builder_.Literal("\"", body);
}

GrammarState JsonGrammar::Number(GrammarState next) {
  const GrammarState power = Digits(1, 2, next);
  const GrammarState exponent = builder_.OneOf(
      AnyByteOf("eE"), builder_.Either({builder_.OneOf(AnyByteOf("+-"), power), power}));
  const GrammarState behind = builder_.Either({exponent, next});
  const GrammarState point = builder_.Literal(".", Digits(1, kMostDigits, behind));
  return IntegerDigits(builder_.Either({point, behind}));
}

GrammarState JsonGrammar::Integer(Bounds bounds, GrammarState next) {
  if (!bounds.least && !bounds.most) return IntegerDigits(next);
  const std::int64_t least = std::max(bounds.least.value_or(-kLargest), -kLargest);
  const std::int64_t most = std::min(bounds.most.value_or(kLargest), kLargest);
  if (least > most) {
    throw Error(ErrorCode::kInvalidInput,
                fmt::format("no integer of up to {} digits is within its bounds", kMostDigits));
  }
  std::vector<GrammarState> choices;
  if (most >= 0) choices.push_back(Up(std::max<std::int64_t>(least, 0), most, next));
  if (least < 0) {
    choices.push_back(builder_.Literal("-", Up(most < 0 ? -most : 1, -least, next)));
  }
  return builder_.Either(std::move(choices));
}

GrammarState JsonGrammar::Array(GrammarRule item, Lengths lengths, GrammarState next) {
  const GrammarState close = Space(builder_.Literal("]", builder_.end()));
  const auto further = [&](GrammarState then) { return Comma(builder_.Call(item, then)); };
  const std::int64_t least = std::max<std::int64_t>(lengths.least - 1, 0);
  GrammarState items = close;
  if (lengths.most != 0) {
    if (lengths.most) {
      items = builder_.Repeat(least, *lengths.most - 1, further, close);
    } else {
      items = builder_.Repeat(least, least, further, builder_.RepeatAny(further, close));
    }
    items = builder_.Call(item, items);
    if (lengths.least == 0) items = builder_.Either({items, close});
  }
  return Nested(builder_.Literal("[", Space(items)), next);
}

GrammarState JsonGrammar::Object(const std::vector<Property>& properties, GrammarState next) {
  const GrammarState close = Space(builder_.Literal("}", builder_.end()));
  // What comes from a property on, where one stands before it, and where none does.
  GrammarState behind_other = close;
  GrammarState first = close;
  for (auto at = properties.rbegin(); at != properties.rend(); ++at) {
    const GrammarState value = builder_.Literal(":", Space(builder_.Call(at->value, behind_other)));
    const GrammarState member = builder_.Literal(FormatJson(OrderedJson(at->name)), value);
    const GrammarState further = Comma(member);
    first = at->is_required ? member : builder_.Either({member, first});
    behind_other = at->is_required ? further : builder_.Either({further, behind_other});
  }
  return Nested(builder_.Literal("{", Space(first)), next);
}

GrammarState JsonGrammar::Map(GrammarRule value, GrammarState next) {
  const GrammarState close = Space(builder_.Literal("}", builder_.end()));
  const auto member = [&](GrammarState then) {
    return String({}, builder_.Literal(":", Space(builder_.Call(value, then))));
  };
  const auto further = [&](GrammarState then) { return Comma(member(then)); };
  const GrammarState members = member(builder_.RepeatAny(further, close));
  return Nested(builder_.Literal("{", Space(builder_.Either({members, close}))), next);
}

GrammarState JsonGrammar::Nested(GrammarState inside, GrammarState next) {
  const GrammarRule rule = builder_.NewRule(/*nests=*/true);
  builder_.SetRule(rule, inside);
  return builder_.Call(rule, next);
}

ByteGrammar JsonGrammar::Finish(GrammarState begin) {
  const auto blank = [this](GrammarState next) { return builder_.OneOf(AnyByteOf(" \t\n"), next); };
  return builder_.Finish(builder_.Repeat(0, 4, blank, begin));
}

// None, too.
GrammarState JsonGrammar::Space(GrammarState next) {
  return builder_.Either({builder_.Call(space_, next), next});
}

GrammarState JsonGrammar::Comma(GrammarState next) { return builder_.Literal(",", Space(next)); }

GrammarState JsonGrammar::Digits(std::int64_t least, std::int64_t most, GrammarState next) {
  const auto digit = [this](GrammarState then) {
    return builder_.OneOf(ByteRange('0', '9'), then);
  };
  return builder_.Repeat(least, most, digit, next);
}

GrammarState JsonGrammar::IntegerDigits(GrammarState next) {
  const GrammarState digits =
      builder_.Either({builder_.Literal("0", next),
                       builder_.OneOf(ByteRange('1', '9'), Digits(0, kMostDigits - 1, next))});
  return builder_.Either({builder_.Literal("-", digits), digits});
}

// Numbers that have no sign, by how many digits they have.
GrammarState JsonGrammar::Up(std::uint64_t least, std::uint64_t most, GrammarState next) {
  std::vector<GrammarState> choices;
  std::uint64_t end = 10;  // of the numbers of a length
  for (std::uint64_t begin = 0; begin <= most; begin = end, end *= 10) {
    const std::uint64_t from = std::max(begin, least);
    const std::uint64_t to = std::min(end - 1, most);
    if (from > to) continue;
    choices.push_back(
        SameLength(builder_, std::to_string(from), std::to_string(to), next).From(0, true, true));
  }
  return builder_.Either(std::move(choices));
}

// UTF-8, or escaped; surrogates in pairs alone.
GrammarState JsonGrammar::Character(GrammarState next) {
  const ByteSet tail = ByteRange(0x80, 0xBF);
  const GrammarState one = builder_.OneOf(tail, next);
  const GrammarState two = builder_.OneOf(tail, one);
  const auto three = [&](ByteSet first, ByteSet second) {
    return builder_.OneOf(first, builder_.OneOf(second, one));
  };
  const auto four = [&](ByteSet first, ByteSet second) {
    return builder_.OneOf(first, builder_.OneOf(second, two));
  };
  return builder_.Either({
      builder_.OneOf(ByteRange(0x20, 0x7F) & ~AnyByteOf("\"\\"), next),
      builder_.Literal("\\", Escape(next)),
      builder_.OneOf(ByteRange(0xC2, 0xDF), one),
      three(ByteRange(0xE0, 0xE0), ByteRange(0xA0, 0xBF)),
      three(ByteRange(0xE1, 0xEC) | ByteRange(0xEE, 0xEF), tail),
      three(ByteRange(0xED, 0xED), ByteRange(0x80, 0x9F)),
      four(ByteRange(0xF0, 0xF0), ByteRange(0x90, 0xBF)),
      four(ByteRange(0xF1, 0xF3), tail),
      four(ByteRange(0xF4, 0xF4), ByteRange(0x80, 0x8F)),
  });
}

GrammarState JsonGrammar::Escape(GrammarState next) {
  const auto hex = [&](std::int64_t digits, GrammarState then) {
    const auto digit = [this](GrammarState last) { return builder_.OneOf(AnyByteOf(kHex), last); };
    return builder_.Repeat(digits, digits, digit, then);
  };
  const auto surrogate = [&](std::string_view second, GrammarState then) {
    return builder_.OneOf(AnyByteOf("dD"), builder_.OneOf(AnyByteOf(second), hex(2, then)));
  };
  const GrammarState low = builder_.Literal("\\u", surrogate("cdefCDEF", next));
  return builder_.Either({
      builder_.OneOf(AnyByteOf("\"\\/bfnrt"), next),
      builder_.Literal("u", builder_.OneOf(AnyByteOf(kHex) & ~AnyByteOf("dD"), hex(3, next))),
      builder_.Literal("u", surrogate("01234567", next)),
      builder_.Literal("u", surrogate("89abAB", low)),
  });
}

}  // namespace qlora
