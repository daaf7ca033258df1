#include "parquet/thrift_reader.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "parquet/varint.h"

namespace qlora::parquet {

// The bytes of the compact protocol; a nibble is a letter repeated four times:
//
//   field     iiiitttt              i: difference to the id before, 1 to 15; t: type
//             0000tttt  zigzag      the id itself follows
//             00000000              the end of the struct
//   list      nnnntttt              n: elements, 0 to 14
//             1111tttt  varint      more elements
//   map       varint  kkkkvvvv      entries, types of keys and values; 0 entries have no types
//   integer   varint of zigzag      0, -1, 1, -2, 2 ... are written as 0, 1, 2, 3, 4 ...
//   binary    varint  bytes
//
// A boolean field has its value as its type; in a list, each boolean takes a byte.
std::int32_t ThriftReader::I32(const ThriftField& field) {
  Expect(field, ThriftType::kI32);
  const std::int64_t value = Zigzag();
  if (value < std::numeric_limits<std::int32_t>::min() ||
      value > std::numeric_limits<std::int32_t>::max()) {
    ThrowInvalidInput("field {} of the metadata exceeds 32 bits", field.id);
  }
  return static_cast<std::int32_t>(value);
}

std::int64_t ThriftReader::I64(const ThriftField& field) {
  Expect(field, ThriftType::kI64);
  return Zigzag();
}

bool ThriftReader::Bool(const ThriftField& field) const {
  if (field.type == ThriftType::kTrue) return true;
  Expect(field, ThriftType::kFalse);
  return false;
}

std::string_view ThriftReader::Binary(const ThriftField& field) {
  Expect(field, ThriftType::kBinary);
  return Take(Varint());
}

bool ThriftReader::Read(const ThriftField& field, std::initializer_list<Target> targets) {
  const auto* target = std::find_if(targets.begin(), targets.end(),
                                    [&](const Target& t) { return t.id == field.id; });
  if (target == targets.end()) return false;
  std::visit(
      [&](auto* value) {
        using Type = std::decay_t<decltype(*value)>;
        if constexpr (std::is_same_v<Type, bool>) {
          *value = Bool(field);
        } else if constexpr (std::is_same_v<Type, std::int64_t>) {
          *value = I64(field);
        } else if constexpr (std::is_same_v<Type, std::string>) {
          *value = Binary(field);
        } else {
          *value = I32(field);
        }
      },
      target->value);
  return true;
}

void ThriftReader::Enter() {
  if (++depth_ > kMaxThriftDepth) {
    ThrowInvalidInput("the metadata are nested more than {} levels deep", kMaxThriftDepth);
  }
}

void ThriftReader::Expect(const ThriftField& field, ThriftType type) const {
  if (field.type == type) return;
  ThrowInvalidInput("field {} of the metadata has type {}, expected {}", field.id,
                    static_cast<int>(field.type), static_cast<int>(type));
}

// Nothing at the end of the struct.
std::optional<ThriftField> ThriftReader::NextField(std::int64_t last_id) {
  const std::uint8_t header = Byte();
  if (header == 0) return std::nullopt;
  ThriftField field;
  field.type = TypeOf(header & 15);
  field.id = header >> 4 != 0 ? last_id + (header >> 4) : Zigzag();
  if (field.id < 0 || field.id > std::numeric_limits<std::int16_t>::max()) {
    ThrowInvalidInput("the metadata have a field of number {}", field.id);
  }
  return field;
}

// Every element takes a byte at least, so that a count beyond the bytes is refused at once.
ThriftReader::ListHeader ThriftReader::NextList() {
  const std::uint8_t header = Byte();
  std::uint64_t count = header >> 4;
  if (count == 15) count = Varint();
  if (count > bytes_.size() - position_) {
    ThrowInvalidInput("a list of {} elements exceeds the metadata", count);
  }
  if (count == 0) return {};
  return {TypeOf(header & 15), static_cast<std::int64_t>(count)};
}

ThriftType ThriftReader::TypeOf(unsigned nibble) const {
  if (nibble == 0 || nibble > static_cast<unsigned>(ThriftType::kStruct)) {
    ThrowInvalidInput("the metadata hold a value of unknown type {}", nibble);
  }
  return static_cast<ThriftType>(nibble);
}

void ThriftReader::Skip(ThriftType type) {
  switch (type) {
    case ThriftType::kTrue:
    case ThriftType::kFalse:
      return;
    case ThriftType::kI8:
      Byte();
      return;
    case ThriftType::kI16:
    case ThriftType::kI32:
    case ThriftType::kI64:
      Varint();
      return;
    case ThriftType::kDouble:
      Take(8);
      return;
    case ThriftType::kBinary:
      Take(Varint());
      return;
    case ThriftType::kList:
    case ThriftType::kSet: {
      Enter();
      const ListHeader list = NextList();
      SkipElements(list.type, list.count);
      --depth_;
      return;
    }
    case ThriftType::kMap: {
      Enter();
      const std::uint64_t count = Varint();
      if (count > (bytes_.size() - position_) / 2) {
        ThrowInvalidInput("a map of {} entries exceeds the metadata", count);
      }
      if (count > 0) {
        const std::uint8_t types = Byte();
        for (std::uint64_t i = 0; i < count; ++i) {
          SkipElements(TypeOf(types >> 4), 1);
          SkipElements(TypeOf(types & 15), 1);
        }
      }
      --depth_;
      return;
    }
    case ThriftType::kStruct:
      Struct([](const ThriftField&) { return false; });
      return;
  }
}

void ThriftReader::SkipElements(ThriftType type, std::int64_t count) {
  const bool is_bool = type == ThriftType::kTrue || type == ThriftType::kFalse;
  for (std::int64_t i = 0; i < count; ++i) {
    if (is_bool) {
      Byte();
    } else {
      Skip(type);
    }
  }
}

std::uint8_t ThriftReader::Byte() { return static_cast<std::uint8_t>(Take(1)[0]); }

std::string_view ThriftReader::Take(std::uint64_t count) {
  if (count > bytes_.size() - position_) ThrowInvalidInput("the metadata end too early");
  const std::string_view taken = bytes_.substr(position_, count);
  position_ += count;
  return taken;
}

std::uint64_t ThriftReader::Varint() { return TakeVarint(bytes_, position_); }

std::int64_t ThriftReader::Zigzag() { return DecodeZigzag(Varint()); }

}  // namespace qlora::parquet
