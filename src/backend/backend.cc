#include "backend/backend.h"

#include <algorithm>

#include "backend/checker.h"
#include "base/check.h"
#include "machine/simd_target.h"

namespace qlora {

std::vector<std::string> DeviceNames() { return {"auto", "cpu", "cuda"}; }

Device ParsePlannedDevice(const std::string& name) {
  // "auto" is the CPU until the CUDA backend has been verified on a GPU, that is, until docs/gpu
  // has a receipt. The options "device" and docs/cards.md say so, too.
  if (name == "auto" || name == "cpu") return Device::kCpu;
  // This machine is not looked at: plans for a GPU are also made on machines without one.
  if (name != "cuda") ThrowInvalidInput("device expects auto, cpu or cuda, found '{}'", name);
  return Device::kCuda;
}

Device ParseDevice(const std::string& name) {
  const Device device = ParsePlannedDevice(name);
  if (device == Device::kCpu) return device;
  // Without this check the first call of the driver would fail later, in the middle of a run, with
  // an error that names no remedy.
  const CudaReport cuda = DescribeCuda();
  if (!cuda.problem.empty()) {
    throw Error(cuda.code,
                fmt::format("device cuda: {}; run on the CPU with device cpu", cuda.problem));
  }
  return device;
}

DType PreferredActivation(Device device) {
  switch (device) {
    case Device::kCpu:
      // bfloat16 activations pay only where the processor multiplies pairs of bfloat16: elsewhere
      // each operand would be widened to float32 first, which costs time and precision and saves
      // only memory.
      return ActiveSimdTarget() == SimdTarget::kAvx512Bf16 ? DType::kBF16 : DType::kF32;
    case Device::kCuda:
      return DType::kBF16;
  }
  return DType::kF32;
}

std::unique_ptr<Backend> MakeBackend(Context& context, Device device, DType compute) {
  switch (device) {
    case Device::kCpu:
      return MakeCpuBackend(context, compute);
    case Device::kCuda:
      return MakeCudaBackend(context, compute);
  }
  ThrowInvalidInput("device expects {} (cpu) or {} (cuda), found {}",
                    static_cast<int>(Device::kCpu), static_cast<int>(Device::kCuda),
                    static_cast<int>(device));
}

BackendMaker BackendsOf(Device device) {
  return
      [device](Context& context, DType compute) { return MakeBackend(context, device, compute); };
}

BackendMaker PlannedBackendsOf(Device device) {
  if (device == Device::kCpu || DescribeCuda().problem.empty()) return BackendsOf(device);
  return [](Context&, DType compute) { return MakeAbsentCudaBackend(compute); };
}

QuantizedView Backend::Quantize(const ConstMatrixView& host, const QuantizeOptions& options,
                                const MatrixView& storage) {
  const Checker check("Quantize");
  check.Bytes("storage", storage, 1,
              static_cast<std::int64_t>(StorageBytes(host.rows, host.cols, options)));
  check.Apart("storage", storage, "the weight", host);
  return DoQuantize(host, options, storage);
}

std::int64_t RowsOfLogits(std::int64_t bytes, std::int64_t vocab) {
  return std::max<std::int64_t>(64, bytes / (vocab * 4) / 64 * 64);
}

void RefuseToPrepack() { ThrowRuntime("Prepack: this backend prepacks no weights"); }
void RefuseToReplay() { ThrowRuntime("Replay: this backend captures no ops"); }

void CheckIndices(const char* what, std::span<const std::int32_t> indices, std::int64_t count) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && indices[i] < count) continue;
    ThrowRuntime("{}: expected values in [0, {}), found {} at index {} (a bug of the caller)", what,
                 count, indices[i], i);
  }
}

double ReadSumOfSquares(Backend& backend, const ConstMatrixView& x, const MatrixView& sum) {
  backend.Run(ops::SumOfSquares{x, sum});
  return Download<double>(backend.memory(), sum)[0];
}

}  // namespace qlora
