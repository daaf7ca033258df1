// The plan of a run: its inputs, needs and outputs, before weights are read.
#ifndef QLORA_TRAIN_PLAN_H_
#define QLORA_TRAIN_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/data_report.h"
#include "qlora/prompt.h"
#include "qlora/train_options.h"

namespace qlora {

// The size of one kind of memory, in bytes.
struct MemoryPart {
  std::string name;
  std::size_t bytes = 0;
};

// The memory that a run needs at its peak, computed before weights are read.
struct MemoryPlan {
  std::vector<MemoryPart> parts;   // weights, adapter, gradients, optimizer, activations ...
  std::string recompute;           // the recomputation of layers, in words
  std::vector<MemoryPart> ladder;  // the peak if all layers recomputed the same
  std::size_t train_peak = 0;
  std::size_t eval_peak = 0;
  std::size_t save_peak = 0;
  std::string shortage;  // empty when the run fits; otherwise the error of CheckPlan

  std::size_t peak() const;
  void Add(MemoryPart part);  // a part that is needed all the time
};

// The bytes that a run will write to output_dir.
struct DiskPlan {
  std::string folder;            // the nearest existing part of output_dir
  std::size_t adapter = 0;       // the finished adapter, with its tokenizer
  std::size_t checkpoint = 0;    // one checkpoint
  std::int64_t checkpoints = 0;  // added to the checkpoints that are stored there, at most
  std::size_t needed = 0;        // everything, with the logs
  bool known = true;             // the file system reports its size
  std::size_t free = 0;          // free space of the file system
  std::string shortage;          // empty when the run fits; otherwise the error of CheckPlan
};

// A stage of a pipeline.
struct StagePlan {
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;
  std::size_t memory = 0;  // peak of a rank
};

// How the ranks of a run share its steps.
struct RankPlan {
  int ranks = 1;
  int stages = 1;                          // of a pipeline, in each replica of the model
  std::int64_t micro_batches = 0;          // of a full step
  std::int64_t micro_batches_of_rank = 0;  // of the replica that has most of them
  std::size_t bytes_sent = 0;              // by the rank that sends most, in each step
  double idle_share = 0;                   // of a step, in which stages wait for one another
  std::vector<StagePlan> of_stages = {};   // where ranks are planned from outside: of each stage
};

// The position at which a run that resumes continues.
struct ResumePoint {
  std::string checkpoint;
  std::int64_t step = 0;         // steps that are done
  std::int64_t total_steps = 0;  // of the run that saved the checkpoint; 0: not recorded
  bool is_end = false;           // no step is left, or early stopping has ended the run
  bool is_complete = false;      // output_dir holds the result of a run that ended at this step
};

struct PreparedRun;  // plan/run/prepared_run.h

// A run that was checked and not started: its inputs, needs and outputs.
struct TrainPlan {
  TrainOptions options;  // with the values of the adapter that training continues
  std::vector<std::string> warnings;
  TrainingDataReport data;
  MemoryPlan memory;
  DiskPlan disk;
  RankPlan ranks;
  std::int64_t total_steps = 0;
  std::int64_t warmup_steps = 0;
  std::optional<ResumePoint> resume;       // nothing for a run that starts at its first step
  std::string prompt_layout;               // of the data, in words; recorded with the adapter
  PromptExample example;                   // a prompt of the data
  std::shared_ptr<const PreparedRun> run;  // the model's description and the tokenized data
};

// kReading: output_dir may hold a run as well, also one that still trains. Warnings say so, and
// Train refuses such a plan.
enum class PlanPurpose : std::uint8_t { kTraining, kReading };

// Checks and computes everything that can be known before weights are read: options, model, data,
// tokenizer, schedule, memory, disk space. Writes nothing. Errors: InvalidInput for anything that
// is wrong with the run. A run that does not fit is not an error here: see CheckPlan. reading:
// receives how many bytes of the data files are read, for dataset and eval_dataset in turn.
// All ranks of the context plan together, each for itself; errors of one are errors of all, and so
// is anything in which ranks differ that changes the results. world_size: plans rank 0 of so many
// ranks, a machine each; 0: the ranks of the context.
TrainPlan PlanTraining(Context& context, const TrainOptions& options,
                       PlanPurpose purpose = PlanPurpose::kTraining, const ProgressFn& reading = {},
                       int world_size = 0);

// The plan of the same run on another form of its base model, such as a checkpoint that
// QuantizeCheckpoint wrote. The data are not read again. Errors: as PlanTraining; InvalidInput when
// the vocabulary or the context length differ.
TrainPlan ChangeBase(Context& context, const TrainPlan& plan,
                     const std::string& model_name_or_path);

// The plan as one JSON object, the one that `qlora plan --json` prints.
std::string PlanJson(const TrainPlan& plan);

// Errors: OutOfMemory when the run does not fit in memory, InvalidInput when it does not fit on the
// disk; both messages name a change with which the run fits. InvalidInput when another run holds
// output_dir, which a plan of kReading does not use.
void CheckPlan(const TrainPlan& plan);

}  // namespace qlora

#endif  // QLORA_TRAIN_PLAN_H_
