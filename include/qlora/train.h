// Fine-tuning: options, the plan of a run, the run, and its reports.
#ifndef QLORA_TRAIN_H_
#define QLORA_TRAIN_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/data.h"
#include "qlora/data_report.h"
#include "qlora/options.h"
#include "qlora/prompt.h"
#include "qlora/quantization.h"

namespace qlora {

// An option whose value has no effect, given the other options.
struct IdleOption {
  std::string name;
  std::string reason;  // with what to do instead
};

struct TrainOptions {
  std::string preset = "none";  // applied by Complete; any other value is refused

  // Model.
  std::string model_name_or_path;
  std::string output_dir = "qlora-out";
  bool overwrite_output_dir = false;
  bool load_in_4bit = true;
  QuantizationFields quantization;
  std::string compute_dtype = "auto";
  std::string device = "auto";  // cpu, cuda

  DataFields data;

  // Adapter.
  std::string adapter;  // PEFT directory of an adapter to continue
  std::int64_t lora_r = 16;
  double lora_alpha = 32;
  double lora_dropout = 0;
  std::vector<std::string> lora_target_modules = {"all-linear"};
  std::vector<std::string> exclude_modules;
  std::vector<std::string> modules_to_save;      // trained as a whole: embed_tokens, lm_head
  std::vector<std::string> layers_to_transform;  // "0", "4-7"; empty: all layers
  std::vector<std::string> rank_pattern;         // "down_proj=8": another rank than lora_r
  std::vector<std::string> alpha_pattern;
  bool use_rslora = false;
  bool use_dora = false;
  std::string init_lora_weights = "default";
  double neftune_noise_alpha = 0;

  // Optimization.
  std::int64_t per_device_train_batch_size = 2;
  std::int64_t gradient_accumulation_steps = 4;
  double num_train_epochs = 1;
  std::int64_t max_steps = -1;
  std::string optim = "adamw";
  double learning_rate = 2e-4;
  double loraplus_lr_ratio = 1;        // LoRA+: learning rate of B over that of A
  double embedding_learning_rate = 0;  // for modules_to_save; 0: as learning_rate
  std::string lr_scheduler_type = "cosine";
  std::int64_t lr_scheduler_cycles = 1;
  double warmup_ratio = 0.03;
  std::int64_t warmup_steps = 0;
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0;
  double max_grad_norm = 1.0;
  bool gradient_checkpointing = true;
  std::string recompute = "auto";  // or "none", "attention", "mlp", "layer", "offload"
  std::int64_t seed = 42;
  bool deterministic = false;  // on a GPU: add in a fixed order, so that runs give the same bits

  // The run.
  std::string metric_for_best_model = "loss";  // or "token_accuracy", of the evaluation data
  bool load_best_model_at_end = false;
  std::int64_t early_stopping_patience =
      0;                                // evaluations in a row without improvement; 0: never stop
  double early_stopping_threshold = 0;  // smallest improvement that counts
  std::int64_t max_skipped_steps = 10;  // in a row, whose loss or gradient is not finite

  std::int64_t logging_steps = 1;
  std::int64_t save_steps = 0;  // 0: only the checkpoint of the last step
  std::int64_t save_total_limit = 0;
  std::int64_t eval_steps = 0;         // 0: after each epoch, when there is evaluation data
  bool eval_on_start = false;          // also before the first step
  std::vector<std::string> report_to;  // logs in addition to JSON Lines: csv, tensorboard
  std::string logging_dir;             // of TensorBoard; empty: output_dir/runs
  std::vector<std::string> sample_prompts;
  bool sample_raw = false;        // the prompts are read as they are, not in the layout of the data
  std::int64_t sample_steps = 0;  // 0: before and after training only
  std::int64_t sample_max_new_tokens = 64;
  std::string resume_from_checkpoint;
  std::string max_memory;  // "6GB"; empty: the free memory
  std::int64_t threads = 0;

