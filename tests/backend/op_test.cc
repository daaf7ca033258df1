// Every op of every backend against the reference backend in float64: the CPU backend in both
// compute types and on every instruction set of this machine, and the reference backend in float32.
#include "backend/op_cases.h"
#include "backend/op_cases_recurrent.h"
#include "backend/op_cases_sinks.h"
#include "machine/simd_target.h"

namespace qlora::testing_util {
namespace {

std::unique_ptr<Backend> MakeOn(SimdTarget target, DType compute) {
  static Context context(2);
  SetSimdTarget(target);
  return MakeCpuBackend(context, compute);
}

std::vector<BackendUnderTest> Backends() {
  std::vector<BackendUnderTest> backends;
  for (const SimdTarget target : SimdTargets()) {
    const auto add = [&](const std::string& suffix, DType activation, DType compute) {
      backends.push_back({.name = NameOf(target) + suffix,
                          .make = [=] { return MakeOn(target, compute); },
                          .precision = {activation, DType::kF32},
                          .compute = compute});
    };
    // These differ from the target before in the products of bfloat16 and of bytes only.
    if (!MultipliesBfloat16(target) && target != SimdTarget::kNeonDot)
      add("_f32", DType::kF32, DType::kF32);
    add("_bf16", DType::kBF16, DType::kBF16);
    add("_f32_activations_bf16_products", DType::kF32, DType::kBF16);
  }
  return backends;
}

const BackendUnderTest kReference = {.name = "f32",
                                     .make = [] { return MakeReferenceBackend(); },
                                     .precision = {DType::kF32, DType::kF32},
                                     .compute = DType::kF32};

INSTANTIATE_TEST_SUITE_P(Reference, OpTest, testing::Values(kReference), NameOfParam);
INSTANTIATE_TEST_SUITE_P(Cpu, OpTest, testing::ValuesIn(Backends()), NameOfParam);
INSTANTIATE_TEST_SUITE_P(Reference, RecurrentTest, testing::Values(kReference), NameOfParam);
INSTANTIATE_TEST_SUITE_P(Cpu, RecurrentTest, testing::ValuesIn(Backends()), NameOfParam);

}  // namespace
}  // namespace qlora::testing_util
