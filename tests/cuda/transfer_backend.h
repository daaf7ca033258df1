// A backend whose operands are in the memory of the host: each op copies them to the memory of the
// backend behind it, runs there, and copies back what it may have written. So one test body serves
// backends of every memory.
#ifndef QLORA_TESTS_CUDA_TRANSFER_BACKEND_H_
#define QLORA_TESTS_CUDA_TRANSFER_BACKEND_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend_decorator.h"
#include "backend/op_operands.h"
#include "base/check.h"

namespace qlora {

// The memory that the operands of one op are in, as ranges of the host that do not touch, with a
// copy of each on the device.
class MovedOperands {
 public:
  explicit MovedOperands(Memory& memory) : memory_(memory) {}

  // Operands that overlap, or are one after the other, share a range.
  void Add(const void* data, std::size_t bytes, bool written) {
    if (bytes == 0) return;
    auto* begin = static_cast<std::byte*>(const_cast<void*>(data));
    Range all = {begin, begin + bytes, written, {}};
    std::vector<Range> others;
    for (Range& range : ranges_) {
      if (range.end < all.begin || all.end < range.begin) {
        others.push_back(std::move(range));
        continue;
      }
      all.begin = std::min(all.begin, range.begin);
      all.end = std::max(all.end, range.end);
      all.written |= range.written;
    }
    others.push_back(std::move(all));
    ranges_ = std::move(others);
  }

  // Each range is placed so that its first byte is as far from a multiple of 64 as on the host.
  void Upload() {
    for (Range& range : ranges_) {
      range.copy = Arena(Shift(range) + (range.end - range.begin), memory_);
      memory_.Upload(range.begin, range.copy.data() + Shift(range), range.end - range.begin);
    }
  }
  void Download() const {
    for (const Range& range : ranges_) {
      if (!range.written) continue;
      memory_.Download(range.copy.data() + Shift(range), range.begin, range.end - range.begin);
    }
  }
  // The place of a byte of an operand on the device.
  void* Moved(const void* data) {
    const auto* byte = static_cast<const std::byte*>(data);
    for (Range& range : ranges_) {
      if (byte >= range.begin && byte < range.end) {
        return range.copy.data() + Shift(range) + (byte - range.begin);
      }
    }
    ThrowRuntime("transfer backend: an operand that was not added");
  }

 private:
  struct Range {
    std::byte* begin;
    std::byte* end;
    bool written;
    Arena copy;
  };
  static std::size_t Shift(const Range& range) {
    return reinterpret_cast<std::uintptr_t>(range.begin) % 64;
  }

  Memory& memory_;
  std::vector<Range> ranges_;
};

// Calls leaf(pointer, bytes, written) for each pointer of a copy of an op, which may change it.
// Spans of linears are copied, so that their pointers can be changed too.
template <typename Leaf>
class OperandPointers {
 public:
  explicit OperandPointers(Leaf leaf) : leaf_(leaf) {}

  void Visit(Op& op) {
    const auto all = [this](auto&... operands) { (this->One(operands), ...); };
    std::visit([&](auto& any) { Operands(any, all); }, op);
  }

 private:
  void One(ConstMatrixView& m) { Matrix(m.data, m, false); }
  void One(MatrixView& m) { Matrix(m.data, m, true); }
  void One(IndexView& indices) { leaf_(indices.data, indices.size * sizeof(std::int32_t), false); }
  void One(IndexSpan& indices) { leaf_(indices.data, indices.size * sizeof(std::int32_t), true); }
  void One(WeightView& weight) {
    if (weight.empty()) return;
    ForEachPart(weight, [this](auto& data, std::size_t bytes) { leaf_(data, bytes, false); });
  }
  void One(LoraView& lora) { All(lora.a, lora.b); }
  void One(LinearView& linear) { All(linear.weight, linear.bias, linear.lora); }
  void One(LinearOutput& out) { All(out.y, out.u, out.base); }
  void One(LinearGradient& g) { All(g.dy, g.u, g.da_acc, g.db_acc); }
  void One(RopeTable& table) { All(table.cos, table.sin); }
  void One(Moment& moment) { All(moment.values, moment.scales); }
  void One(RoutingView& r) { All(r.experts, r.pairs, r.tokens, r.slots, r.begin); }
  template <typename T>
  void One(std::span<const T>& many) {
    auto& copy = std::get<std::deque<std::vector<T>>>(copies_);
    copy.emplace_back(many.begin(), many.end());
    many = copy.back();
    for (T& one : copy.back()) One(one);
  }
  template <typename... T>
  void All(T&... operands) {
    (One(operands), ...);
  }
  void Matrix(auto& data, const ConstMatrixView& m, bool written) {
    if (m.empty()) return;
    leaf_(data, BytesOf(m.dtype, (m.rows - 1) * m.stride + m.cols), written);
  }

  Leaf leaf_;
  std::tuple<std::deque<std::vector<LinearView>>, std::deque<std::vector<LinearOutput>>,
             std::deque<std::vector<LinearGradient>>>
      copies_;
};

class TransferBackend final : public BackendDecorator {
 public:
  explicit TransferBackend(std::unique_ptr<Backend> backend)
      : BackendDecorator(*backend), backend_(std::move(backend)) {}

  Memory& memory() const override { return HostMemory(); }
  const void* Adopt(const void* host, std::size_t, WeightUse, Carver&) override { return host; }
  std::size_t PrepackedBytes(const QuantizedView&) const override { return 0; }
  void Prepack(const QuantizedView&, std::byte*) override { RefuseToPrepack(); }

 private:
  QuantizedView DoQuantize(const ConstMatrixView&, const QuantizeOptions&,
                           const MatrixView&) override {
    ThrowRuntime("transfer backend: weights are quantized by the backend behind it");
  }
  void DoRun(const Op& op) override {
    MovedOperands operands(inner().memory());
    Op moved = op;
    OperandPointers add([&](const auto* data, std::size_t bytes, bool written) {
      operands.Add(data, bytes, written);
    });
    add.Visit(moved);
    operands.Upload();
    OperandPointers move([&]<typename T>(T*& data, std::size_t bytes, bool) {
      if (bytes > 0) data = static_cast<T*>(operands.Moved(data));
    });
    move.Visit(moved);
    inner().Run(moved);
    operands.Download();
  }

  std::unique_ptr<Backend> backend_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_CUDA_TRANSFER_BACKEND_H_
