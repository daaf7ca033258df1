#include "io/mxfp4.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ggml/block_format.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr std::string_view kBlocks = "_blocks";
constexpr std::int64_t kValues = 32;      // of a block
constexpr std::int64_t kCodeBytes = 16;   // of a block
constexpr std::int64_t kBlockBytes = 17;  // in ggml's order, with the scale

// The matrix of one expert.
struct Matrix {
  const TensorInfo* blocks = nullptr;
  const TensorInfo* scales = nullptr;
  std::int64_t expert = 0;
};

// ggml's block: the scale, then byte i with value i in bits 3..0 and value i + 16 in bits 7..4.
void Repack(const std::byte* codes, std::byte scale, std::byte* out) {
  const auto code = [&](std::int64_t i) {
    const auto byte = std::to_integer<unsigned>(codes[i / 2]);
    return i % 2 == 0 ? byte & 15 : byte >> 4;
  };
  out[0] = scale;
  for (std::int64_t i = 0; i < kCodeBytes; ++i) {
    out[1 + i] = static_cast<std::byte>(code(i) | code(i + kCodeBytes) << 4);
  }
}

class Mxfp4Blocks : public ForwardingReader {
 public:
  explicit Mxfp4Blocks(std::unique_ptr<TensorReader> stored) : ForwardingReader(std::move(stored)) {
    std::set<std::string, std::less<>> hidden;
    for (const TensorInfo& tensor : this->stored().tensors()) {
      if (!IsBlocks(tensor)) continue;
      const std::string name = tensor.name.substr(0, tensor.name.size() - kBlocks.size());
      const std::string of_scales = name + "_scales";
      hidden.insert(of_scales);
      const TensorInfo* scales = this->stored().Find(of_scales);
      if (const std::string reason = Misfit(tensor, scales, of_scales); !reason.empty()) {
        AddUnread({tensor.name, reason});
        continue;
      }
      const std::vector<std::int64_t>& shape = tensor.shape;
      for (std::int64_t e = 0; e < shape[0]; ++e) {
        const TensorInfo& matrix =
            Add({fmt::format("{}.{}", name, e), Mxfp4Type(), {shape[1], shape[2] * kValues}});
        matrices_.emplace(matrix.name, Matrix{&tensor, scales, e});
      }
    }
    for (const TensorInfo& tensor : this->stored().tensors()) {
      if (!IsBlocks(tensor) && !hidden.contains(tensor.name)) Add(tensor);
    }
  }

  static bool IsBlocks(const TensorInfo& tensor) {
    return tensor.name.ends_with(kBlocks) && tensor.dtype == DType::kU8;
  }

  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    const auto matrix = matrices_.find(tensor.name);
    if (matrix == matrices_.end()) return ForwardingReader::Bytes(tensor);
    std::vector<std::byte>& copy = copies_[tensor.name];
    if (copy.empty()) copy = Repacked(matrix->second, tensor);
    return copy;
  }
  bool IsCopied(const TensorInfo& tensor) const override {
    return matrices_.contains(tensor.name) || ForwardingReader::IsCopied(tensor);
  }
  void Release(const TensorInfo& tensor) const override {
    copies_.erase(tensor.name);
    ForwardingReader::Release(tensor);
    if (const auto matrix = matrices_.find(tensor.name); matrix != matrices_.end()) {
      stored().Release(*matrix->second.scales);
    }
  }
  StoredValue StoredAt(const TensorInfo& tensor, std::int64_t element) const override {
    const auto matrix = matrices_.find(tensor.name);
    if (matrix == matrices_.end()) return ForwardingReader::StoredAt(tensor, element);
    // Two values are one byte.
    const std::int64_t before = matrix->second.expert * tensor.elements();
    return stored().StoredAt(*matrix->second.blocks, (before + element) / 2);
  }

 private:
  const TensorInfo& Stored(const TensorInfo& tensor) const override {
    const auto matrix = matrices_.find(tensor.name);
    return matrix == matrices_.end() ? ForwardingReader::Stored(tensor) : *matrix->second.blocks;
  }

  // Why the parameter cannot be read, or "".
  std::string Misfit(const TensorInfo& blocks, const TensorInfo* scales,
                     const std::string& name) const {
    const std::string place = fmt::format("{}: tensor '{}'", stored().FileOf(blocks), blocks.name);
    if (scales == nullptr) {
      return fmt::format(
          "{} holds MXFP4 and its scales '{}' are missing, without which its values have no "
          "meaning; download the checkpoint again",
          place, name);
    }
    std::vector<std::int64_t> expected = blocks.shape;
    if (!expected.empty()) expected.pop_back();
    if (blocks.shape.size() == 4 && blocks.shape[3] == kCodeBytes && scales->shape == expected &&
        scales->dtype == DType::kU8 && scales->elements() > 0) {
      return "";
    }
    return fmt::format(
        "{} of shape [{}], and its scales '{}' of shape [{}]: expected U8 [E, out, in / 32, 16] "
        "and [E, out, in / 32]",
        place, fmt::join(blocks.shape, ", "), name, fmt::join(scales->shape, ", "));
  }

  std::vector<std::byte> Repacked(const Matrix& matrix, const TensorInfo& tensor) const {
    const std::int64_t count = tensor.elements() / kValues;
    const std::int64_t first = matrix.expert * count;
    const std::byte* codes = stored().Bytes(*matrix.blocks).data() + first * kCodeBytes;
    const std::byte* scales = stored().Bytes(*matrix.scales).data() + first;
    std::vector<std::byte> out(static_cast<std::size_t>(count * kBlockBytes));
    for (std::int64_t i = 0; i < count; ++i) {
      if (scales[i] == std::byte{255}) {
        ThrowInvalidInput("{}: tensor '{}' holds a NaN at index {}",
                          stored().FileOf(*matrix.scales), matrix.scales->name, first + i);
      }
      Repack(codes + i * kCodeBytes, scales[i], out.data() + i * kBlockBytes);
    }
    return out;
  }

  std::map<std::string, Matrix, std::less<>> matrices_;
  mutable std::map<std::string, std::vector<std::byte>, std::less<>> copies_;
};

}  // namespace

TensorType Mxfp4Type() { return BlockFormat::kMXFP4; }

std::unique_ptr<TensorReader> WithMxfp4Blocks(std::unique_ptr<TensorReader> stored) {
  if (!std::ranges::any_of(stored->tensors(), Mxfp4Blocks::IsBlocks)) return stored;
  return std::make_unique<Mxfp4Blocks>(std::move(stored));
}

bool IsMxfp4Config(const Json& json, std::string_view where) {
  return JsonGetOr<std::string>(json, "quant_method", "", where) == "mxfp4";
}

}  // namespace qlora
