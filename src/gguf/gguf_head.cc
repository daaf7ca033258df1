#include "gguf/gguf_head.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

static_assert(std::endian::native == std::endian::little);

namespace qlora {
namespace {

// Reads forward through the head of a file and never past its end.
class HeadCursor {
 public:
  HeadCursor(std::span<const std::byte> bytes, std::string where)
      : bytes_(bytes), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  std::size_t position() const { return position_; }

  template <typename T>
  T Read() {
    T value;
    // The head has no alignment: behind strings of any length, numbers start anywhere.
    std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    return value;
  }

  bool ReadBool() {
    const auto value = Read<std::uint8_t>();
    if (value > 1) {
      ThrowInvalidInput("{}: byte {}: a bool must be 0 or 1, found {}", where_, position_ - 1,
                        value);
    }
    return value == 1;
  }

  std::string ReadString() {
    const auto size = Read<std::uint64_t>();
    const std::byte* begin = Take(size);
    return std::string(reinterpret_cast<const char*>(begin), size);
  }

  // Reads a number of items that take at least `least` bytes each. Otherwise a number beyond the
  // size of the file would fill the memory.
  std::uint64_t ReadCount(const char* what, std::size_t least) {
    const auto count = Read<std::uint64_t>();
    if (count > (bytes_.size() - position_) / least) {
      ThrowInvalidInput("{}: claims {} {}, more than its {} bytes can hold (incomplete download?)",
                        where_, count, what, bytes_.size());
    }
    return count;
  }

 private:
  const std::byte* Take(std::uint64_t count) {
    // Never position_ + count, which may wrap around.
    if (count > bytes_.size() - position_) {
      ThrowInvalidInput(
          "{}: ends at byte {}, but {} bytes are expected from byte {} on "
          "(incomplete download?)",
          where_, bytes_.size(), count, position_);
    }
    position_ += count;
    return bytes_.data() + position_ - count;
  }

  std::span<const std::byte> bytes_;
  std::string where_;
  std::size_t position_ = 0;
};

template <typename T>
T ReadScalar(HeadCursor& head) {
  if constexpr (std::is_same_v<T, bool>) {
    return head.ReadBool();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return head.ReadString();
  } else {
    return head.Read<T>();
  }
}

template <typename T>
void ReadInto(HeadCursor& head, T& out) {
  out = ReadScalar<T>(head);
}

template <typename T>
void ReadInto(HeadCursor& head, std::vector<T>& out) {
  // A string takes at least the 8 bytes of its length.
  constexpr std::size_t kLeast = std::is_same_v<T, std::string> ? 8 : sizeof(T);
  const std::uint64_t count = head.ReadCount("array elements", kLeast);
  out.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) out.push_back(ReadScalar<T>(head));
}

void ReadInto(HeadCursor& head, std::monostate&) {
  ThrowInvalidInput("{}: byte {}: arrays of arrays are not supported", head.where(),
                    head.position());
}

// Makes the alternative of `out` whose index is `code` and reads it.
template <typename Variant, std::size_t kIndex = 0>
void ReadAlternative(HeadCursor& head, std::uint32_t code, Variant& out) {
  // GgufValue lists its alternatives in the order of GGUF's type codes, so the index is the code. A
  // loop at compile time, since the alternative is known only when the code is read.
  if constexpr (kIndex == std::variant_size_v<Variant>) {
    ThrowInvalidInput("{}: byte {}: unknown value type {}", head.where(), head.position(), code);
  } else if (code == kIndex) {
    ReadInto(head, out.template emplace<kIndex>());
  } else {
    ReadAlternative<Variant, kIndex + 1>(head, code, out);
  }
}

void ReadInto(HeadCursor& head, GgufArray& out) {
  const auto code = head.Read<std::uint32_t>();
  ReadAlternative(head, code, out);
}

// Types that ggml once had, or has in memory only.
constexpr std::pair<std::uint32_t, const char*> kForeignTypes[] = {
    {4, "Q4_2"},      {5, "Q4_3"},      {9, "Q8_1"},        {15, "Q8_K"},       {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}};

TensorType TypeOf(std::uint32_t code, const std::string& place) {
  if (const std::optional<TensorType> type = internal::TypeOfCode(code)) return *type;
  for (const auto& [number, name] : kForeignTypes) {
    if (number != code) continue;
    ThrowInvalidInput(
        "{}: type {} is not supported: llama.cpp no longer reads it from files; convert the "
        "original model again",
        place, name);
  }
  ThrowInvalidInput("{}: type number {} is unknown (damaged, or newer than this program)", place,
                    code);
}

GgufTensorEntry ReadEntry(HeadCursor& head) {
  GgufTensorEntry entry;
  entry.info.name = head.ReadString();
  if (entry.info.name.empty()) ThrowInvalidInput("{}: a tensor has no name", head.where());
  const std::string place = fmt::format("{}: tensor '{}'", head.where(), entry.info.name);
  // GGML_MAX_NAME is 64 with the zero at the end.
  if (entry.info.name.size() > internal::kGgufMaxName) {
    ThrowInvalidInput("{}: its name has {} bytes, at most {} are allowed", place,
                      entry.info.name.size(), internal::kGgufMaxName);
  }
  const auto dims = head.Read<std::uint32_t>();
  if (dims > internal::kGgufMaxDims) {
    ThrowInvalidInput("{}: has {} dimensions, at most {} are allowed", place, dims,
                      internal::kGgufMaxDims);
  }
  for (std::uint32_t i = 0; i < dims; ++i) entry.info.shape.push_back(head.Read<std::int64_t>());
  // GGUF lists the innermost dimension first: ne = [cols, rows].
  std::reverse(entry.info.shape.begin(), entry.info.shape.end());
  entry.info.dtype = TypeOf(head.Read<std::uint32_t>(), place);
  entry.offset = head.Read<std::uint64_t>();
  if (CheckedElements(entry.info.shape) < 0) {
    ThrowInvalidInput("{}: shape [{}] is negative or too large", place,
                      fmt::join(entry.info.shape, ", "));
  }
  // Blocks do not cross the ends of rows.
  const std::int64_t row = entry.info.shape.empty() ? 1 : entry.info.shape.back();
  if (row % entry.info.dtype.block_values() != 0) {
    ThrowInvalidInput("{}: {} needs rows of a multiple of {} values, found {}", place,
                      NameOf(entry.info.dtype), entry.info.dtype.block_values(), row);
  }
  return entry;
}

void CheckMagic(HeadCursor& head) {
  constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
  if (head.Read<std::uint32_t>() != kMagic) {
    ThrowInvalidInput("{}: is not a GGUF file: it does not start with \"GGUF\"", head.where());
  }
  const auto version = head.Read<std::uint32_t>();
  if (version == 3 || version == 2) return;  // they differ only by the byte order that 3 allows
  ThrowInvalidInput("{}: GGUF version {} is not supported, expected 3{}", head.where(), version,
                    (version & 0xffff) == 0 ? " (a big-endian file)" : "");
}

GgufMetadata ReadKeys(HeadCursor& head, std::uint64_t count) {
  GgufMetadata values;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string key = head.ReadString();
    if (key.empty()) ThrowInvalidInput("{}: a key has no name", head.where());
    GgufValue value;
    ReadAlternative(head, head.Read<std::uint32_t>(), value);
    // Readers of llama.cpp take the first of two, others the last.
    if (!values.Add(key, std::move(value))) {
      ThrowInvalidInput("{}: key '{}' appears twice", head.where(), key);
    }
  }
  return values;
}

