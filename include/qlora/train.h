// Fine-tuning: a run as its plan describes it, and its reports.
#ifndef QLORA_TRAIN_H_
#define QLORA_TRAIN_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/decision.h"
#include "qlora/metrics.h"
#include "qlora/shape_plan.h"
#include "qlora/train_plan.h"

namespace qlora {

// What a rank says of a step.
struct RankReport {
  double computing_seconds = 0;
  double waiting_seconds = 0;  // for other ranks, and for bytes on their way
  std::size_t memory_bytes = 0;
};

struct StepReport {
  std::int64_t step = 0;  // 1 for the first optimizer step
  std::int64_t total_steps = 0;
  double epoch = 0;
  double loss = 0;                   // mean over what the step trains on
  double grad_norm = 0;              // before clipping
  std::vector<MetricValue> metrics;  // of the objective, besides the loss
  double learning_rate = 0;
  std::int64_t tokens = 0;       // supervised tokens of the step
  double tokens_per_second = 0;  // all tokens read, supervised or not
  // The time that this machine takes for the multiply-adds of the step with the instructions of its
  // kernels, as a share of the time of the step (docs/training.md).
  double limit_share = 0;
  std::size_t memory_bytes = 0;  // resident memory of the process; of several, the largest
  double elapsed_seconds = 0;
  double remaining_seconds = 0;
  bool skipped = false;           // loss or gradient was not finite, so nothing was updated
  bool spike = false;             // the loss is far above the losses of recent steps
  bool risen = false;             // the recent losses are far above the start of the run
  double start_loss = 0;          // mean of the first steps
  double recent_loss = 0;         // median of the recent steps
  std::string bad_tensor;         // when skipped: where the NaN or Inf appeared first
  std::vector<RankReport> ranks;  // of each rank; empty for a run of one process
};

struct EvalReport {
  double loss = 0;                        // mean over what is trained on
  std::vector<MetricValue> metrics = {};  // of the objective, besides the loss
  std::int64_t tokens = 0;                // supervised tokens
  double seconds = 0;
  bool best = false;  // the best of the run so far, by metric_for_best_model
  // Of each file of eval_dataset, where there are several.
  struct File {
    std::string name;  // without folder and extension, unless two files then had one name
    double loss = 0;
    std::int64_t tokens = 0;
  };
  std::vector<File> files = {};
};

// A text that the model wrote during training.
struct SampleReport {
  std::int64_t step = 0;
  std::string prompt;
  std::string text;
};

// The end of a run of decisions.
struct DecisionFinish {
  std::vector<std::string> notes = {};        // for people: the temperature of each type
  std::optional<DecisionResult> result = {};  // the answers to the evaluation data
};

struct RunSummary {
  std::int64_t steps = 0;         // steps of the whole run
  std::int64_t resumed_step = 0;  // steps done before this process
  std::int64_t tokens = 0;        // supervised tokens of the whole run
  double seconds = 0;             // time of this process, without loading
  // Mean over the steps of the whole run that changed the adapter; NaN if there was none. In a run
  // that goes on from a checkpoint of qlora 0.1, over those since.
  double mean_loss = std::numeric_limits<double>::quiet_NaN();
  std::size_t peak_memory_bytes = 0;
  bool interrupted = false;
  bool stopped_early = false;  // ended by early_stopping_patience or by the observer
  // The run got worse: its loss ended far above its start (step/loss_rise.h), its last step was
  // skipped for a NaN or Inf, or the values of the adapter are huge. It is saved all the same.
  bool diverged = false;
  std::string divergence;          // when diverged: the cause and remedies
  std::int64_t skipped_steps = 0;  // steps whose loss or gradient was not finite
  std::int64_t best_step = -1;     // step of the best evaluation; -1: none
  // Of each rank: the seconds of all steps of this process, and the most memory after one. Empty
  // for a run of one process.
  std::vector<RankReport> ranks;
  std::string adapter_dir;
  DecisionFinish decisions = {};
};

// The events of a run. Called in the thread that called Train, between steps. Of several ranks,
// events are those of rank 0; OnLoad, OnWarning and the questions are for the observer of each
// rank.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // Weights are being loaded; an exception ends the run before anything is written.
  virtual void OnLoad(std::int64_t /*done*/, std::int64_t /*total*/) {}
  // The run resumes from a checkpoint, after `step` of its steps.
  virtual void OnResume(const std::string& /*checkpoint*/, std::int64_t /*step*/,
                        std::int64_t /*total_steps*/) {}
  // The reference of preferences is being measured, before the first step; counts samples.
  virtual void OnReference(std::int64_t /*done*/, std::int64_t /*total*/) {}
  // Some micro-batches of the next step are done.
  virtual void OnMicroBatch(std::int64_t /*done*/, std::int64_t /*total*/) {}
  virtual void OnStep(const StepReport& /*report*/) {}
  // An evaluation is going on; counts samples.
  virtual void OnEvalProgress(std::int64_t /*done*/, std::int64_t /*total*/) {}
  virtual void OnEval(std::int64_t /*step*/, const EvalReport& /*report*/) {}
  virtual void OnSample(const SampleReport& /*report*/) {}
  virtual void OnCheckpoint(const std::string& /*dir*/) {}
  // Something that no plan could know and that the run can do without: a log or a checkpoint on a
  // disk that is full. An observer that does not pass this on loses logs in silence.
  virtual void OnWarning(const std::string& /*text*/) {}
  // Asked after every step and during evaluations; true ends the run with a checkpoint.
  virtual bool ShouldStop() { return false; }
  // Asked after every step and after the evaluation before the first; once true, it stays true.
  // Ends the run there as early stopping does, with the result of a finished run.
  virtual bool ShouldFinish() { return false; }
};

// About how many seconds the steps of a plan take on this machine, without evaluations, checkpoints
// and loading: measured by a probe of up to a third of a second.
struct TimeEstimate {
  double seconds = 0;
  // The same with compute_dtype int8, and with its int8_backward; nothing where the base has no
  // quantized weights, or the plan is in 8 bits.
  std::optional<double> int8;
  std::optional<double> int8_backward;
};
TimeEstimate EstimateTime(Context& context, const TrainPlan& plan);

// Trains as planned and leaves the adapter in output_dir. Errors: as CheckPlan; InvalidInput
// before anything is written; Runtime afterwards (disk full ...). All ranks of the context train
// together: errors before the first step are errors of all; a rank that throws later leaves the
// others waiting, and its program ends them (Communicator::Abort).
RunSummary Train(Context& context, const TrainPlan& plan, TrainObserver& observer);

}  // namespace qlora

#endif  // QLORA_TRAIN_H_
