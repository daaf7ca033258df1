// The hardware that this machine offers to the library.
#ifndef QLORA_MACHINE_H_
#define QLORA_MACHINE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace qlora {

struct MachineReport {
  std::string cpu;                        // as the processor names itself
  std::vector<std::string> cpu_features;  // the instruction sets that kernels can make use of
  std::string simd_target;                // the target of the kernels of this process
  std::string best_simd_target;           // their target unless QLORA_TARGET names another
  // Of products in 8 bits: "amx", "vnni" or "madd", on aarch64 "usmmla" or "sdot"; else "float".
  std::string int8_kernels;
  std::string best_int8_kernels;     // those of best_simd_target
  int cores = 0;                     // usable: affinity mask and cgroup quota respected
  std::size_t memory_total = 0;      // bytes; physical, or a lower cgroup limit
  std::size_t memory_available = 0;  // bytes that a run can take now
};

// Errors (InvalidInput): QLORA_TARGET names no target, or no instructions, of this machine.
MachineReport DescribeMachine();

}  // namespace qlora

#endif  // QLORA_MACHINE_H_
