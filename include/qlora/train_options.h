// The options of training.
#ifndef QLORA_TRAIN_OPTIONS_H_
#define QLORA_TRAIN_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/data.h"
#include "qlora/options.h"
#include "qlora/preference_options.h"
#include "qlora/quantization.h"

namespace qlora {

// Of a run that names no rate; of one on preferences.
inline constexpr double kUsualLearningRate = 2e-4;
inline constexpr double kUsualPreferenceRate = 5e-6;

struct TrainOptions {
  std::string preset = "none";  // applied by Complete; any other value is refused

  // Model.
  std::string model_name_or_path;
  std::string output_dir = "qlora-out";
  bool overwrite_output_dir = false;
  bool load_in_4bit = true;
  QuantizationFields quantization;
  std::string compute_dtype = "auto";
  bool int8_backward = false;   // with compute_dtype int8: gradients through the weights, too
  std::string device = "auto";  // or "cpu", which is the same

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
  double label_smoothing_factor = 0;
  std::string objective = "auto";  // sft, decision; auto: by the records
  double brier_weight = 0;         // of the objective decision
  double ordinal_weight = 0;       // likewise, of score questions

  PreferenceFields preference;

  // A guard against forgetting (src/objective/anchored.h).
  std::vector<std::string> anchor;  // files of texts; empty: none
  double anchor_weight = 0.1;
  std::int64_t anchor_tokens = 512;  // of a step, at most

  // Optimization.
  std::int64_t per_device_train_batch_size = 2;
  // Micro-batches of a step for each rank. In a plan: of all ranks together, so that the records of
  // a run do not depend on the number of ranks.
  std::int64_t gradient_accumulation_steps = 4;
  std::int64_t global_batch_size = 0;  // samples in a step of all ranks; 0: as the line above says
  std::int64_t reduction_groups = 8;   // parts of a step whose gradients are added in a fixed order
  std::int64_t pipeline_stages = 1;    // ranks among which the layers are shared out
  std::string ddp_backend = "auto";    // auto, mpi, tcp
  double num_train_epochs = 3;
  std::int64_t max_steps = -1;
  std::string optim = "adamw";
  double learning_rate = kUsualLearningRate;
  double loraplus_lr_ratio = 1;        // LoRA+: learning rate of B divided by the rate of A
  double embedding_learning_rate = 0;  // for modules_to_save; 0: as learning_rate
  std::string lr_scheduler_type = "cosine";
  double lr_scheduler_cycles = 1;           // of cosine_with_restarts
  double lr_scheduler_waves = 0.5;          // of other cosines; 0.5: they fall once
  std::int64_t lr_scheduler_timescale = 0;  // of inverse_sqrt; 0: the warm-up steps, or 10000
  double min_lr = 0;                        // where a schedule ends; 0: not set
  double min_lr_rate = 0;                   // the same as a share of learning_rate
  double lr_scheduler_power = 1;            // of polynomial
  // Of warmup_stable_decay.
  std::int64_t lr_decay_steps = 0;        // 0: a tenth of the run
  std::string lr_decay_type = "cosine";   // cosine, linear, 1-sqrt
  std::int64_t lr_stable_steps = -1;      // -1: what warm-up and decay leave
  std::string lr_warmup_type = "linear";  // linear, cosine, 1-sqrt
  double lr_warmup_rate = -1;             // of cosine_warmup_with_min_lr; -1: 1 / warm-up steps
  double warmup_ratio = 0.03;
  std::int64_t warmup_steps = 0;
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0;
  double max_grad_norm = 1.0;
  bool gradient_checkpointing = true;
  std::string recompute = "auto";  // or "none", "attention", "mlp", "layer"
  std::int64_t seed = 42;

  // The run.
  std::string metric_for_best_model = "loss";  // or another, of the evaluation data
  bool load_best_model_at_end = false;
  std::int64_t early_stopping_patience =
      0;                                // evaluations in a row without improvement; 0: never stop
  double early_stopping_threshold = 0;  // smallest improvement that counts
  std::int64_t max_skipped_steps = 10;  // in a row, whose loss or gradient is not finite

  std::int64_t logging_steps = 1;
  std::int64_t save_steps = 0;       // 0: only the checkpoint of the last step
  std::int64_t saves_per_epoch = 0;  // checkpoints in an epoch, the last at its end; 0: not set
  double save_ratio = 0;             // share of the run between checkpoints; 0: not set
  std::int64_t save_total_limit = 0;
  std::int64_t eval_steps = 0;         // 0: after each epoch, when there is evaluation data
  std::int64_t evals_per_epoch = 0;    // evaluations in an epoch, the last at its end; 0: not set
  double eval_ratio = 0;               // share of the run between evaluations; 0: not set
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

 private:
  // The parts of Declare.
  void DeclareModel(OptionTable& table);
  void DeclareAdapter(OptionTable& table);
  void DeclareAnchor(OptionTable& table);
  void DeclareBatches(OptionTable& table);
  void DeclareOptimizer(OptionTable& table);
  void DeclareComputation(OptionTable& table);
  void DeclareEvaluation(OptionTable& table);
  void DeclareRun(OptionTable& table);
};

}  // namespace qlora

#endif  // QLORA_TRAIN_OPTIONS_H_
