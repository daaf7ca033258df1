// Writes a GGUF file in one pass: the head, whose size the declared tensors decide, then the bytes
// of each tensor in the same order.
//
//   magic, version, counts | metadata | entries (name, shape, type, offset) | tensor | tensor | ...
//
// Padding before each tensor aligns it.
#include "gguf/gguf_writer.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/file.h"
#include "io/tensor_cursor.h"

namespace qlora {
namespace {

std::uint64_t Padded(std::uint64_t size) {
  return (size + internal::kGgufAlignment - 1) / internal::kGgufAlignment *
         internal::kGgufAlignment;
}

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Appends one byte; the size of bool may differ.
void Append(std::string& out, bool value) { out += static_cast<char>(value); }

void Append(std::string& out, const std::string& text) {
  Append(out, std::uint64_t{text.size()});
  out += text;
}

void Append(std::string& out, const GgufArray& array) {
  Append(out, static_cast<std::uint32_t>(array.index()));
  std::visit(
      [&](const auto& values) {
        // monostate represents an array of arrays, which HeadOf refuses.
        if constexpr (!std::is_same_v<std::decay_t<decltype(values)>, std::monostate>) {
          Append(out, std::uint64_t{values.size()});
          // The proxies of vector<bool> become bool here.
          using Element = typename std::decay_t<decltype(values)>::value_type;
          for (const Element& value : values) Append(out, value);
        }
      },
      array);
}

std::uint32_t CodeOf(const TensorInfo& tensor, const std::string& where) {
  if (const auto code = internal::CodeOfType(tensor.dtype)) return *code;
  ThrowInvalidInput("{}: tensor '{}': GGUF has no type {}", where, tensor.name,
                    NameOf(tensor.dtype));
}

void CheckTensor(const TensorInfo& tensor, const std::string& where) {
  const std::string place = fmt::format("{}: tensor '{}'", where, tensor.name);
  if (tensor.name.empty() || tensor.name.size() > internal::kGgufMaxName) {
    ThrowInvalidInput("{}: its name must have 1 to {} bytes", place, internal::kGgufMaxName);
  }
  // The head is written before the data and states each size: none may shrink later.
  if (tensor.shape.empty() || tensor.shape.size() > internal::kGgufMaxDims || tensor.upper_bound ||
      CheckedElements(tensor.shape) < 0) {
    ThrowInvalidInput("{}: shape [{}] is not possible in GGUF", place,
                      fmt::join(tensor.shape, ", "));
  }
  if (tensor.shape.back() % tensor.dtype.block_values() != 0) {
    ThrowInvalidInput("{}: {} needs rows of a multiple of {} values, found {}", place,
                      NameOf(tensor.dtype), tensor.dtype.block_values(), tensor.shape.back());
  }
}

std::string HeadOf(const GgufMetadata& metadata, const std::vector<TensorInfo>& tensors,
                   const std::string& where) {
  std::string out = "GGUF";
  Append(out, std::uint32_t{3});
  Append(out, std::uint64_t{tensors.size()});
  Append(out, std::uint64_t{metadata.entries().size()});
  std::set<std::string_view> names;
  for (const auto& [key, value] : metadata.entries()) {
    const auto* array = std::get_if<GgufArray>(&value);
    if (array != nullptr && std::holds_alternative<std::monostate>(*array)) {
      ThrowInvalidInput("{}: key '{}': an array of arrays cannot be written", where, key);
    }
    // general.alignment is left at its default, by which this writer pads.
    if (key.empty() || key == "general.alignment" || !names.insert(key).second) {
      ThrowInvalidInput("{}: key '{}' cannot be set{}", where, key,
                        names.count(key) != 0 ? " twice" : "");
    }
    Append(out, key);
    Append(out, static_cast<std::uint32_t>(value.index()));
    std::visit([&](const auto& v) { Append(out, v); }, value);
  }
  names.clear();
  std::uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    CheckTensor(tensor, where);
    if (!names.insert(tensor.name).second) {
      ThrowInvalidInput("{}: tensor '{}' is declared twice", where, tensor.name);
    }
    Append(out, tensor.name);
    Append(out, static_cast<std::uint32_t>(tensor.shape.size()));
    // The innermost dimension first, as in gguf.cc.
    std::for_each(tensor.shape.rbegin(), tensor.shape.rend(),
                  [&](std::int64_t size) { Append(out, size); });
    Append(out, CodeOf(tensor, where));
    Append(out, offset);
    // Offsets count from the end of the padded head, and each tensor begins at a multiple of the
    // alignment.
    offset += Padded(tensor.bytes());
  }
  out.resize(Padded(out.size()), '\0');
  return out;
}

class GgufFile : public TensorWriter {
 public:
  GgufFile(const std::filesystem::path& path, const GgufMetadata& metadata,
           std::vector<TensorInfo> tensors, OpenMode mode)
      : head_(HeadOf(metadata, tensors, path.string())),
        cursor_(std::move(tensors), path.string()),
        file_(path, mode) {
    // Data follow the head in the declared order, so the whole size is known before the first byte.
    std::uint64_t total = head_.size();
    for (const TensorInfo& tensor : cursor_.tensors()) total += Padded(tensor.bytes());
    file_.Reserve(total);
    file_.Write(head_);
  }

  void Write(std::span<const std::byte> bytes) override {
    if (bytes.empty()) return;
    const TensorCursor::Piece piece = cursor_.Take(bytes.size());
    file_.Write(bytes);
    // After the last tensor too, as gguf-py of llama.cpp writes files.
    if (piece.last) file_.Write(std::string(Padded(file_.size()) - file_.size(), '\0'));
  }

  void Shrink(std::int64_t elements) override { cursor_.Shrink(elements); }

  void Finish() override {
    cursor_.CheckComplete();
    file_.Commit();
  }

 private:
  std::string head_;
  TensorCursor cursor_;
  AtomicFile file_;
};

}  // namespace

std::unique_ptr<TensorWriter> CreateGguf(const std::filesystem::path& path,
                                         const GgufMetadata& metadata,
                                         std::vector<TensorInfo> tensors, OpenMode mode) {
  return std::make_unique<GgufFile>(path, metadata, std::move(tensors), mode);
}

}  // namespace qlora
