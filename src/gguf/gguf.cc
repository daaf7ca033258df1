#include "gguf/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/check.h"

static_assert(std::endian::native == std::endian::little);

namespace qlora {
namespace {

constexpr const char* kValueTypes[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "string", "array", "u64", "i64", "f64"};
static_assert(std::size(kValueTypes) == std::variant_size_v<GgufValue>);

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

std::string GgmlNameOf(std::uint32_t code) {
  constexpr const char* kNames[] = {
      "F32",     "F16",    "Q4_0",    "Q4_1",  "",       "",      "Q5_0",  "Q5_1",
      "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
      "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
      "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16"};
  return code < std::size(kNames) && kNames[code][0] != '\0' ? kNames[code]
                                                             : fmt::format("number {}", code);
}

DType DTypeOf(std::uint32_t code, const std::string& place) {
  for (const internal::GgufTypeRow& row : internal::kGgufTypes) {
    if (row.code == code) return row.dtype;
  }
  ThrowInvalidInput("{}: type {} is not supported; use a file of F32, F16, BF16 or Q8_0 tensors",
                    place, GgmlNameOf(code));
}

// One tensor as the head states it.
struct TensorEntry {
  TensorInfo info;
  std::uint64_t offset = 0;
};

TensorEntry ReadEntry(HeadCursor& head) {
  TensorEntry entry;
  entry.info.name = head.ReadString();
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
  entry.info.dtype = DTypeOf(head.Read<std::uint32_t>(), place);
  entry.offset = head.Read<std::uint64_t>();
  if (CheckedElements(entry.info.shape) < 0) {
    ThrowInvalidInput("{}: shape [{}] is negative or too large", place,
                      fmt::join(entry.info.shape, ", "));
  }
  // Blocks of 32 values do not cross the ends of rows.
  const std::int64_t row = entry.info.shape.empty() ? 1 : entry.info.shape.back();
  if (internal::IsBlockType(entry.info.dtype) && row % 32 != 0) {
    ThrowInvalidInput("{}: {} needs rows of a multiple of 32 values, found {}", place,
                      NameOf(entry.info.dtype), row);
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

// The numbers at the front of a file, behind which its keys stand.
struct Counts {
  std::uint64_t tensors = 0;
  std::uint64_t keys = 0;
};

Counts ReadCounts(HeadCursor& head) {
  CheckMagic(head);
  Counts counts;
  // The least bytes of an entry: length of the name, dimensions, type, offset.
  counts.tensors = head.ReadCount("tensors", 8 + 4 + 4 + 8);
  // Length of the key, type, a value of one byte.
  counts.keys = head.ReadCount("keys", 8 + 4 + 1);
  return counts;
}

GgufMetadata ReadKeys(HeadCursor& head, std::uint64_t count) {
  GgufMetadata metadata;
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string key = head.ReadString();
    GgufValue value;
    ReadAlternative(head, head.Read<std::uint32_t>(), value);
    // Readers of llama.cpp take the first of two, others the last.
    if (!names.insert(key).second) {
      ThrowInvalidInput("{}: key '{}' appears twice", head.where(), key);
    }
    metadata.Add(std::move(key), std::move(value));
  }
  return metadata;
}

}  // namespace

std::string TypeNameOf(const GgufValue& value) {
  const auto* array = std::get_if<GgufArray>(&value);
  return array == nullptr ? kValueTypes[value.index()]
                          : fmt::format("array of {}", kValueTypes[array->index()]);
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const GgufEntry& entry) { return entry.key == key; });
  return found == entries_.end() ? nullptr : &found->value;
}

GgufMetadata ReadGgufMetadata(const std::filesystem::path& path) {
  const MappedFile file(path);
  HeadCursor head(file.bytes(), path.string());
  return ReadKeys(head, ReadCounts(head).keys);
}

GgufReader::GgufReader(const std::filesystem::path& path) {
  const std::size_t number = AddFile(MappedFile(path));
  const std::span<const std::byte> bytes = file(number).bytes();
  HeadCursor head(bytes, path.string());
  const auto [tensors, keys] = ReadCounts(head);
  values_ = ReadKeys(head, keys);
  for (std::size_t i = 0; i < values_.entries().size(); ++i) {
    const auto& [key, value] = values_.entries()[i];
    value_numbers_.emplace(key, i);
    if (const auto* text = std::get_if<std::string>(&value)) AddMetadata(key, *text);
  }
  std::uint64_t alignment = internal::kGgufAlignment;
  // After all keys: this one may be the last.
  if (const auto* declared = Get<std::uint32_t>("general.alignment")) alignment = *declared;
  // The mask of `padded` rounds to powers of two alone.
  if (!std::has_single_bit(alignment)) {
    ThrowInvalidInput("{}: general.alignment must be a power of two, found {}", head.where(),
                      alignment);
  }
  std::vector<TensorEntry> entries;
  entries.reserve(tensors);
  for (std::uint64_t i = 0; i < tensors; ++i) entries.push_back(ReadEntry(head));

  const auto padded = [&](std::uint64_t size) { return (size + alignment - 1) & ~(alignment - 1); };
  const std::uint64_t data_begin = padded(head.position());
  std::uint64_t expected = 0;
  for (TensorEntry& entry : entries) {
    // llama.cpp also demands that tensors are stored in the order of their entries, each padded to
    // the alignment.
    if (entry.offset != expected) {
      ThrowInvalidInput(
          "{}: tensor '{}' begins at {}, expected {}: right behind the tensor before "
          "it",
          head.where(), entry.info.name, entry.offset, expected);
    }
    const std::uint64_t end = data_begin + expected + entry.info.bytes();
    // `end` may have wrapped around: then it is less than the beginning.
    if (end < data_begin || end > bytes.size()) {
      ThrowInvalidInput(
          "{}: tensor '{}' ends at byte {}, but the file has {} (incomplete "
          "download?)",
          head.where(), entry.info.name, end, bytes.size());
    }
    expected += padded(entry.info.bytes());
    Add(std::move(entry.info), number, data_begin + entry.offset);
  }
}

const GgufValue* GgufReader::FindValue(std::string_view key) const {
  const auto found = value_numbers_.find(key);
  return found == value_numbers_.end() ? nullptr : &values_.entries()[found->second].value;
}

void GgufReader::ThrowMissing(std::string_view key) const {
  ThrowInvalidInput("{}: key '{}' is missing", file(0).path().string(), key);
}

void GgufReader::ThrowType(std::string_view key, const GgufValue& found,
                           const GgufValue& expected) const {
  ThrowInvalidInput("{}: key '{}': expected type {}, found {}", file(0).path().string(), key,
                    TypeNameOf(expected), TypeNameOf(found));
}

std::unique_ptr<GgufReader> OpenGguf(const std::filesystem::path& path) {
  return std::make_unique<GgufReader>(path);
}

}  // namespace qlora
