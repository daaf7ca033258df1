#include "io/mapped_tensors.h"

#include <utility>

#include "base/check.h"

namespace qlora {

const TensorInfo* MappedTensors::Find(std::string_view name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> MappedTensors::Bytes(const TensorInfo& tensor) const {
  const Place& place = PlaceOf(tensor);
  // The range lies within the file: Add receives checked entries only.
  return files_[place.file].bytes().subspan(place.offset, tensor.bytes());
}

void MappedTensors::Release(const TensorInfo& tensor) const {
  const Place& place = PlaceOf(tensor);
  files_[place.file].Release(place.offset, tensor.bytes());
}

std::string MappedTensors::FileOf(const TensorInfo& tensor) const {
  return files_[PlaceOf(tensor).file].path().string();
}

std::size_t MappedTensors::AddFile(MappedFile file) {
  // Mappings keep their addresses when the vector grows, so spans of earlier files stay valid.
  files_.push_back(std::move(file));
  return files_.size() - 1;
}

void MappedTensors::Add(TensorInfo tensor, std::size_t file, std::size_t offset) {
  // Shards are one name space. Which of two tensors were meant cannot be known.
  const auto [entry, added] = numbers_.emplace(tensor.name, tensors_.size());
  if (!added) {
    const std::string first = files_[places_[entry->second].file].path().string();
    const std::string second = files_[file].path().string();
    ThrowInvalidInput("{}: tensor '{}' appears twice{}", second, tensor.name,
                      first == second ? "" : ", it is also in " + first);
  }
  tensors_.push_back(std::move(tensor));
  places_.push_back({file, offset});
}

void MappedTensors::AddMetadata(std::string key, std::string value) {
  metadata_.insert_or_assign(std::move(key), std::move(value));
}

const MappedTensors::Place& MappedTensors::PlaceOf(const TensorInfo& tensor) const {
  // Compared by name, not by address: callers may hold a copy of the TensorInfo.
  const TensorInfo* own = Find(tensor.name);
  QLORA_DCHECK(own != nullptr && own->bytes() == tensor.bytes());
  if (own == nullptr) ThrowInvalidInput("there is no tensor '{}'", tensor.name);
  return places_[own - tensors_.data()];
}

std::int64_t CheckedElements(std::span<const std::int64_t> shape) {
  constexpr std::int64_t kMax = std::int64_t{1} << 59;  // times 16 bytes stays below 2^63
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) return -1;
    // Division instead of a product that is too large to be looked at. A later 0 does not excuse
    // it.
    if (size != 0 && product > kMax / size) return -1;
    product *= size;
  }
  return product;
}

}  // namespace qlora
