#include "backend/backend_factory.h"

#include <utility>

#include "machine/simd_target.h"

namespace qlora {
namespace {

class CpuBackends final : public BackendFactory {
 public:
  // bfloat16 activations pay only where the processor multiplies pairs of bfloat16 fast, as
  // we know of x86-64 alone: elsewhere each
  // operand would be widened to float32 first, which costs time and precision and saves only
  // memory.
  DType PreferredActivation() const override {
    const SimdTarget target = ActiveSimdTarget();
    const bool is_fast = target == SimdTarget::kAvx512Bf16 || target == SimdTarget::kAmx;
    return is_fast ? DType::kBF16 : DType::kF32;
  }
  std::unique_ptr<Backend> Make(Context& context, const Compute& compute) const override {
    return MakeCpuBackend(context, compute);
  }
};

}  // namespace

void DeclareDevice(OptionTable& table, std::string* device) {
  table.Choice("device", device, {"auto", "cpu"}, "compute device: the CPU, also for auto").hint =
      "qlora computes on the CPU";
}

BackendFactory::Ptr BackendFactory::Of(const std::string& device) {
  std::string name;
  OptionTable table;
  DeclareDevice(table, &name);
  table.Set("device", device, "options");
  return std::make_shared<CpuBackends>();
}

BackendFactory::Ptr BackendFactory::ForJob(const Context& context, const std::string& device) {
  return context.backends_ ? context.backends_ : Of(device);
}

void BackendFactory::GiveTo(Context& context, Ptr factory) {
  context.backends_ = std::move(factory);
}

}  // namespace qlora
