// Arrays that are written once, from front to back, and then only read: in memory, or in a file
// that is mapped and that a later run finds again.
#ifndef QLORA_RECORDS_INDEX_ARRAY_H_
#define QLORA_RECORDS_INDEX_ARRAY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"

namespace qlora {

// The file of an index and the key of the data that it belongs to. An empty path means memory.
struct IndexPlace {
  std::filesystem::path path;
  std::string key;

  // Returns a place in `folder`, under a name made of `name` and a hash of the key; an empty folder
  // means memory. Errors: Runtime when the folder cannot be made.
  static IndexPlace In(const std::filesystem::path& folder, std::string_view name, std::string key);
};

// File: magic number, count of values, count of key bytes (8 bytes each), values, key, text.
template <typename T>
class IndexArray {
  static_assert(std::has_unique_object_representations_v<T> && alignof(T) <= 8);

 public:
  // Errors: Runtime when the file cannot be written.
  explicit IndexArray(IndexPlace place = {}) : place_(std::move(place)) {
    if (place_.path.empty()) return;
    file_ = std::make_unique<AtomicFile>(place_.path);
    const HeaderWords header = Header();
    file_->Write(std::as_bytes(std::span(header)));
  }

  // Returns the array that an earlier run finished at this place; nothing when no array has this
  // key. Only the sizes are checked: the caller must not trust the values.
  static std::optional<IndexArray> Find(const IndexPlace& place) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(place.path, ignored)) return std::nullopt;
    IndexArray array{Mapped{place}};
    if (!array.IsWhole()) return std::nullopt;
    return array;
  }

  void Add(const T& value) {
    ++count_;
    if (file_ == nullptr) {
      memory_.push_back(value);
    } else {
      file_->Write(std::as_bytes(std::span(&value, 1)));
    }
  }

  // Ends the writing: values() is readable from here on. `text` is kept with the values.
  // Errors: Runtime (disk full ...).
  void Finish(std::string text = {}) {
    text_ = std::move(text);
    if (file_ == nullptr) {
      memory_.shrink_to_fit();
      return;
    }
    file_->Write(place_.key);
    file_->Write(text_);
    const HeaderWords header = Header();
    file_->WriteAt(0, std::as_bytes(std::span(header)));
    file_->Commit();
    file_.reset();
    mapped_ = MappedFile(place_.path);
  }

  std::span<const T> values() const {
    if (place_.path.empty()) return memory_;
    return {reinterpret_cast<const T*>(mapped_.bytes().data() + sizeof(HeaderWords)), count_};
  }
  const std::string& text() const { return text_; }

 private:
  using HeaderWords = std::array<std::uint64_t, 3>;
  static constexpr std::uint64_t kMagic = 0x3276'7865'646E'6971;  // "qindexv2"

  struct Mapped {
    const IndexPlace& place;
  };
  explicit IndexArray(Mapped mapped) : place_(mapped.place), mapped_(mapped.place.path) {}

  HeaderWords Header() const { return {kMagic, count_, place_.key.size()}; }

  // Takes count and text from the mapping; false when the file is not an index,
  // or belongs to another key.
  bool IsWhole() {
    const std::span<const std::byte> bytes = mapped_.bytes();
    HeaderWords header;
    if (bytes.size() < sizeof(header)) return false;
    std::memcpy(header.data(), bytes.data(), sizeof(header));
    const std::uint64_t rest = bytes.size() - sizeof(header);
    count_ = header[1];
    if (header != Header() || count_ > rest / sizeof(T)) return false;
    const auto* tail =
        reinterpret_cast<const char*>(bytes.data()) + sizeof(header) + count_ * sizeof(T);
    const std::string_view key_and_text(tail, rest - count_ * sizeof(T));
    if (!key_and_text.starts_with(place_.key)) return false;
    text_ = key_and_text.substr(place_.key.size());
    return true;
  }

  IndexPlace place_;
  std::uint64_t count_ = 0;
  std::vector<T> memory_;
  std::unique_ptr<AtomicFile> file_;
  MappedFile mapped_;
  std::string text_;
};

}  // namespace qlora

#endif  // QLORA_RECORDS_INDEX_ARRAY_H_
