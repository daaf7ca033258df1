// A GPU quantizes and decodes a large weight as the CPU does. The speed of decoding, compared with
// a copy, is recorded as properties of the test, which scripts/gpu_receipt.py reads. A model of a
// GPU runs it on a small weight.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels.h"
#include "base/arena.h"
#include "base/stopwatch.h"
#include "cuda/test_device.h"
#include "quant/layout.h"

namespace qlora::testing_util {
namespace {

// Seconds of one of many calls in a row, the first of which warms up.
double SecondsOf(cuda::Runtime& runtime, const std::function<void()>& queue) {
  constexpr int kCalls = 20;
  queue();
  runtime.Synchronize();
  const Stopwatch watch;
  for (int call = 0; call < kCalls; ++call) queue();
  runtime.Synchronize();
  return watch.seconds() / kCalls;
}

TEST(CudaDecodeSpeed, ALargeWeightHasTheBitsOfTheCpu) {
  const std::int64_t size = AllocatedBytes() ? 128 : 8192;  // more than the caches of a GPU hold
  Context context(1);
  const std::shared_ptr<cuda::Device> device = MakeTestDevice(1);
  const auto backend = cuda::MakeBackendOn(context, device, DType::kBF16);
  std::vector<float> values(size * size);
  for (std::int64_t i = 0; i < size * size; ++i) {
    values[i] = static_cast<float>(i % 997) / 997 - 0.5f;
  }
  const QuantizeOptions options;
  const auto layout = [&](Carver& carver) {
    return std::vector<MatrixView>{
        carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(StorageBytes(size, size, options))),
        carver.Matrix(DType::kBF16, size, size), carver.Matrix(DType::kBF16, size, size)};
  };
  Carver plan;
  layout(plan);
  Arena arena(plan.bytes(), device->memory());
  Carver carver(arena);
  const std::vector<MatrixView> m = layout(carver);
  const QuantizedView q = backend->Quantize(MakeView(values.data(), size, size), options, m[0]);

  const cuda::WeightPart part = {.weight = q, .out = m[1]};
  cuda::Runtime& runtime = device->runtime();
  const double decode = SecondsOf(runtime, [&] { cuda::DecodeWeight(runtime.stream(), part); });
  const double copy = SecondsOf(runtime, [&] { backend->Run(ops::Copy{m[1], m[2]}); });

  const std::size_t out = BytesOf(DType::kBF16, size * size);
  const ConstMatrixView dense = MakeView(std::as_const(values).data(), size, size);
  std::vector<std::byte> expected(out);
  Dequantize(context, Quantize(context, dense, options).view(),
             {expected.data(), DType::kBF16, size, size, size});
  std::vector<std::byte> found(out);
  for (const MatrixView& decoded : {m[1], m[2]}) {
    device->memory().Download(decoded.data, found.data(), out);
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), out), 0);
  }

  const auto record = [](const char* name, std::size_t bytes, double seconds) {
    RecordProperty(name, std::to_string(static_cast<double>(bytes) / seconds / 1e9));
  };
  record("decode_nf4_to_bf16_gigabytes_per_second",
         out + PackedBytes(q.size()) + q.blocks() * ScaleBytes(q.scale_type), decode);
  record("copy_gigabytes_per_second", 2 * out, copy);
}

}  // namespace
}  // namespace qlora::testing_util