  void Declare(OptionTable& table);
  // Gives the options that the user has not set the values of `adapter` and of `preset`
  // ("qlora-paper": the recipe of Dettmers et al., arXiv:2305.14314, for 7B and 13B). `table` is
  // the table that Declare filled. Afterwards `preset` is "none" and its values are in the options.
  // Errors: InvalidInput when an option that is set contradicts the adapter or has no effect.
  void Complete(OptionTable& table) const;
  // The options that have no effect, which PlanTraining refuses. Options at their default, at 0 or
  // off are not counted. Errors: InvalidInput for an unknown optim or report_to.
  std::vector<IdleOption> Idle() const;
};

// The memory of the host, or that of a device which does not compute in the host's memory.
enum class MemoryPlace : std::uint8_t { kHost, kDevice };

// The size of one kind of memory, in bytes.
struct MemoryPart {
  std::string name;
  std::size_t bytes = 0;
  MemoryPlace place = MemoryPlace::kHost;
};

// The memory that a run needs at its peak, computed before weights are read.
struct MemoryPlan {
  std::vector<MemoryPart> parts;   // weights, adapter, gradients, optimizer, activations ...
  std::string recompute;           // what layers recompute, in words
  std::vector<MemoryPart> ladder;  // the peak if all layers recomputed the same
  MemoryPlace place = MemoryPlace::kHost;  // where the run computes: the place of all peaks
  std::size_t train_peak = 0;
  std::size_t eval_peak = 0;
  std::size_t save_peak = 0;
  std::size_t host = 0;  // bytes of host memory, when the run computes in a device's memory
  std::string shortage;  // empty when the run fits; otherwise the error of CheckPlan

  std::size_t peak() const;
  std::size_t bytes(MemoryPlace of) const;  // the most that is needed there at a time
  void Add(MemoryPart part);                // a part that is needed all the time
};

// The bytes that a run will write to output_dir.
struct DiskPlan {
  std::string folder;            // the nearest existing part of output_dir
  std::size_t adapter = 0;       // the finished adapter
  std::size_t checkpoint = 0;    // one checkpoint
  std::int64_t checkpoints = 0;  // added to the checkpoints that are stored there, at most
  std::size_t needed = 0;        // everything, with the logs
  bool known = true;             // the file system reports its size
  std::size_t free = 0;          // free space of the file system
  std::string shortage;          // empty when the run fits; otherwise the error of CheckPlan
};

// The needs of a run whose model's shape is known, without data: all sequences are taken to have
// max_length tokens.
struct ShapePlan {
  std::string model;            // where the shape is from
  bool has_weights = false;     // they are at hand; else all weights are taken to be in bfloat16
  std::int64_t parameters = 0;  // of the model
  std::int64_t length = 0;      // tokens of a sequence
  std::int64_t rows = 0;        // tokens of a micro-batch
  std::vector<std::string> warnings;
  MemoryPlan memory;
  DiskPlan disk;
};

// The position at which a run that resumes continues.
struct ResumePoint {
  std::string checkpoint;
  std::int64_t step = 0;         // steps that are done
  std::int64_t total_steps = 0;  // of the run that saved the checkpoint; 0: not recorded
  bool is_end = false;           // no step is left, or early stopping has ended the run
  bool is_complete = false;      // output_dir holds the result of a run that ended at this step
};

struct PreparedRun;  // train/prepared_run.h

// A run that was checked and not started: what it reads, needs and writes.
struct TrainPlan {
  TrainOptions options;  // with the values of the adapter that training continues
  std::vector<std::string> warnings;
  TrainingDataReport data;
  MemoryPlan memory;
  DiskPlan disk;
  std::int64_t total_steps = 0;
  std::int64_t warmup_steps = 0;
  std::optional<ResumePoint> resume;       // nothing for a run that starts at its first step
  std::string prompt_layout;               // of the data, in words; recorded with the adapter
  PromptExample example;                   // a prompt of the data
  std::shared_ptr<const PreparedRun> run;  // the model's description and the tokenized data
};

struct StepReport {
  std::int64_t step = 0;  // 1 for the first optimizer step
  std::int64_t total_steps = 0;
  double epoch = 0;
  double loss = 0;            // mean over the supervised tokens of the step
  double grad_norm = 0;       // before clipping
  double token_accuracy = 0;  // fraction of supervised tokens that were the model's first choice
  double learning_rate = 0;
  std::int64_t tokens = 0;       // supervised tokens of the step
  double tokens_per_second = 0;  // all tokens read, supervised or not
  std::size_t memory_bytes = 0;  // resident memory of the process
  double elapsed_seconds = 0;
  double remaining_seconds = 0;
  bool skipped = false;    // loss or gradient was not finite, so nothing was updated
  bool spike = false;      // the loss is far above the losses of recent steps
  bool risen = false;      // the recent losses are far above the start of the run
  double start_loss = 0;   // mean of the first steps
  double recent_loss = 0;  // mean of the recent steps
  std::string bad_tensor;  // when skipped: where the NaN or Inf appeared first
};

struct EvalReport {
  double loss = 0;  // mean over supervised tokens
  double perplexity = 0;
  double token_accuracy = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  bool best = false;  // the best of the run so far, by metric_for_best_model
};

// A text that the model wrote during training.
struct SampleReport {
  std::int64_t step = 0;
  std::string prompt;
  std::string text;
};

struct RunSummary {
  std::int64_t steps = 0;         // steps of the whole run
  std::int64_t resumed_step = 0;  // steps done before this process
  std::int64_t tokens = 0;        // supervised tokens of the whole run
  double seconds = 0;             // time of this process, without loading
  // Mean over the steps of this process that changed the adapter; NaN if there was none.
  double mean_loss = std::numeric_limits<double>::quiet_NaN();
  std::size_t peak_memory_bytes = 0;
  bool interrupted = false;
  bool stopped_early = false;  // ended by early_stopping_patience
  // The run got worse: its loss ended far above its start (train/loss_rise.h), or its last steps,
  // more than one or all, were skipped for a NaN or Inf. The adapter is saved all the same.
  bool diverged = false;
  std::string divergence;          // when diverged: what happened, and what may help
  std::int64_t skipped_steps = 0;  // steps whose loss or gradient was not finite
  std::int64_t best_step = -1;     // step of the best evaluation; -1: none
  std::string adapter_dir;
};

// The events of a run. Called in the thread that called Train, between steps.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // Weights are being loaded; what this throws ends the run before anything is written.
  virtual void OnLoad(std::int64_t /*done*/, std::int64_t /*total*/) {}
  // The run resumes from a checkpoint, after `step` of its steps.
  virtual void OnResume(const std::string& /*checkpoint*/, std::int64_t /*step*/,
                        std::int64_t /*total_steps*/) {}
  virtual void OnStep(const StepReport& /*report*/) {}
  // An evaluation is going on; counts samples.
  virtual void OnEvalProgress(std::int64_t /*done*/, std::int64_t /*total*/) {}
  virtual void OnEval(std::int64_t /*step*/, const EvalReport& /*report*/) {}
  virtual void OnSample(const SampleReport& /*report*/) {}
  virtual void OnCheckpoint(const std::string& /*dir*/) {}
  // Something that no plan could know and that the run can do without: page-locked memory, or a log
  // on a disk that is full. An observer that does not pass this on loses logs in silence.
  virtual void OnWarning(const std::string& /*text*/) {}
  // Asked after every step and during evaluations; true ends the run with a checkpoint.
  virtual bool ShouldStop() { return false; }
};

