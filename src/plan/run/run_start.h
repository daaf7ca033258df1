// Where a run starts: from the beginning or a checkpoint, on which backends, as which of its ranks.
#ifndef QLORA_PLAN_RUN_RUN_START_H_
#define QLORA_PLAN_RUN_RUN_START_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend_factory.h"
#include "dist/folder_copy.h"
#include "dist/rank_place.h"
#include "qlora/communicator.h"
#include "qlora/train_options.h"
#include "qlora/train_plan.h"

namespace qlora {

struct RunStart {
  PlanPurpose purpose = PlanPurpose::kTraining;
  std::optional<std::filesystem::path> checkpoint;  // to resume from
  std::shared_ptr<const FolderCopy> copy;           // of the checkpoint, where rank 0 alone has it
  BackendFactory::Ptr backends;
  RankPlace place;
  std::vector<std::string> notes;  // some may be ""
};

// The checkpoint that a run resumes from, which rank 0 finds for all; rank 0 checks output_dir,
// too. Backends and place are left to the caller. Errors: InvalidInput as CheckOutputDir and
// FindCheckpoint.
RunStart FindStart(Communicator& communicator, const TrainOptions& options, PlanPurpose purpose);

}  // namespace qlora

#endif  // QLORA_PLAN_RUN_RUN_START_H_
