#include "checkpoint/model_fingerprint.h"

#include <algorithm>

#include "io/tensor_file.h"
#include "model/checkpoint.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

// Enough to tell two trained matrices apart, and one page of each tensor to read.
constexpr std::size_t kSampleBytes = 256;

// The hash of one tensor. Released at once, so that a large checkpoint does not fill memory.
std::uint64_t HashTensor(const TensorReader& reader, const TensorInfo& tensor) {
  const std::span<const std::byte> bytes = reader.Bytes(tensor);
  const std::span<const std::byte> sample = bytes.first(std::min(kSampleBytes, bytes.size()));
  const TensorType& type = tensor.dtype;
  auto kind = static_cast<std::uint64_t>(type.dtype);
  if (type.is_blocks()) kind |= static_cast<std::uint64_t>(type.format) << 8;
  std::uint64_t hash = MixBits(HashBytes(tensor.name) ^ kind);
  for (const std::int64_t extent : tensor.shape) {
    hash = MixBits(hash ^ static_cast<std::uint64_t>(extent));
  }
  hash = MixBits(hash ^ HashBytes({reinterpret_cast<const char*>(sample.data()), sample.size()}));
  reader.Release(tensor);
  return hash;
}

}  // namespace

// Each hash holds the name of its tensor, so that a sum tells which tensors there are and does not
// depend on their order, which shards and file formats decide.
std::uint64_t ModelFingerprint(const std::filesystem::path& model_dir) {
  const std::unique_ptr<TensorReader> reader = OpenStoredTensors(model_dir);
  std::uint64_t sum = 0;
  for (const TensorInfo& tensor : reader->tensors()) sum += HashTensor(*reader, tensor);
  return sum;
}

}  // namespace qlora
