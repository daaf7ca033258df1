// A backend with an order of its own for 4-bit weights that generate, on every processor: the bytes
// of the values backwards. Each weight that arrives in this order must be the weight that stands
// beside it; then another backend runs the op with the weight as it is stored.
#ifndef QLORA_TESTS_BACKEND_PREPACKING_BACKEND_H_
#define QLORA_TESTS_BACKEND_PREPACKING_BACKEND_H_

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "backend/backend_decorator.h"
#include "backend/guarded_backend.h"
#include "base/check.h"
#include "quant/layout.h"

namespace qlora {

// The number of weights that were brought into the order, and that were read in it.
struct PrepackCounts {
  std::int64_t packed = 0;
  std::int64_t read = 0;
};

class PrepackingBackend final : public BackendDecorator {
 public:
  PrepackingBackend(std::unique_ptr<Backend> other, PrepackCounts& counts)
      : BackendDecorator(*other), other_(std::move(other)), counts_(counts) {}

  std::size_t PrepackedBytes(const WeightView& weight) const override {
    return PackedBytes(weight.quantized.size());
  }
  void Prepack(const WeightView& weight, std::byte* out) override {
    ++counts_.packed;
    std::ranges::reverse_copy(ValuesOf(weight.quantized), out);
  }

 private:
  static std::span<const std::byte> ValuesOf(const QuantizedView& q) {
    return std::as_bytes(std::span(q.packed, PackedBytes(q.size())));
  }

  // The linears as they are stored.
  std::vector<LinearView> Stored(std::span<const LinearView> linears) {
    std::vector<LinearView> stored(linears.begin(), linears.end());
    for (LinearView& linear : stored) {
      const std::byte* found = std::exchange(linear.weight.prepacked, nullptr);
      if (found == nullptr) continue;
      ++counts_.read;
      const std::span<const std::byte> values = ValuesOf(linear.weight.quantized);
      if (!std::equal(values.rbegin(), values.rend(), found)) {
        ThrowRuntime("a prepacked weight is not the weight beside it");
      }
    }
    return stored;
  }

  void DoRun(const Op& op) override {
    const auto run = [this](auto any) {
      std::vector<LinearView> stored;
      if constexpr (requires { any.linears; }) {
        stored = Stored(any.linears);
        any.linears = stored;
      }
      inner().Run(any);
    };
    std::visit(run, op);
  }

  std::unique_ptr<Backend> other_;
  PrepackCounts& counts_;
};

// The backend of the processor without an order of its own for weights that generate. The order of
// a weight decides the order of sums, so that results of this one are those of PrepackingBackend.
class StoredOrderBackend final : public BackendDecorator {
 public:
  explicit StoredOrderBackend(std::unique_ptr<Backend> other)
      : BackendDecorator(*other), other_(std::move(other)) {}

  std::size_t PrepackedBytes(const WeightView&) const override { return 0; }

 private:
  std::unique_ptr<Backend> other_;
};

inline BackendFactory::Ptr StoredOrderBackends() {
  return BackendsBy([](Context& context, const Compute& compute) {
    return std::make_unique<StoredOrderBackend>(MakeCpuBackend(context, compute));
  });
}

// Guarded backends whose weights are prepacked. They count in `counts`, which must outlive them.
inline BackendFactory::Ptr PrepackingBackends(PrepackCounts& counts) {
  return GuardedBackends(BackendsBy([&counts](Context& context, const Compute& compute) {
    return std::make_unique<PrepackingBackend>(MakeCpuBackend(context, compute), counts);
  }));
}

}  // namespace qlora

#endif  // QLORA_TESTS_BACKEND_PREPACKING_BACKEND_H_
