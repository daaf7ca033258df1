#include "machine/simd_target.h"

#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>

#include "base/check.h"
#include "machine/processor.h"

namespace qlora {
namespace {

#if HWY_ARCH_X86
constexpr SimdTarget kTargets[] = {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512,
                                   SimdTarget::kAvx512Bf16, SimdTarget::kAmx};
#else
constexpr SimdTarget kTargets[] = {SimdTarget::kScalar, SimdTarget::kNeonDot,
                                   SimdTarget::kNeonMatrix};
#endif

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

// Whether this machine has a target, if it has those before.
bool IsHere(SimdTarget target) {
  switch (target) {
    case SimdTarget::kScalar:
      return true;
    case SimdTarget::kAvx2:
      return (hwy::SupportedTargets() & HWY_AVX2) != 0;
    case SimdTarget::kAvx512:
      return (hwy::SupportedTargets() & HWY_AVX3) != 0;
    case SimdTarget::kAvx512Bf16:
      return HasBfloat16Dots();
    case SimdTarget::kAmx:
      return HasBfloat16Tiles();
    case SimdTarget::kNeonDot:
      return HasNeonDots();
    case SimdTarget::kNeonMatrix:
      return HasNeonMatrices();
  }
  return false;
}

// From the fastest on.
constexpr Int8Dots kInt8Dots[] = {Int8Dots::kAmx,    Int8Dots::kVnni, Int8Dots::kMadd,
                                  Int8Dots::kUsmmla, Int8Dots::kSdot, Int8Dots::kFloat};

// QLORA_TARGET is TARGET or TARGET+DOTS.
struct Names {
  std::string_view target;
  std::string_view dots;
};
Names NamesOfEnvironment() {
  const char* value = std::getenv("QLORA_TARGET");
  const std::string_view all = value == nullptr ? "" : value;
  const std::size_t plus = all.find('+');
  return {all.substr(0, plus), plus == all.npos ? "" : all.substr(plus + 1)};
}

// The place in kInt8Dots of what QLORA_TARGET names, or the first one. Errors: InvalidInput for an
// unknown name.
const Int8Dots* FirstDots() {
  const std::string_view name = NamesOfEnvironment().dots;
  if (name.empty()) return kInt8Dots;
  const auto* named = std::ranges::find(
      kInt8Dots, name, [](Int8Dots dots) { return std::string_view(NameOf(dots)); });
  if (named == std::end(kInt8Dots)) {
    ThrowInvalidInput("QLORA_TARGET: expected {} behind the plus, found '{}'",
                      HWY_ARCH_X86 ? "amx, vnni, madd or float" : "usmmla, sdot or float", name);
  }
  return named;
}

// Returns the target that QLORA_TARGET names, or the best one. Errors: InvalidInput for an unknown
// name, or for a target that this machine lacks.
SimdTarget FromEnvironment() {
  FirstDots();
  const std::string_view value = NamesOfEnvironment().target;
  if (value.empty()) return BestSimdTarget();
  const SimdTarget most = SimdTargets().back();
  std::string names;
  for (const SimdTarget target : kTargets) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", NameOf(target));
    if (value != NameOf(target)) continue;
    if (target > most) {
      ThrowInvalidInput("QLORA_TARGET: this machine has at most {}, found {}", NameOf(most), value);
    }
    return target;
  }
  ThrowInvalidInput("QLORA_TARGET: expected one of {}, found '{}'", names, value);
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
  constexpr const char* kNames[] = {HWY_ARCH_ARM_A64 ? "neon" : "scalar",
                                    "avx2",
                                    "avx512",
                                    "avx512bf16",
                                    "amx",
                                    "neondot",
                                    "neonmatrix"};
  return kNames[static_cast<int>(target)];
}

std::span<const SimdTarget> SimdTargets() {
  // kTargets is ascending, so the targets of a machine are its beginning.
  static const auto count = std::ranges::find_if_not(kTargets, IsHere) - std::begin(kTargets);
  return std::span(kTargets).first(static_cast<std::size_t>(count));
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

const char* NameOf(Int8Dots dots) {
  constexpr const char* kNames[] = {"float", "madd", "vnni", "amx", "sdot", "usmmla"};
  return kNames[static_cast<int>(dots)];
}

bool HasInt8Dots(SimdTarget target, Int8Dots dots) {
  switch (dots) {
    case Int8Dots::kAmx:
      // Few rows are multiplied by vpdpbusd.
      return target >= SimdTarget::kAvx512 && HasInt8Tiles() && HasZmmVnni();
    case Int8Dots::kVnni:
      return target >= SimdTarget::kAvx512 ? HasZmmVnni()
                                           : target == SimdTarget::kAvx2 && HasYmmVnni();
    case Int8Dots::kMadd:
      return HWY_ARCH_X86 && target >= SimdTarget::kAvx2;
    case Int8Dots::kSdot:
      return target >= SimdTarget::kNeonDot;
    case Int8Dots::kUsmmla:
      return target >= SimdTarget::kNeonMatrix;
    case Int8Dots::kFloat:
      break;
  }
  return true;
}

Int8Dots ActiveInt8Dots() {
  const SimdTarget target = ActiveSimdTarget();
  return *std::find_if(FirstDots(), std::end(kInt8Dots),
                       [&](Int8Dots dots) { return HasInt8Dots(target, dots); });
}

void SetSimdTarget(SimdTarget target) {
  QLORA_DCHECK(std::ranges::count(SimdTargets(), target) == 1);
  Active().store(target, std::memory_order_relaxed);
  hwy::SetSupportedTargetsForTest(0);
  hwy::DisableTargets(~HighwayTargets(target));
}

}  // namespace qlora