std::uint64_t AlignmentOf(const GgufMetadata& values, const std::string& where) {
  const auto* alignment = GetGguf<std::uint32_t>(values, "general.alignment", where);
  if (alignment == nullptr) return internal::kGgufAlignment;
  // Rounding by a mask needs a power of two.
  if (!std::has_single_bit(*alignment)) {
    ThrowInvalidInput("{}: general.alignment must be a power of two, found {}", where, *alignment);
  }
  return *alignment;
}

// Finds the places of the tensors, which llama.cpp also demands in the order of their entries, each
// padded to the alignment: so none overlap.
void PlaceTensors(std::uint64_t head_size, std::uint64_t file_size, std::uint64_t alignment,
                  const std::string& where, std::vector<GgufTensorEntry>& entries) {
  const auto padded = [&](std::uint64_t size) { return (size + alignment - 1) & ~(alignment - 1); };
  const std::uint64_t data_begin = padded(head_size);
  std::uint64_t expected = 0;
  for (GgufTensorEntry& entry : entries) {
    if (entry.offset != expected) {
      ThrowInvalidInput(
          "{}: tensor '{}' begins at {}, expected {}: right behind the tensor before it", where,
          entry.info.name, entry.offset, expected);
    }
    const std::uint64_t end = data_begin + expected + entry.info.bytes();
    // `end` may have wrapped around: then it is less than the beginning.
    if (end < data_begin || end > file_size) {
      ThrowInvalidInput(
          "{}: tensor '{}' ends at byte {}, but the file has {} (incomplete download?)", where,
          entry.info.name, end, file_size);
    }
    expected += padded(entry.info.bytes());
    entry.offset += data_begin;
  }
}

}  // namespace

GgufHead ReadGgufHead(std::span<const std::byte> bytes, const std::string& where) {
  HeadCursor head(bytes, where);
  CheckMagic(head);
  // The least bytes of an entry: length of the name, dimensions, type, offset.
  const std::uint64_t tensors = head.ReadCount("tensors", 8 + 4 + 4 + 8);
  // Length of the key, type, a value of one byte.
  const std::uint64_t keys = head.ReadCount("keys", 8 + 4 + 1);
  GgufHead out;
  out.values = ReadKeys(head, keys);
  // After all keys: this one may be the last.
  const std::uint64_t alignment = AlignmentOf(out.values, where);
  out.tensors.reserve(tensors);
  for (std::uint64_t i = 0; i < tensors; ++i) out.tensors.push_back(ReadEntry(head));
  PlaceTensors(head.position(), bytes.size(), alignment, where, out.tensors);
  return out;
}

}  // namespace qlora
