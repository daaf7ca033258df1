// A Context whose jobs compute on backends that a test makes.
#ifndef QLORA_TESTS_BACKEND_CONTEXT_ON_H_
#define QLORA_TESTS_BACKEND_CONTEXT_ON_H_

#include <memory>
#include <string>
#include <utility>

#include "backend/backend_factory.h"

namespace qlora {

class ContextOn : public Context {
 public:
  ContextOn(BackendFactory::Ptr backends, int threads) : Context(threads) {
    BackendFactory::GiveTo(*this, std::move(backends));
  }
};

// The factory of backends that `make` makes; their preferences are those of the CPU, so that jobs
// of both can be compared.
template <typename MakeFn>
BackendFactory::Ptr BackendsBy(MakeFn make) {
  class Backends final : public BackendFactory {
   public:
    explicit Backends(MakeFn make) : make_(std::move(make)) {}
    DType PreferredActivation() const override { return cpu_->PreferredActivation(); }
    std::unique_ptr<Backend> Make(Context& context, const Compute& compute) const override {
      return make_(context, compute);
    }

   private:
    MakeFn make_;
    Ptr cpu_ = Of("cpu");
  };
  return std::make_shared<Backends>(std::move(make));
}

}  // namespace qlora

#endif  // QLORA_TESTS_BACKEND_CONTEXT_ON_H_
