// The optimizer of a run: its rule, the memory of its moments, and the update of all parameters.
#ifndef QLORA_STEP_OPTIMIZER_H_
#define QLORA_STEP_OPTIMIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "base/arena.h"
#include "qlora/train_options.h"

namespace qlora {

struct OptimizerType {
  UpdateRule rule = UpdateRule::kAdamW;
  bool eight_bit = false;  // moments as codes of quant/dynamic_map.h
  // Moments in a file-backed mapping that can exceed free memory. A memory other than the host's
  // holds them as others.
  bool paged = false;
  bool momentum = true;  // kSgd: false for no moment at all

  bool has_m() const { return momentum || rule != UpdateRule::kSgd; }
  bool has_v() const { return rule == UpdateRule::kAdamW; }
};

// The names of Hugging Face's `optim`: "adamw", "paged_adamw_8bit", "lion" ...; InvalidInput for an
// unknown name.
OptimizerType ParseOptimizer(std::string_view name);
std::vector<std::string> OptimizerNames();

// Learning rates of the kinds of parameters, as multiples of the rate of the schedule.
struct GroupRates {
  double b = 1;          // LoRA B (LoRA+, arXiv:2402.12354) and magnitudes; A has 1
  double embedding = 1;  // whole modules: embeddings, head
};

// The optimizer that the options describe, the constants of its updates (betas, epsilon, weight
// decay), and its learning rates.
OptimizerType OptimizerOf(const TrainOptions& options);
UpdateArgs UpdateArgsOf(const TrainOptions& options);
GroupRates GroupRatesOf(const TrainOptions& options);

class Optimizer {
 public:
  // The moments are in the memory of the adapter. directory: where a paged optimizer keeps
  // them instead, in a file without a name that is mapped into host memory. The memory of the
  // adapter must outlive this.
  Optimizer(const OptimizerType& type, const LoraAdapter& adapter, const std::string& directory);

  // Bytes of the moments of `adapter`, wherever they are.
  static std::size_t StateBytes(const OptimizerType& type, const LoraAdapter& adapter);
  // Bytes that an optimizer holds in `memory`, where the run computes. Of paged moments it holds
  // parts alone.
  static std::size_t Bytes(const OptimizerType& type, const LoraAdapter& adapter,
                           const Memory& memory);
  // Bytes of paged moments in a file.
  static std::size_t FileBytes(const OptimizerType& type, const LoraAdapter& adapter,
                               const Memory& memory);

  // One update of the adapter from its gradients. args.rule is the rule of the type; magnitudes of
  // DoRA are not decayed.
  void Update(Backend& backend, UpdateArgs args, const GroupRates& rates, LoraAdapter& adapter);

  // All state by name (exp_avg, exp_avg_sq, and their _absmax in 8 bits), (1, n) each, in memory().
  // The host may touch it until the next update.
  std::vector<std::pair<std::string, MatrixView>> State();
  std::vector<std::pair<std::string, ConstMatrixView>> State() const;
  Memory& memory() const { return *memory_; }
  // Paged optimizers: releases the memory of a part of the state. The values stay in the file.
  void Release(const void* begin, std::size_t bytes) const;

 private:
  static void Layout(Carver& carver, const OptimizerType& type, std::int64_t parameters, Moment& m,
                     Moment& v);

  // Parameters [begin, begin + count) with equal arguments of the update.
  struct PartOfUpdate {
    UpdateArgs args;
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };
  std::vector<PartOfUpdate> Parts(const UpdateArgs& args, const GroupRates& rates,
                                  const LoraAdapter& adapter) const;
  OptimizerType type_;
  Memory* memory_;
  Arena arena_;
  Moment m_;
  Moment v_;
};

}  // namespace qlora

#endif  // QLORA_STEP_OPTIMIZER_H_
