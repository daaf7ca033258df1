// The best adapter of a given rank: the truncated singular value decomposition of each change.
#ifndef QLORA_ADAPTER_LORA_REDUCE_H_
#define QLORA_ADAPTER_LORA_REDUCE_H_

#include <cstdint>
#include <string>

#include "adapter/lora_values.h"
#include "qlora/context.h"

namespace qlora {

// |M - M'| / |M| of changes M = scale B A, in the Frobenius norm.
struct RankError {
  double all = 0;    // of all modules together
  double worst = 0;  // of one module
  std::string worst_path;
};

// Replaces A and B of modules of a larger rank by factors of this rank, computed in double:
// singular vectors that each carry the root of their singular value. Other modules stay as they
// are. Errors: InvalidInput for a rank below 1.
RankError ReduceRank(AdapterValues& adapter, std::int64_t rank, const ProgressFn& progress = {});

}  // namespace qlora

#endif  // QLORA_ADAPTER_LORA_REDUCE_H_
