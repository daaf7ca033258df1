#include "inference/model_passes.h"

#include "data/batch_stream.h"
#include "pass/eval_memory.h"

namespace qlora {

ModelPasses::ModelPasses(LoadedModel& model, const LoraAdapter* adapter, std::int64_t positions,
                         std::int64_t largest, double unfolding,
                         const std::function<void(std::int64_t, std::int64_t)>& progress)
    : place_(model.place()),
      config_(model.ConfigFor(adapter)),
      decoder_(*model.backend, config_, model.weights, model.precision, positions),
      memory_(ReserveEvaluation(decoder_, AdaptersOf(adapter), EvalRows(largest),
                                UnfoldedRows(EvalRows(largest), unfolding))),
      meter_{model.context.communicator(),
             place_,
             decoder_,
             adapter,
             memory_,
             [progress](std::int64_t done, std::int64_t total) {
               if (progress) progress(done, total);
               return true;
             }} {
  model.UseNorms();
}

}  // namespace qlora
