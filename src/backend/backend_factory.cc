#include "backend/backend_factory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "machine/simd_target.h"

namespace qlora {
namespace {

class CpuBackends final : public BackendFactory {
 public:
  // bfloat16 activations pay only where the processor multiplies pairs of bfloat16: elsewhere each
  // operand would be widened to float32 first, which costs time and precision and saves only
  // memory.
  DType PreferredActivation() const override {
    return ActiveSimdTarget() == SimdTarget::kAvx512Bf16 ? DType::kBF16 : DType::kF32;
  }
  std::unique_ptr<Backend> Make(Context& context, DType compute) const override {
    return MakeCpuBackend(context, compute);
  }
};

}  // namespace

std::vector<std::string> DeviceNames() { return {"auto", "cpu"}; }

BackendFactory::Ptr BackendFactory::Of(const std::string& device) {
  const std::vector<std::string> names = DeviceNames();
  if (std::ranges::find(names, device) == names.end()) {
    ThrowInvalidInput("device expects {}, found '{}'; {}", fmt::join(names, ", "), device,
                      kWhyOneDevice);
  }
  return std::make_shared<CpuBackends>();
}

BackendFactory::Ptr BackendFactory::ForJob(const Context& context, const std::string& device) {
  return context.backends_ ? context.backends_ : Of(device);
}

void BackendFactory::GiveTo(Context& context, Ptr factory) {
  context.backends_ = std::move(factory);
}

}  // namespace qlora
