// The texts on which a run keeps the model near its base (objective/anchored.h).
#ifndef QLORA_PLAN_RUN_ANCHOR_DATA_H_
#define QLORA_PLAN_RUN_ANCHOR_DATA_H_

#include "plan/run/run_data.h"

namespace qlora {

// Opens options.anchor as data.anchors, of which every token counts. Texts longer than max_length
// or anchor_tokens are cut, and packed so that a micro-batch has anchor_tokens tokens at most. Adds
// a note where many others are left out. Errors: InvalidInput with file and line, and for
// questions.
void OpenAnchors(Context& context, const TrainOptions& options, const ProgressFn& reading,
                 RunData& data);

}  // namespace qlora

#endif  // QLORA_PLAN_RUN_ANCHOR_DATA_H_
