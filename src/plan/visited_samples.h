// What a run reads from some step on, known from the order of its data alone.
#ifndef QLORA_PLAN_VISITED_SAMPLES_H_
#define QLORA_PLAN_VISITED_SAMPLES_H_

#include <cstdint>

#include "data/mismatched_rows.h"
#include "plan/run/run_data.h"
#include "qlora/train_options.h"

namespace qlora {

// mismatches: the objective needs them. Errors: InvalidInput as MismatchedRows.
VisitedSamples VisitedBy(const TrainOptions& options, const RunData& data, const DataCursor& from,
                         std::int64_t steps, bool mismatches);

}  // namespace qlora

#endif  // QLORA_PLAN_VISITED_SAMPLES_H_
