// Thrift's compact protocol, in which Parquet keeps its metadata: structs of numbered fields, of
// which a reader takes those that it knows and skips all others.
#ifndef QLORA_PARQUET_THRIFT_READER_H_
#define QLORA_PARQUET_THRIFT_READER_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/check.h"

namespace qlora::parquet {

// Structs and lists inside each other, at most; Parquet's own metadata needs 8.
inline constexpr int kMaxThriftDepth = 24;

enum class ThriftType : std::uint8_t {
  kTrue = 1,  // a field's type is its value; elements of a list take a byte each
  kFalse,
  kI8,
  kI16,
  kI32,
  kI64,
  kDouble,
  kBinary,
  kList,
  kSet,
  kMap,
  kStruct,
};

struct ThriftField {
  std::int64_t id = 0;
  ThriftType type = ThriftType::kTrue;
};

// Reads from front to back. Nothing is reserved for the size that a count claims: every element
// takes a byte at least. All functions throw InvalidInput, without a place, for bytes that end too
// early, nest too deep, or have another type than the caller expects.
class ThriftReader {
 public:
  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}

  // Bytes that were read.
  std::size_t position() const { return position_; }

  // Calls visit(field) for each field of a struct. visit reads the value and returns true, or
  // returns false to have it skipped.
  template <typename Visit>
  void Struct(const Visit& visit) {
    Enter();
    std::int64_t id = 0;
    while (const std::optional<ThriftField> field = NextField(id)) {
      id = field->id;
      if (!visit(*field)) Skip(field->type);
    }
    --depth_;
  }

  // The same for a field that is a struct; returns true.
  template <typename Visit>
  bool Struct(const ThriftField& field, const Visit& visit) {
    Expect(field, ThriftType::kStruct);
    Struct(visit);
    return true;
  }

  // The variable that receives the value of the field `id`.
  struct Target {
    std::int64_t id;
    std::variant<std::int32_t*, std::optional<std::int32_t>*, std::int64_t*, bool*, std::string*>
        value;
  };
  // Reads the value of the field into the target of its number; false when no target has that
  // number.
  bool Read(const ThriftField& field, std::initializer_list<Target> targets);

  // Calls visit() for each element of a list of structs, which reads the element.
  template <typename Visit>
  void ListOfStructs(const ThriftField& field, const Visit& visit) {
    Expect(field, ThriftType::kList);
    Enter();
    const ListHeader list = NextList();
    if (list.count > 0 && list.type != ThriftType::kStruct) {
      ThrowInvalidInput("field {} of the metadata is not a list of structs", field.id);
    }
    for (std::int64_t i = 0; i < list.count; ++i) visit();
    --depth_;
  }

  std::int64_t I64(const ThriftField& field);

 private:
  struct ListHeader {
    ThriftType type = ThriftType::kTrue;
    std::int64_t count = 0;
  };

  std::int32_t I32(const ThriftField& field);
  bool Bool(const ThriftField& field) const;
  std::string_view Binary(const ThriftField& field);
  void Enter();
  std::optional<ThriftField> NextField(std::int64_t last_id);  // nothing at the end of a struct
  ListHeader NextList();
  void Expect(const ThriftField& field, ThriftType type) const;
  void Skip(ThriftType type);
  void SkipElements(ThriftType type, std::int64_t count);
  ThriftType TypeOf(unsigned nibble) const;
  std::uint8_t Byte();
  std::string_view Take(std::uint64_t count);
  std::uint64_t Varint();
  std::int64_t Zigzag();

  std::string_view bytes_;
  std::size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_THRIFT_READER_H_
