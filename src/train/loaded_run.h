// The model of a run in memory: everything that a step reads and writes.
//
// train.cc has the method as one loop, TrainingLoop: read the next window of micro-batches, run one
// step, log it; then evaluate, write samples, save a checkpoint and stop, each when it is due.
//
//   loaded_run.h        weights, adapter, optimizer and memory; how a run starts or resumes
//   evaluation.h        when the model is evaluated, and on which data
//   reference.h         what a run measures before its first step
//   window.h            what the next step reads
//   samples.h           texts that the model writes while it trains
//   checkpoint_saver.h  when a checkpoint is saved
//   stop_rules.h        when a run ends: steps, interruption, early stopping, divergence
#ifndef QLORA_TRAIN_LOADED_RUN_H_
#define QLORA_TRAIN_LOADED_RUN_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/train_position.h"
#include "pass/decoder.h"
#include "preference/reference_table.h"
#include "qlora/communicator.h"
#include "qlora/context.h"
#include "qlora/train.h"
#include "step/gradient_tree.h"
#include "step/optimizer.h"
#include "step/step.h"

namespace qlora {

struct LoadedRun {
  std::unique_ptr<Backend> backend;
  LoraAdapter adapter;  // with gradients
  DecoderWeights weights;
  GradientTree gradients;
  Optimizer optimizer;
  Communicator& communicator;
  // For training, as many as micro-batches are in flight; the first one evaluates too.
  std::vector<Arena> passes;
  std::uint64_t weights_hash = 0;    // HashWeights of the base
  ReferenceTable reference = {};     // of objectives that need one (reference.h)
  std::unique_ptr<Decoder> decoder;  // refers to the members above and to the plan

  StepModel model(std::function<void(std::int64_t done)> progress) {
    return {*decoder, passes, communicator, std::move(progress)};
  }
};

// Loads the weights and allocates everything else. Reports to observer.OnLoad.
std::unique_ptr<LoadedRun> LoadRun(Context& context, const TrainPlan& plan,
                                   TrainObserver& observer);

// Gives the adapter its first values, and the optimizer its state: from the checkpoint that the run
// resumes from, or as in a new run. Returns where the run begins. Errors: InvalidInput when
// the checkpoint is damaged or was made with other options.
TrainPosition StartTraining(Context& context, const TrainPlan& plan, TrainObserver& observer,
                            LoadedRun& loaded);
// The adapter that a run with these options begins with, for passes without gradients. loaded: of
// `plan`.
LoraAdapter StartAdapter(Context& context, const TrainPlan& plan, const TrainOptions& options,
                         LoadedRun& loaded, TrainObserver& observer);
// After StartTraining on all ranks: exchanges the values that stages took from their own weights.
void ShareStart(LoadedRun& loaded);

}  // namespace qlora

#endif  // QLORA_TRAIN_LOADED_RUN_H_
