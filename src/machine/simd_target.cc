#include "machine/simd_target.h"

#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "machine/processor.h"

namespace qlora {
namespace {

#if HWY_ARCH_X86
constexpr SimdTarget kTargets[] = {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512,
                                   SimdTarget::kAvx512Bf16, SimdTarget::kAmx};
constexpr Int8Dots kInt8Dots[] = {Int8Dots::kFloat, Int8Dots::kMadd, Int8Dots::kVnni,
                                  Int8Dots::kAmx};
#else
constexpr SimdTarget kTargets[] = {SimdTarget::kScalar, SimdTarget::kNeonDot,
                                   SimdTarget::kNeonMatrix};
constexpr Int8Dots kInt8Dots[] = {Int8Dots::kFloat, Int8Dots::kSdot, Int8Dots::kUsmmla};
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

// True where this machine has the instructions and `target` may use them.
bool HasInt8Dots(SimdTarget target, Int8Dots dots) {
  switch (dots) {
    case Int8Dots::kAmx:
      // Few rows are multiplied by vpdpbusd.
      return target >= SimdTarget::kAvx512 && HasInt8Tiles() && HasZmmVnni();
    case Int8Dots::kVnni:
      return target >= SimdTarget::kAvx512 ? HasZmmVnni()
                                           : target == SimdTarget::kAvx2 && HasYmmVnni();
    case Int8Dots::kMadd:
      return target >= SimdTarget::kAvx2;
    case Int8Dots::kSdot:
      return target >= SimdTarget::kNeonDot;
    case Int8Dots::kUsmmla:
      return target >= SimdTarget::kNeonMatrix;
    case Int8Dots::kFloat:
      break;
  }
  return true;
}

// The kernels that are chosen: by QLORA_TARGET on the first call, once for the process, together
// with Highway's own dispatch.
std::atomic<SimdKernels>& Active() {
  static std::atomic<SimdKernels> active = [] {
    const char* name = std::getenv("QLORA_TARGET");
    const SimdKernels kernels = ParseSimdKernels(name == nullptr ? "" : name);
    hwy::DisableTargets(~HighwayTargets(kernels.target));
    return kernels;
  }();
  return active;
}

// The target or the instructions of this name. Errors: InvalidInput for an unknown one.
template <typename Named, std::size_t kCount>
Named FindNamed(const Named (&all)[kCount], std::string_view name, const char* where) {
  std::string names;
  for (const Named one : all) {
    if (name == NameOf(one)) return one;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", NameOf(one));
  }
  ThrowInvalidInput("QLORA_TARGET: expected one of {}{}, found '{}'", names, where, name);
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

SimdTarget ActiveSimdTarget() { return Active().load(std::memory_order_relaxed).target; }

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

std::vector<Int8Dots> Int8DotsOf(SimdTarget target) {
  std::vector<Int8Dots> dots;
  std::ranges::copy_if(kInt8Dots, std::back_inserter(dots),
                       [&](Int8Dots d) { return HasInt8Dots(target, d); });
  return dots;
}

SimdKernels ParseSimdKernels(std::string_view text) {
  const std::size_t plus = text.find('+');
  const std::string_view name = text.substr(0, plus);
  const SimdTarget target = name.empty() ? BestSimdTarget() : FindNamed(kTargets, name, "");
  if (target > SimdTargets().back()) {
    ThrowInvalidInput("QLORA_TARGET: this machine has at most {}, found {}",
                      NameOf(SimdTargets().back()), name);
  }
  const Int8Dots best = Int8DotsOf(target).back();
  if (plus == text.npos) return {target, best};
  const Int8Dots dots = FindNamed(kInt8Dots, text.substr(plus + 1), " behind the plus");
  if (!HasInt8Dots(target, dots)) {
    ThrowInvalidInput("QLORA_TARGET: {} has at most +{} on this machine, found {}", NameOf(target),
                      NameOf(best), text);
  }
  return {target, dots};
}

Int8Dots ActiveInt8Dots() { return Active().load(std::memory_order_relaxed).int8; }

void SetSimdKernels(SimdKernels kernels) {
  QLORA_DCHECK(std::ranges::count(SimdTargets(), kernels.target) == 1 &&
               HasInt8Dots(kernels.target, kernels.int8));
  Active().store(kernels, std::memory_order_relaxed);
  hwy::SetSupportedTargetsForTest(0);
  hwy::DisableTargets(~HighwayTargets(kernels.target));
}

void SetSimdTarget(SimdTarget target) { SetSimdKernels({target, Int8DotsOf(target).back()}); }

}  // namespace qlora