// kReading: `device` may be a GPU that this machine does not have, which the plan says in a
// warning, and Train refuses the plan.
enum class PlanPurpose : std::uint8_t { kTraining, kReading };

// Checks and computes everything that can be known before weights are read: options, model, data,
// tokenizer, schedule, memory, disk space. Writes nothing. Errors: InvalidInput for anything that
// is wrong with the run. A run that does not fit is not an error here: see CheckPlan.
TrainPlan PlanTraining(Context& context, const TrainOptions& options,
                       PlanPurpose purpose = PlanPurpose::kTraining);

// The plan of the same run on another form of its base model, such as a checkpoint that
// QuantizeCheckpoint wrote. The data are not read again. Errors: as PlanTraining; InvalidInput when
// the vocabulary or the context length differ.
TrainPlan ChangeBase(Context& context, const TrainPlan& plan,
                     const std::string& model_name_or_path);

// Errors: OutOfMemory when the run does not fit in memory, InvalidInput when it does not fit on the
// disk. Both messages name a change with which the run fits.
void CheckPlan(const TrainPlan& plan);

// A plan without data and weights. options.model_name_or_path may also be a config.json, a folder
// with no more than that, or the name of a well-known model such as "Llama-3.1-8B".
// Errors: InvalidInput when the options, the model or the adapter are wrong.
ShapePlan PlanShape(Context& context, const TrainOptions& options);
void CheckPlan(const ShapePlan& plan);

// Trains as planned and leaves the adapter in output_dir. Errors: those of CheckPlan; InvalidInput
// before anything is written; Runtime afterwards (disk full ...).
RunSummary Train(Context& context, const TrainPlan& plan, TrainObserver& observer);

}  // namespace qlora

#endif  // QLORA_TRAIN_H_
