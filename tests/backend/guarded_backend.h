// The CPU backend behind the contract of a device: its memory is that of guarded_memory.h, frozen
// weights are copied into it, and an op refuses operands that are elsewhere. What runs on it
// touches nothing that a backend owns, except through ops and transfers.
#ifndef QLORA_TESTS_BACKEND_GUARDED_BACKEND_H_
#define QLORA_TESTS_BACKEND_GUARDED_BACKEND_H_

#include <map>
#include <memory>
#include <utility>

#include "backend/backend_decorator.h"
#include "backend/context_on.h"
#include "backend/guarded_memory.h"
#include "backend/op_operands.h"
#include "base/check.h"

namespace qlora {

class GuardedBackend final : public BackendDecorator {
 public:
  GuardedBackend(std::unique_ptr<Backend> cpu, std::shared_ptr<GuardedMemory> memory)
      : BackendDecorator(*cpu), cpu_(std::move(cpu)), memory_(std::move(memory)) {}

  Memory& memory() const override { return *memory_; }
  const void* Adopt(const void* host, std::size_t bytes, WeightUse, Carver& carver) override {
    void* copy = carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes)).data;
    if (copy != nullptr) memory_->Upload(host, copy, bytes);
    return copy;
  }
  std::size_t PrepackedBytes(const WeightView& weight) const override {
    const GuardedMemory::Access access(*memory_);
    return inner().PrepackedBytes(weight);
  }
  void Prepack(const WeightView& weight, std::byte* out) override {
    memory_->CheckInside("the room for a prepacked weight", out, PrepackedBytes(weight));
    const GuardedMemory::Access access(*memory_);
    inner().Prepack(weight, out);
  }

 private:
  // The codebooks of the view are in the memory of the process; their copies live as long as this.
  QuantizedView DoQuantize(const ConstMatrixView& host, const QuantizeOptions& options,
                           const MatrixView& storage) override {
    memory_->CheckOutside("the weight to quantize", host.data,
                          BytesOf(host.dtype, host.rows * host.cols));
    memory_->CheckInside("the storage of a weight", storage.data,
                         BytesOf(storage.dtype, storage.cols));
    const GuardedMemory::Access access(*memory_);
    QuantizedView view = inner().Quantize(host, options, storage);
    view.code = Table<16>(view.code);
    if (view.nested.map != nullptr) view.nested.map = Table<256>(view.nested.map);
    return view;
  }
  void DoRun(const Op& op) override {
    const char* name = std::visit([](const auto& any) { return any.kName; }, op);
    OperandVisitor visitor(
        [&](const void* data, std::size_t bytes) { memory_->CheckInside(name, data, bytes); });
    visitor.Visit(op);
    const GuardedMemory::Access access(*memory_);
    inner().Run(op);
  }

  template <std::size_t kSize>
  const float* Table(const float* host) {
    auto& tables = tables_[host];
    if (tables.bytes() == 0) {
      tables = Arena(kSize * sizeof(float), *memory_);
      memory_->Upload(host, tables.data(), tables.bytes());
    }
    return static_cast<const float*>(static_cast<const void*>(tables.data()));
  }

  std::unique_ptr<Backend> cpu_;
  std::shared_ptr<GuardedMemory> memory_;
  std::map<const float*, Arena> tables_;
};

// Guarded backends that share one memory, around the backends that compute.
inline BackendFactory::Ptr GuardedBackends(
    BackendFactory::Ptr computing = BackendFactory::Of("cpu")) {
  return BackendsBy([computing = std::move(computing), memory = std::make_shared<GuardedMemory>()](
                        Context& context, const Compute& compute) {
    return std::make_unique<GuardedBackend>(computing->Make(context, compute), memory);
  });
}

}  // namespace qlora

#endif  // QLORA_TESTS_BACKEND_GUARDED_BACKEND_H_
