#include "plan/run/run_start.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "dist/together.h"
#include "machine/simd_target.h"
#include "plan/run/run_folder.h"

namespace qlora {

RunStart FindStart(Communicator& communicator, const TrainOptions& options, PlanPurpose purpose) {
  RunStart start;
  start.purpose = purpose;
  Together(communicator, [&] {
    if (!communicator.is_root()) return;
    start.checkpoint = FindCheckpoint(options, start.notes);
    if (purpose == PlanPurpose::kReading) {
      start.notes.push_back(WarnOfOutputDir(options, start.checkpoint));
    } else {
      CheckOutputDir(options, start.checkpoint);
    }
  });
  start.notes.push_back(WarnOfScalarKernels());
  if (communicator.is_alone()) return start;
  const std::string found =
      BroadcastText(communicator, start.checkpoint ? start.checkpoint->string() : "");
  if (found.empty()) return start;
  start.copy = ShareFolder(communicator, found, kTrainerState);
  start.checkpoint = start.copy->path();
  return start;
}

}  // namespace qlora
