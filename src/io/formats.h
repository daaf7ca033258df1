// The one interface of all tensor file formats, so that quantize and export know no format.
#ifndef QLORA_IO_FORMATS_H_
#define QLORA_IO_FORMATS_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qlora/tensor.h"

namespace qlora {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // row-major, outermost first; {} is a scalar
  // Writers only: the shape is {most}; TensorWriter::Shrink sets the true size.
  bool upper_bound = false;

  // Both stay at the largest number when the product of a malicious shape does not fit.
  std::int64_t elements() const;  // product of shape
  std::size_t bytes() const;      // BytesOf(dtype, elements())
};

using StringMap = std::map<std::string, std::string>;

// A file, or the shards of a checkpoint, whose header has been read and checked in full: every
// tensor is inside its file and no two overlap.
class TensorReader {
 public:
  virtual ~TensorReader() = default;
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // nullptr when there is no such tensor.
  virtual const TensorInfo* Find(std::string_view name) const = 0;
  // The tensor's bytes, mapped from the file; valid as long as the reader. Not necessarily aligned.
  virtual std::span<const std::byte> Bytes(const TensorInfo& tensor) const = 0;
  // The tensor will not be read soon: its pages no longer count against memory, and come back from
  // the file when they are read after all.
  virtual void Release(const TensorInfo& tensor) const = 0;
  // The path of the file that holds the tensor, for error messages.
  virtual std::string FileOf(const TensorInfo& tensor) const = 0;
  // Text that the file carries along with its tensors; with several shards, that of the first.
  virtual const StringMap& metadata() const = 0;
};

// Declares all tensors up front and then takes their bytes one by one in the declared order, so
// that memory stays at one tensor. The file appears under its name only with Finish(); without it
// nothing is left. Errors: Runtime when it cannot be written, or when too few or too many bytes
// came for a tensor.
class TensorWriter {
 public:
  virtual ~TensorWriter() = default;
  // May be called several times for one tensor until its bytes are complete.
  virtual void Write(std::span<const std::byte> bytes) = 0;
  // Before the first Write of a tensor declared with upper_bound: its shape is {elements}.
  virtual void Shrink(std::int64_t elements) = 0;
  virtual void Finish() = 0;
};

// safetensors (github.com/huggingface/safetensors): a file, an index (*.safetensors.index.json)
// with its shards in the same folder, or a directory with model.safetensors or its index. Errors:
// InvalidInput that names file and tensor, for anything that the format forbids: bytes outside the
// file, holes, overlaps, unknown types, missing or truncated shards; pickled checkpoints (.bin).
std::unique_ptr<TensorReader> OpenSafetensors(const std::filesystem::path& path);

// True when a directory holds a model: config.json, and model.safetensors or its index.
bool HoldsModel(const std::filesystem::path& directory);

// Bytes are taken in the declared order, whatever it is; in the file the tensors have the order
// of the format's reference writer, wide types first and then by name (upper_bound ones behind all
// others), so that each is aligned to its type. "format": "pt",
// which transformers insists on, is added to the metadata. Errors: InvalidInput for a tensor that
// the format cannot hold.
std::unique_ptr<TensorWriter> CreateSafetensors(const std::filesystem::path& path,
                                                std::vector<TensorInfo> tensors,
                                                const StringMap& metadata);

inline constexpr std::uint64_t kMaxShardBytes = std::uint64_t{5} << 30;

// A checkpoint in `directory` (made when missing): model.safetensors when all fits into
// max_shard_bytes, else model-0000k-of-0000n.safetensors and model.safetensors.index.json. Tensors
// whose names agree up to ".weight" (the pieces of one quantized weight) share a shard. Errors:
// InvalidInput when the directory holds a checkpoint of the other layout, which readers would mix
// up with this one.
std::unique_ptr<TensorWriter> CreateShardedSafetensors(const std::filesystem::path& directory,
                                                       std::vector<TensorInfo> tensors,
                                                       const StringMap& metadata,
                                                       std::uint64_t max_shard_bytes);

}  // namespace qlora

#endif  // QLORA_IO_FORMATS_H_
