// GGUF, the file format of llama.cpp (github.com/ggml-org/ggml, docs/gguf.md), version 3,
// little-endian: "GGUF", u32 version, u64 number of tensors, u64 number of keys; keys (name, u32
// type, value); tensors (name, u32 dimensions, u64 sizes innermost first, u32 type, u64 offset);
// padding; data, every tensor padded to the alignment. A name is u64 length and bytes.
//
// This folder knows bytes, keys and tensors (gguf.h reads, gguf_writer.h writes, both as
// io/tensor_file.h). The names that llama.cpp gives to weights are in config/gguf_names.h.
#ifndef QLORA_GGUF_GGUF_H_
#define QLORA_GGUF_GGUF_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"
#include "io/mapped_tensors.h"

namespace qlora {

// The index of the alternative is the type code of the format, in both variants.
using GgufArray =
    std::variant<std::vector<std::uint8_t>, std::vector<std::int8_t>, std::vector<std::uint16_t>,
                 std::vector<std::int16_t>, std::vector<std::uint32_t>, std::vector<std::int32_t>,
                 std::vector<float>, std::vector<bool>, std::vector<std::string>,
                 std::monostate,  // arrays of arrays: llama.cpp does not read them either
                 std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;
using GgufValue = std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t,
                               std::uint32_t, std::int32_t, float, bool, std::string, GgufArray,
                               std::uint64_t, std::int64_t, double>;

struct GgufEntry {
  std::string key;
  GgufValue value;
  bool operator==(const GgufEntry&) const = default;
};

// The keys of a file in their order.
class GgufMetadata {
 public:
  // One call per key: g++ 12 takes exponential time over a braced list of such entries. Returns
  // false when there was such a key, which Find goes on to find.
  bool Add(std::string key, GgufValue value);
  // Takes the place of the value of a key, where it has one.
  void Set(std::string key, GgufValue value);
  const std::vector<GgufEntry>& entries() const { return entries_; }
  const GgufValue* Find(std::string_view key) const;  // nullptr when there is no such key
  bool operator==(const GgufMetadata& other) const { return entries_ == other.entries_; }

 private:
  std::vector<GgufEntry> entries_;
  std::map<std::string, std::size_t, std::less<>> numbers_;  // of the entries, by their keys
};

// Keys of every file.
inline constexpr const char* kGgufArchitecture = "general.architecture";
inline constexpr const char* kGgufType = "general.type";
inline constexpr const char* kGgufName = "general.name";

// "u32", "array of string", ...: the type of a value, for messages.
std::string TypeNameOf(const GgufValue& value);

// Returns the value of a key; T is an alternative of GgufValue or GgufArray. nullptr when there is
// no such key; InvalidInput when it has another type. where: the file, for messages.
template <typename T>
const T* GetGguf(const GgufMetadata& values, std::string_view key, const std::string& where);

// Tensors are given with HF's shape (outermost size first), so a linear weight is [out, in]. A
// model in several files (NAME-00001-of-00003.gguf, ...) is read from any of them. Errors:
// InvalidInput for anything outside the file, inconsistent, or of an unknown type, and for a
// missing part.
class GgufReader : public MappedTensors {
 public:
  explicit GgufReader(const std::filesystem::path& path);

  // Of several files, the first one's.
  const GgufMetadata& values() const { return values_; }
  // The file with the keys, for messages.
  std::string where() const { return file(0).path().string(); }

  template <typename T>
  const T* Get(std::string_view key) const {
    return GetGguf<T>(values_, key, where());
  }
  // Returns the value of a key. Errors: InvalidInput when there is no such key.
  template <typename T>
  const T& Require(std::string_view key) const {
    const T* value = Get<T>(key);
    if (value == nullptr) ThrowMissing(key);
    return *value;
  }

 private:
  [[noreturn]] void ThrowMissing(std::string_view key) const;

  GgufMetadata values_;
};

// Opens a GGUF file, with the checks that OpenSafetensors makes of its format.
std::unique_ptr<GgufReader> OpenGguf(const std::filesystem::path& path);

// The keys of a file alone; its tensors are checked all the same.
GgufMetadata ReadGgufMetadata(const std::filesystem::path& path);

namespace internal {
// The number of a tensor type in files; nothing where one side lacks the other's type.
std::optional<TensorType> TypeOfCode(std::uint32_t code);
std::optional<std::uint32_t> CodeOfType(const TensorType& type);
inline constexpr std::uint64_t kGgufAlignment = 32;
inline constexpr std::size_t kGgufMaxName = 63;
inline constexpr std::size_t kGgufMaxDims = 4;
[[noreturn]] void ThrowGgufType(const std::string& where, std::string_view key,
                                const GgufValue& found, const GgufValue& expected);
}  // namespace internal

template <typename T>
const T* GetGguf(const GgufMetadata& values, std::string_view key, const std::string& where) {
  const GgufValue* value = values.Find(key);
  if (value == nullptr) return nullptr;
  if constexpr (std::is_constructible_v<GgufArray, std::in_place_type_t<T>>) {
    const auto* array = std::get_if<GgufArray>(value);
    const T* found = array == nullptr ? nullptr : std::get_if<T>(array);
    if (found == nullptr) {
      internal::ThrowGgufType(where, key, *value, GgufArray(std::in_place_type<T>));
    }
    return found;
  } else {
    const T* found = std::get_if<T>(value);
    if (found == nullptr) {
      internal::ThrowGgufType(where, key, *value, GgufValue(std::in_place_type<T>));
    }
    return found;
  }
}

}  // namespace qlora

#endif  // QLORA_GGUF_GGUF_H_
