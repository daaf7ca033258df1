// A backend that wraps another one: every call goes on to the inner backend unless a subclass
// overrides it. A wrapper such as bench/timed_backend.h sees all ops in one function, DoRun. Every
// virtual function of Backend is pure, so that this class cannot miss one.
#ifndef QLORA_BACKEND_BACKEND_DECORATOR_H_
#define QLORA_BACKEND_BACKEND_DECORATOR_H_

#include <cstddef>

#include "backend/backend.h"

namespace qlora {

class BackendDecorator : public Backend {
 public:
  // inner must outlive this.
  explicit BackendDecorator(Backend& inner) : inner_(inner) {}

  Memory& memory() const override { return inner_.memory(); }
  std::size_t WorkspaceBytes(const BackendLimits& limits) const override {
    return inner_.WorkspaceBytes(limits);
  }
  void Reserve(const BackendLimits& limits) override { inner_.Reserve(limits); }
  const void* Adopt(const void* host, std::size_t bytes, WeightUse use, Carver& carver) override {
    return inner_.Adopt(host, bytes, use, carver);
  }
  std::size_t PrepackedBytes(const WeightView& weight) const override {
    return inner_.PrepackedBytes(weight);
  }
  void Prepack(const WeightView& weight, std::byte* out) override { inner_.Prepack(weight, out); }

 protected:
  Backend& inner() const { return inner_; }

 private:
  void DoRun(const Op& op) override { inner_.Run(op); }
  QuantizedView DoQuantize(const ConstMatrixView& host, const QuantizeOptions& options,
                           const MatrixView& storage) override {
    return inner_.Quantize(host, options, storage);
  }

  Backend& inner_;
};

}  // namespace qlora

#endif  // QLORA_BACKEND_BACKEND_DECORATOR_H_
