// Metadata of Parquet files, written for a test.
#ifndef QLORA_TESTS_PARQUET_THRIFT_STRUCT_H_
#define QLORA_TESTS_PARQUET_THRIFT_STRUCT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace qlora::parquet {

// A struct of Thrift's compact protocol: each field is the distance from the field before and a
// type, in one byte, or from a distance of 16 on the type and the number, and a value.
class ThriftStruct {
 public:
  ThriftStruct& Int(int id, std::int64_t value, int type = 5) {
    Begin(id, type);
    bytes_ += Varint(static_cast<std::uint64_t>(value) * 2);  // zigzag
    return *this;
  }
  ThriftStruct& Text(int id, const std::string& text) {
    Begin(id, 8);
    bytes_ += Varint(text.size()) + text;
    return *this;
  }
  ThriftStruct& Struct(int id, const ThriftStruct& value) {
    Begin(id, 12);
    bytes_ += value.bytes();
    return *this;
  }
  ThriftStruct& List(int id, const std::vector<ThriftStruct>& values) {
    Begin(id, 9);
    bytes_ += static_cast<char>(values.size() << 4 | 12);
    for (const ThriftStruct& value : values) bytes_ += value.bytes();
    return *this;
  }
  std::string bytes() const { return bytes_ + '\0'; }

  static std::string Varint(std::uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    return bytes + static_cast<char>(value);
  }

 private:
  void Begin(int id, int type) {
    if (id - last_ > 15) {
      bytes_ += static_cast<char>(type) + Varint(static_cast<std::uint64_t>(id) * 2);
    } else {
      bytes_ += static_cast<char>((id - last_) << 4 | type);
    }
    last_ = id;
  }

  std::string bytes_;
  int last_ = 0;
};

inline std::string Fixed32(std::uint32_t value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A file with one column of numbers, no rows, and one entry of metadata.
inline std::string FileWithMetadata(const std::string& key, const std::string& value) {
  const std::string footer = ThriftStruct()
                                 .List(2, {ThriftStruct().Text(4, "root").Int(5, 1),
                                           ThriftStruct().Int(1, 1).Int(3, 0).Text(4, "label")})
                                 .List(4, {})
                                 .List(5, {ThriftStruct().Text(1, key).Text(2, value)})
                                 .bytes();
  return "PAR1" + footer + Fixed32(static_cast<std::uint32_t>(footer.size())) + "PAR1";
}

}  // namespace qlora::parquet

#endif  // QLORA_TESTS_PARQUET_THRIFT_STRUCT_H_
