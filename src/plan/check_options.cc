#include "plan/check_options.h"

#include <cmath>

#include "adapter/lora_init.h"
#include "base/check.h"
#include "log/run_log.h"
#include "plan/memory_plan.h"
#include "plan/new_adapter.h"
#include "plan/preference_options.h"
#include "step/schedule.h"

namespace qlora {
namespace {

constexpr double kMostEpochs = 10000;  // the steps of each epoch are counted
constexpr std::int64_t kMostReductionGroups = 4096;
constexpr std::int64_t kMostAnchorTokens = std::int64_t{1} << 20;

// How often something happens is said in one way.
void CheckInterval(const char* what, std::int64_t steps, std::int64_t per_epoch, double ratio) {
  if ((steps > 0) + (per_epoch > 0) + (ratio > 0) < 2) return;
  ThrowInvalidInput("{0}_steps, {0}s_per_epoch and {0}_ratio each say how often; keep one", what);
}

void CheckSchedule(const TrainOptions& o) {
  if (o.min_lr > 0 && o.min_lr_rate > 0) {
    ThrowInvalidInput("min_lr and min_lr_rate both say where the learning rate ends; keep one");
  }
  if (o.min_lr > o.learning_rate) {
    ThrowInvalidInput("min_lr {} is above learning_rate {}", o.min_lr, o.learning_rate);
  }
  if (o.lr_stable_steps < -1) {
    ThrowInvalidInput("lr_stable_steps must be 0 or more, or -1, found {}", o.lr_stable_steps);
  }
  if (o.lr_warmup_rate != -1 && !(o.lr_warmup_rate >= 0 && o.lr_warmup_rate <= 1)) {
    ThrowInvalidInput("lr_warmup_rate must be 0 to 1, or -1, found {}", o.lr_warmup_rate);
  }
}

void CheckAnchor(const TrainOptions& o) {
  if (!(o.anchor_weight > 0) || std::isinf(o.anchor_weight)) {
    ThrowInvalidInput("anchor_weight must be a positive number, found {}", o.anchor_weight);
  }
  // Of one token nothing is predicted.
  if (o.anchor_tokens < 2 || o.anchor_tokens > kMostAnchorTokens) {
    ThrowInvalidInput("anchor_tokens must be 2 to {}, found {}", kMostAnchorTokens,
                      o.anchor_tokens);
  }
}

}  // namespace

TrainOptions WithRanks(TrainOptions options, int ranks) {
  if (ranks % options.pipeline_stages != 0) {
    ThrowInvalidInput("pipeline_stages {} needs a multiple of {} ranks, found {}",
                      options.pipeline_stages, options.pipeline_stages, ranks);
  }
  const std::int64_t replicas = ranks / options.pipeline_stages;
  const std::int64_t samples = options.per_device_train_batch_size;
  std::int64_t& window = options.gradient_accumulation_steps;
  if (options.global_batch_size == 0) {
    window *= replicas;
  } else if (options.global_batch_size % samples != 0) {
    ThrowInvalidInput(
        "global_batch_size {} is no multiple of the {} samples of a micro-batch "
        "(per_device_train_batch_size); {} is the next that is",
        options.global_batch_size, samples, (options.global_batch_size / samples + 1) * samples);
  } else {
    window = options.global_batch_size / samples;
  }
  options.global_batch_size = 0;
  const char* kind = options.pipeline_stages > 1 ? "replicas of the model" : "ranks";
  if (window < replicas) {
    ThrowInvalidInput(
        "a step has {} {} and there are {} {}, so that some would have no work; start fewer ranks, "
        "or set global_batch_size to {} or more",
        window, window == 1 ? "micro-batch" : "micro-batches", replicas, kind, samples * replicas);
  }
  if (options.reduction_groups < replicas) {
    ThrowInvalidInput(
        "reduction_groups {} shares a step out to at most {} {}, and there are {}; set "
        "reduction_groups to {} or more (sums are then rounded in another order)",
        options.reduction_groups, options.reduction_groups, kind, replicas, replicas);
  }
  return options;
}

// Every test negates the good case, so that a NaN is refused as well.
void CheckRanges(const TrainOptions& o) {
  const auto positive = [](const char* name, auto value) {
    if (!(value > 0)) ThrowInvalidInput("{} must be positive, found {}", name, value);
  };
  const auto share = [](const char* name, double value) {
    if (!(value >= 0 && value < 1)) {
      ThrowInvalidInput("{} must be at least 0 and below 1, found {}", name, value);
    }
  };
  const auto not_negative = [](const char* name, auto value) {
    if (!(value >= 0)) ThrowInvalidInput("{} must be 0 or more, found {}", name, value);
  };
  positive("lora_r", o.lora_r);
  CheckRank("lora_r", o.lora_r);
  positive("lora_alpha", o.lora_alpha);
  positive("per_device_train_batch_size", o.per_device_train_batch_size);
  positive("gradient_accumulation_steps", o.gradient_accumulation_steps);
  not_negative("global_batch_size", o.global_batch_size);
  positive("reduction_groups", o.reduction_groups);
  positive("pipeline_stages", o.pipeline_stages);
  if (o.reduction_groups > kMostReductionGroups) {
    ThrowInvalidInput("reduction_groups must be at most {}, found {}", kMostReductionGroups,
                      o.reduction_groups);
  }
  positive("logging_steps", o.logging_steps);
  positive("adam_epsilon", o.adam_epsilon);
  // transformers takes every number below 1 for "not set"; a slip would train for epochs.
  if (o.max_steps != -1 && o.max_steps < 1) {
    ThrowInvalidInput("max_steps must be 1 or more, or -1 for num_train_epochs, found {}",
                      o.max_steps);
  }
  // With max_steps the number of epochs is not used.
  if (o.max_steps == -1) {
    positive("num_train_epochs", o.num_train_epochs);
    if (o.num_train_epochs > kMostEpochs) {
      ThrowInvalidInput("num_train_epochs must be at most {}, found {}", kMostEpochs,
                        o.num_train_epochs);
    }
  }
  CheckAnchor(o);
  not_negative("seed", o.seed);
  not_negative("val_set_size", o.data.val_set_size);
  not_negative("calibration_size", o.data.calibration_size);
  share("lora_dropout", o.lora_dropout);
  share("adam_beta1", o.adam_beta1);
  share("adam_beta2", o.adam_beta2);
  share("sgd_momentum", o.sgd_momentum);
  positive("loraplus_lr_ratio", o.loraplus_lr_ratio);
  positive("lr_scheduler_cycles", o.lr_scheduler_cycles);
  positive("lr_scheduler_waves", o.lr_scheduler_waves);
  not_negative("lr_scheduler_timescale", o.lr_scheduler_timescale);
  not_negative("embedding_learning_rate", o.embedding_learning_rate);
  share("warmup_ratio", o.warmup_ratio);
  not_negative("min_lr", o.min_lr);
  share("min_lr_rate", o.min_lr_rate);
  positive("lr_scheduler_power", o.lr_scheduler_power);
  not_negative("lr_decay_steps", o.lr_decay_steps);
  not_negative("learning_rate", o.learning_rate);
  not_negative("weight_decay", o.weight_decay);
  not_negative("max_grad_norm", o.max_grad_norm);
  not_negative("warmup_steps", o.warmup_steps);
  not_negative("save_steps", o.save_steps);
  not_negative("saves_per_epoch", o.saves_per_epoch);
  share("save_ratio", o.save_ratio);
  not_negative("eval_steps", o.eval_steps);
  not_negative("evals_per_epoch", o.evals_per_epoch);
  share("eval_ratio", o.eval_ratio);
  not_negative("save_total_limit", o.save_total_limit);
  not_negative("early_stopping_patience", o.early_stopping_patience);
  not_negative("early_stopping_threshold", o.early_stopping_threshold);
  not_negative("sample_steps", o.sample_steps);
  positive("sample_max_new_tokens", o.sample_max_new_tokens);
  positive("max_skipped_steps", o.max_skipped_steps);
  not_negative("neftune_noise_alpha", o.neftune_noise_alpha);
  share("label_smoothing_factor", o.label_smoothing_factor);
  // The loss computes with float32, in which a number just below 1 is 1.
  if (static_cast<float>(o.label_smoothing_factor) == 1) {
    ThrowInvalidInput("label_smoothing_factor must be below 1 as float32, found {}",
                      o.label_smoothing_factor);
  }
}

void CheckIdle(const TrainOptions& options) {
  for (const IdleOption& idle : options.Idle()) {
    ThrowInvalidInput("{} would have no effect: {}", idle.name, idle.reason);
  }
}

void CheckOptions(const TrainOptions& o) {
  if (o.preset != "none") {
    ThrowInvalidInput("preset {} is not applied: call TrainOptions::Complete before", o.preset);
  }
  if (TrainsPreferences(o)) PreferenceLossOf(o);
  if (o.output_dir.empty()) ThrowInvalidInput("output_dir: expected a directory, found ''");
  CheckRanges(o);
  CheckInterval("save", o.save_steps, o.saves_per_epoch, o.save_ratio);
  CheckInterval("eval", o.eval_steps, o.evals_per_epoch, o.eval_ratio);
  CheckSchedule(o);
  ParseReportTo(o.report_to);
  if (o.init_lora_weights != "default") {
    const std::string init = "init_lora_weights " + o.init_lora_weights;
    if (!o.adapter.empty()) {
      ThrowInvalidInput("{} initializes A and B; it cannot be combined with adapter", init);
    }
    if (o.use_dora) ThrowInvalidInput("{} cannot be combined with use_dora", init);
    // Weight decay also acts on parameters whose gradient is 0, so it would shrink the fixed half.
    if (DoublesRank(ParseLoraInit(o.init_lora_weights)) && o.weight_decay != 0) {
      ThrowInvalidInput("{} keeps half of the adapter fixed; it needs weight_decay 0", init);
    }
  }
  if (o.embedding_learning_rate > 0 && !(o.learning_rate > 0)) {  // both have one schedule
    ThrowInvalidInput("learning_rate must be positive with embedding_learning_rate, found {}",
                      o.learning_rate);
  }
  TrainOptions asked = o;
  if (o.warmup_ratio == TrainOptions().warmup_ratio)
    asked.warmup_ratio = 0;  // the default is not a request
  CheckIdle(asked);
  if (!o.max_memory.empty()) ParseBytes(o.max_memory);
}

}  // namespace qlora
