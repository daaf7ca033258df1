// A forward pass of a replica whose layers several ranks share.
#ifndef QLORA_OBJECTIVE_STAGE_FORWARD_H_
#define QLORA_OBJECTIVE_STAGE_FORWARD_H_

#include "dist/rank_place.h"
#include "pass/decoder.h"
#include "qlora/communicator.h"

namespace qlora {

// Forward, from the stage before and to the next one where there are any. The last stage has the
// result.
void ForwardStage(Communicator& communicator, const RankPlace& place, const Decoder& decoder,
                  const PassInputs& inputs, Activations& activations);

}  // namespace qlora

#endif  // QLORA_OBJECTIVE_STAGE_FORWARD_H_
