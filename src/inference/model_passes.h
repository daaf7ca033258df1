// Passes of a loaded model over data, with the memory that they need.
#ifndef QLORA_INFERENCE_MODEL_PASSES_H_
#define QLORA_INFERENCE_MODEL_PASSES_H_

#include <cstdint>
#include <functional>

#include "inference/answer_meter.h"
#include "inference/loaded_model.h"

namespace qlora {

class ModelPasses {
 public:
  // adapter: null for the base alone. positions: tokens of the longest sequence. largest: tokens of
  // the largest sample. unfolding: as DataReport::unfolding.
  ModelPasses(LoadedModel& model, const LoraAdapter* adapter, std::int64_t positions,
              std::int64_t largest, double unfolding,
              const std::function<void(std::int64_t done, std::int64_t total)>& progress);
  ModelPasses(const ModelPasses&) = delete;
  ModelPasses& operator=(const ModelPasses&) = delete;

  const AnswerMeter& meter() const { return meter_; }

 private:
  RankPlace place_;
  DecoderConfig config_;  // with the rows of the tables that passes read
  Decoder decoder_;
  Arena memory_;
  AnswerMeter meter_;
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_MODEL_PASSES_H_
