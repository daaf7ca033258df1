#include "machine/simd_target.h"

#include <fmt/format.h>
#include <hwy/targets.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "machine/processor.h"

namespace qlora {
namespace {

constexpr SimdTarget kTargets[] = {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512,
                                   SimdTarget::kAvx512Bf16, SimdTarget::kAmx};

// Returns the targets of Highway that this one permits. Better targets have lower bits.
std::int64_t HighwayTargets(SimdTarget target) {
  switch (target) {
    case SimdTarget::kScalar:
      return HWY_SCALAR | HWY_EMU128;
    case SimdTarget::kAvx2:
      return ~(HWY_AVX2 - 1);
    default:
      return ~std::int64_t{0};
  }
}

// Returns the target that QLORA_TARGET names, or the best one. Errors: InvalidInput for an unknown
// name, or for a target that this machine lacks.
SimdTarget FromEnvironment() {
  const char* value = std::getenv("QLORA_TARGET");
  if (value == nullptr || *value == '\0') return BestSimdTarget();
  const SimdTarget most = SimdTargets().back();
  for (const SimdTarget target : kTargets) {
    if (std::string_view(value) != NameOf(target)) continue;
    if (target > most) {
      ThrowInvalidInput("QLORA_TARGET: this machine has at most {}, found {}", NameOf(most), value);
    }
    return target;
  }
  ThrowInvalidInput("QLORA_TARGET: expected scalar, avx2, avx512, avx512bf16 or amx, found '{}'",
                    value);
}

// The target is decided on the first call, once for the process, together with Highway's own
// dispatch.
std::atomic<SimdTarget>& Active() {
  static std::atomic<SimdTarget> active = [] {
    const SimdTarget target = FromEnvironment();
    hwy::DisableTargets(~HighwayTargets(target));
    return target;
  }();
  return active;
}

}  // namespace

const char* NameOf(SimdTarget target) {
  constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};
  return kNames[static_cast<int>(target)];
}

std::span<const SimdTarget> SimdTargets() {
  // kTargets is ascending, so the targets of a machine are its beginning.
  static const SimdTarget most = [] {
    const std::int64_t targets = hwy::SupportedTargets();
    if ((targets & HWY_AVX3) != 0) {
      if (!HasBfloat16Dots()) return SimdTarget::kAvx512;
      return HasBfloat16Tiles() ? SimdTarget::kAmx : SimdTarget::kAvx512Bf16;
    }
    return (targets & HWY_AVX2) != 0 ? SimdTarget::kAvx2 : SimdTarget::kScalar;
  }();
  return std::span(kTargets).first(static_cast<std::size_t>(most) + 1);
}

SimdTarget BestSimdTarget() {
  const SimdTarget most = SimdTargets().back();
  return most == SimdTarget::kAvx512Bf16 && HasSlowBfloat16Dots() ? SimdTarget::kAvx512 : most;
}

SimdTarget ActiveSimdTarget() { return Active().load(std::memory_order_relaxed); }

std::string WarnOfScalarKernels() {
  if (!HWY_ARCH_X86 || ActiveSimdTarget() != SimdTarget::kScalar) return "";
  const char* reason = BestSimdTarget() == SimdTarget::kScalar ? "this processor has no AVX2"
                                                               : "QLORA_TARGET forces them";
  return fmt::format("the kernels are scalar, more than ten times slower than those for AVX2: {}",
                     reason);
}

void SetSimdTarget(SimdTarget target) {
  QLORA_DCHECK(target <= SimdTargets().back());
  Active().store(target, std::memory_order_relaxed);
  hwy::SetSupportedTargetsForTest(0);
  hwy::DisableTargets(~HighwayTargets(target));
}

}  // namespace qlora
