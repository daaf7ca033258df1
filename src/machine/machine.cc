// Reads the processor and the memory from the system, for `doctor` and the records of runs.
#include "qlora/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "base/memory_info.h"
#include "machine/simd_target.h"
#include "qlora/context.h"

namespace qlora {
namespace {

// Linux's names of the features that kernels, here or in oneDNN, are written for.
constexpr std::array<std::string_view, 18> kFeatures = {
    "sse4_2",   "avx",      "fma",        "f16c",        "avx2",        "avx512f",
    "avx512bw", "avx512vl", "avx512vbmi", "avx512_vnni", "avx512_bf16", "amx_tile",
    "amx_bf16", "amx_int8", "asimd",      "asimddp",     "i8mm",        "bf16"};

// Returns "key : value" of the first processor in /proc/cpuinfo.
std::string CpuInfo(std::string_view key) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

// Returns the name of the processor; on aarch64, where Linux knows none, the numbers of its maker
// and its design.
std::string CpuName() {
  const std::string part = CpuInfo("CPU part");
  if (part.empty()) return CpuInfo("model name");
  return fmt::format("implementer {}, part {}", CpuInfo("CPU implementer"), part);
}

// Returns the features above that this processor has; empty where /proc/cpuinfo names none.
std::vector<std::string> CpuFeatures() {
  std::istringstream in(CpuInfo("flags") + CpuInfo("Features"));
  const std::vector<std::string> flags(std::istream_iterator<std::string>(in), {});
  std::vector<std::string> features;
  for (const std::string_view feature : kFeatures) {
    if (std::find(flags.begin(), flags.end(), feature) != flags.end()) {
      features.emplace_back(feature);
    }
  }
  return features;
}

}  // namespace

MachineReport DescribeMachine() {
  MachineReport report;
  report.cpu = CpuName();
  report.cpu_features = CpuFeatures();
  report.simd_target = NameOf(ActiveSimdTarget());
  report.best_simd_target = NameOf(BestSimdTarget());
  report.int8_kernels = NameOf(ActiveInt8Dots());
  report.best_int8_kernels = NameOf(Int8DotsOf(BestSimdTarget()).back());
  report.cores = Context().threads();
  report.memory_total = TotalBytes();
  report.memory_available = AvailableBytes();
  return report;
}

}  // namespace qlora
