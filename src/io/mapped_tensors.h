// The part that all readers share: mapped files, and a table of where each tensor is in them.
#ifndef QLORA_IO_MAPPED_TENSORS_H_
#define QLORA_IO_MAPPED_TENSORS_H_

#include "base/file.h"
#include "io/tensor_file.h"

namespace qlora {

class MappedTensors : public TensorReader {
 public:
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view name) const override;
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override;
  void Release(const TensorInfo& tensor) const override;
  std::string FileOf(const TensorInfo& tensor) const override;
  const StringMap& metadata() const override { return metadata_; }
  const std::vector<UnreadTensor>& unread() const override { return unread_; }

 protected:
  // Returns the number of the file, for Add.
  std::size_t AddFile(MappedFile file);
  const MappedFile& file(std::size_t number) const { return files_[number]; }
  // Adds a tensor that the caller has found inside the file. Throws InvalidInput when there is
  // already a tensor of this name.
  void Add(TensorInfo tensor, std::size_t file, std::size_t offset);
  void AddMetadata(std::string key, std::string value);
  void AddUnread(std::string name, std::string reason) {
    unread_.push_back({std::move(name), std::move(reason)});
  }

 private:
  struct Place {
    std::size_t file;
    std::size_t offset;
  };
  const Place& PlaceOf(const TensorInfo& tensor) const;

  std::vector<MappedFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<Place> places_;  // of tensors_
  std::map<std::string, std::size_t, std::less<>> numbers_;
  StringMap metadata_;
  std::vector<UnreadTensor> unread_;
};

// Returns the product of a shape that a file claims, or -1 when a size is negative or the bytes of
// these elements could not be counted in 63 bits.
std::int64_t CheckedElements(std::span<const std::int64_t> shape);

}  // namespace qlora

#endif  // QLORA_IO_MAPPED_TENSORS_H_
