// Everything of a training run that is made and checked before weights are read.
#ifndef QLORA_TRAIN_RUN_SETUP_H_
#define QLORA_TRAIN_RUN_SETUP_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "data/batch_stream.h"
#include "data/chat_template.h"
#include "data/dataset.h"
#include "model/base_form.h"
#include "model/decoder.h"
#include "qlora/train.h"
#include "tokenizer/tokenizer.h"
#include "train/memory_plan.h"
#include "train/samples.h"
#include "train/schedule.h"
#include "train/step.h"

namespace qlora {

struct RunSetup {
  // Reports to OnData, OnPlan and OnWarning. Errors: InvalidInput for all that is wrong with
  // options, model, data or folder; OutOfMemory when the plan does not fit, with what would.
  RunSetup(Context& context, const TrainOptions& options, TrainObserver& observer);

  // Of the longest sequence.
  std::int64_t Positions() const { return Positions(stream_options.max_length); }

  Context& context;
  const TrainOptions options;  // with the values of the adapter that training goes on from
  TrainObserver& observer;
  std::optional<std::filesystem::path> resume;  // the checkpoint to go on from
  std::filesystem::path model_dir;
  DecoderConfig config;
  Tokenizer tokenizer;
  std::unique_ptr<ChatTemplate> chat;
  Precision precision;
  BaseForm form;
  LoraAdapter adapter;  // filled, with gradients
  std::unique_ptr<Backend> backend;
  std::optional<Dataset> train;
  std::optional<Dataset> held_out;
  StreamOptions stream_options;
  StepOptions step_options;
  LoadOptions load;
  Schedule schedule;
  RunPlan plan;
  Samples samples;
  MemoryPlan memory_plan;
  Arena activations;

 private:
  LoraAdapter DescribeAdapter() const;
  void FillAdapter();
  void OpenData();
  void PlanMemoryAndReserve();
  // max_length: what samples of the data are cut to.
  std::int64_t Positions(std::int64_t max_length) const;
  std::int64_t RowsOfEvaluation(std::int64_t max_length) const;
  MemoryPlan PlanFor(const WeightSizes& sizes, const ActivationNeeds& needs,
                     std::int64_t max_length) const;
  std::string WhatFits(const WeightSizes& sizes, ActivationNeeds needs, std::size_t limit) const;
  std::vector<Recompute> AllLayers(Recompute level) const;
  void PrepareSchedule();
  std::int64_t StepsOfEpoch(std::int64_t epoch) const;
  std::int64_t StepsOfEpochs() const;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_RUN_SETUP_H_
