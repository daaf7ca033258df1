#include "backend/backend_factory.h"

#include <fmt/ranges.h>

#include <utility>

#include "base/check.h"
#include "machine/card_choice.h"
#include "machine/simd_target.h"
#include "qlora/communicator.h"

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
  std::string Absence() const override { return ""; }
  std::unique_ptr<Backend> Make(Context& context, DType compute) const override {
    return MakeCpuBackend(context, compute);
  }
};

// absence: why there is no GPU, or empty.
class CudaBackends final : public BackendFactory {
 public:
  explicit CudaBackends(std::string absence) : absence_(std::move(absence)) {}

  DType PreferredActivation() const override { return DType::kBF16; }
  std::string Absence() const override { return absence_; }
  std::unique_ptr<Backend> Make(Context& context, DType compute) const override {
    return absence_.empty() ? MakeCudaBackend(context, compute) : MakeAbsentCudaBackend(compute);
  }

 private:
  std::string absence_;
};

// "auto" is the CPU until the CUDA backend has been verified on a GPU, that is, until docs/gpu has
// a receipt. The options "device" and docs/cards.md say so, too.
bool IsCuda(const std::string& device) {
  if (device == "auto" || device == "cpu") return false;
  if (device == "cuda") return true;
  ThrowInvalidInput("device expects {}, found '{}'", fmt::join(DeviceNames(), ", "), device);
}

}  // namespace

std::vector<std::string> DeviceNames() { return {"auto", "cpu", "cuda"}; }

BackendFactory::Ptr BackendFactory::Of(const std::string& device) {
  if (!IsCuda(device)) return std::make_shared<CpuBackends>();
  // Without this check the first call of the driver would fail later, in the middle of a run, with
  // an error that names no remedy.
  const CudaReport cuda = DescribeCuda();
  if (!cuda.problem.empty()) {
    throw Error(cuda.code,
                fmt::format("device cuda: {}; run on the CPU with device cpu", cuda.problem));
  }
  return std::make_shared<CudaBackends>("");
}

BackendFactory::Ptr BackendFactory::ForJob(const Context& context, const std::string& device) {
  if (context.backends_) return context.backends_;
  if (IsCuda(device) && !context.communicator().is_alone()) ChooseCard(context.communicator());
  return Of(device);
}

BackendFactory::Ptr BackendFactory::ForPlan(const Context& context, const std::string& device) {
  if (context.backends_ || !IsCuda(device)) return ForJob(context, device);
  return std::make_shared<CudaBackends>(DescribeCuda().problem);
}

void BackendFactory::GiveTo(Context& context, Ptr factory) {
  context.backends_ = std::move(factory);
}

}  // namespace qlora
