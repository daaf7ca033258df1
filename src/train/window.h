// The next window of micro-batches of a run.
#ifndef QLORA_TRAIN_WINDOW_H_
#define QLORA_TRAIN_WINDOW_H_

#include "checkpoint/train_position.h"
#include "data/batch_stream.h"
#include "dist/rank_place.h"
#include "objective/objective.h"
#include "preference/reference_table.h"
#include "step/step.h"

namespace qlora {

// What a window needs besides the data.
struct WindowNeeds {
  const Dataset& dataset;  // of the stream
  const Objective& objective;
  const ReferenceTable& reference;
  std::int64_t max_length;
  BatchStream* anchors = nullptr;  // null: no anchor
};

// Plans the next window of micro-batches and reads those of this rank; the last window of an epoch
// may be short. The next micro-batch of the anchors, if there are any, is the last one. The totals
// are known before the first pass, because the gradient is scaled by the supervised tokens of the
// whole window.
StepBatch NextWindow(const WindowNeeds& needs, const RankPlace& place, const TrainPosition& at,
                     BatchStream& stream);

}  // namespace qlora

#endif  // QLORA_TRAIN_WINDOW_H_
