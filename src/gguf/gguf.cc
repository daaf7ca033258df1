#include "gguf/gguf.h"

#include <algorithm>

#include "base/check.h"
#include "ggml/block_format.h"
#include "gguf/gguf_head.h"
#include "gguf/gguf_parts.h"

namespace qlora {
namespace {

constexpr const char* kValueTypes[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "string", "array", "u64", "i64", "f64"};
static_assert(std::size(kValueTypes) == std::variant_size_v<GgufValue>);

// Types of single values; the blocks' numbers are in ggml/block_format.h.
constexpr std::pair<std::uint32_t, DType> kSingleTypes[] = {
    {0, DType::kF32}, {1, DType::kF16},  {30, DType::kBF16}, {28, DType::kF64},
    {24, DType::kI8}, {25, DType::kI16}, {26, DType::kI32},  {27, DType::kI64}};

}  // namespace

std::optional<TensorType> internal::TypeOfCode(std::uint32_t code) {
  if (const BlockFormatInfo* blocks = FindBlockFormat(code)) return blocks->format;
  for (const auto& [number, type] : kSingleTypes) {
    if (number == code) return type;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> internal::CodeOfType(const TensorType& type) {
  if (type.is_blocks()) return InfoOf(type.format).ggml_type;
  for (const auto& [number, single] : kSingleTypes) {
    if (single == type.dtype) return number;
  }
  return std::nullopt;
}

std::string TypeNameOf(const GgufValue& value) {
  const auto* array = std::get_if<GgufArray>(&value);
  return array == nullptr ? kValueTypes[value.index()]
                          : fmt::format("array of {}", kValueTypes[array->index()]);
}

bool GgufMetadata::Add(std::string key, GgufValue value) {
  const bool is_new = numbers_.emplace(key, entries_.size()).second;
  entries_.push_back(GgufEntry{std::move(key), std::move(value)});
  return is_new;
}

void GgufMetadata::Set(std::string key, GgufValue value) {
  const auto found = numbers_.find(key);
  if (found == numbers_.end()) {
    Add(std::move(key), std::move(value));
  } else {
    entries_[found->second].value = std::move(value);
  }
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = numbers_.find(key);
  return found == numbers_.end() ? nullptr : &entries_[found->second].value;
}

void internal::ThrowGgufType(const std::string& where, std::string_view key, const GgufValue& found,
                             const GgufValue& expected) {
  ThrowInvalidInput("{}: key '{}': expected type {}, found {}", where, key, TypeNameOf(expected),
                    TypeNameOf(found));
}

GgufReader::GgufReader(const std::filesystem::path& path) {
  const GgufParts parts = FindGgufParts(path);
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < parts.files.size(); ++i) {
    const std::size_t number = AddFile(MappedFile(parts.files[i]));
    const std::string where = parts.files[i].string();
    GgufHead head = ReadGgufHead(file(number).bytes(), where);
    CheckGgufPart(parts, i, head.values);
    tensors += head.tensors.size();
    for (GgufTensorEntry& entry : head.tensors) Add(std::move(entry.info), number, entry.offset);
    // The later parts have keys about the parts alone.
    if (i == 0) values_ = std::move(head.values);
  }
  CheckGgufTensors(parts, values_, tensors);
  for (const auto& [key, value] : values_.entries()) {
    if (const auto* text = std::get_if<std::string>(&value)) AddMetadata(key, *text);
  }
}

void GgufReader::ThrowMissing(std::string_view key) const {
  ThrowInvalidInput("{}: key '{}' is missing", where(), key);
}

std::unique_ptr<GgufReader> OpenGguf(const std::filesystem::path& path) {
  return std::make_unique<GgufReader>(path);
}

GgufMetadata ReadGgufMetadata(const std::filesystem::path& path) {
  const MappedFile file(FindGgufParts(path).files.front());
  return ReadGgufHead(file.bytes(), file.path().string()).values;
}

}  // namespace qlora
