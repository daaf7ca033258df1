#include "checkpoint/model_fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "dist/together.h"
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

// The bytes of a tensor that one thread hashes at a time.
constexpr std::size_t kPiece = std::size_t{1} << 22;

struct Piece {
  const TensorInfo* tensor;
  std::size_t begin;
};

// Four chains, which processors compute beside one another: the speed is that of memory.
std::uint64_t HashPiece(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::array<std::uint64_t, 4> chains = {seed, seed + 1, seed + 2, seed + 3};
  std::size_t at = 0;
  for (; at + sizeof(chains) <= bytes.size(); at += sizeof(chains)) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    for (std::size_t i = 0; i < chains.size(); ++i) chains[i] = MixBits(chains[i] ^ words[i]);
  }
  const auto rest = bytes.subspan(at);
  std::uint64_t hash = HashBytes({reinterpret_cast<const char*>(rest.data()), rest.size()});
  for (const std::uint64_t chain : chains) hash = MixBits(hash ^ chain);
  return hash;
}

// The sum over every size-th piece, from piece `rank` on.
std::uint64_t HashShare(Context& context, const TensorReader& reader, std::size_t rank,
                        std::size_t size) {
  std::vector<Piece> pieces;
  std::size_t count = 0;
  for (const TensorInfo& tensor : reader.tensors()) {
    for (std::size_t begin = 0; begin < tensor.bytes(); begin += kPiece) {
      if (count++ % size == rank) pieces.push_back({&tensor, begin});
    }
  }
  std::vector<std::uint64_t> hashes(pieces.size());
  context.ParallelFor(std::ssize(pieces), [&](std::int64_t i, int) {
    const auto& [tensor, begin] = pieces[i];
    const auto bytes = reader.Bytes(*tensor).subspan(begin);
    hashes[i] = HashPiece(bytes.first(std::min(kPiece, bytes.size())),
                          MixBits(HashBytes(tensor->name) ^ begin));
    reader.Release(*tensor);  // the whole of it, but little is there
  });
  return std::accumulate(hashes.begin(), hashes.end(), std::uint64_t{0});
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

// Pieces are added up, so that it does not matter who has hashed which.
std::uint64_t HashWeights(Context& context, const std::filesystem::path& model_dir) {
  Communicator& communicator = context.communicator();
  const std::uint64_t mine = MakeTogether(communicator, [&] {
    return HashShare(context, *OpenStoredTensors(model_dir),
                     static_cast<std::size_t>(communicator.rank()),
                     static_cast<std::size_t>(communicator.size()));
  });
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.Gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
}

}  // namespace qlora
