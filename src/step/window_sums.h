// Values of the micro-batches of a window, which the ranks of its replicas compute.
#ifndef QLORA_STEP_WINDOW_SUMS_H_
#define QLORA_STEP_WINDOW_SUMS_H_

#include <vector>

#include "dist/rank_place.h"
#include "dist/window_split.h"
#include "qlora/communicator.h"

namespace qlora {

// Gives every rank the values that the last stage of each replica has computed: as many for each
// micro-batch of the window.
void ShareValues(Communicator& communicator, const RankPlace& place, const WindowSplit& window,
                 std::vector<double>& values);

}  // namespace qlora

#endif  // QLORA_STEP_WINDOW_SUMS_H_
