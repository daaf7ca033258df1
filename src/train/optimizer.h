// The optimizer of a run: its rule, the memory of its moments, and the update of all parameters.
#ifndef QLORA_TRAIN_OPTIMIZER_H_
#define QLORA_TRAIN_OPTIMIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "model/lora.h"
#include "qlora/train.h"

namespace qlora {

struct OptimizerType {
  UpdateRule rule = UpdateRule::kAdamW;
  bool eight_bit = false;  // moments as codes of quant/dynamic_map.h
  bool paged = false;      // moments in a file-backed mapping that can exceed free memory
  bool momentum = true;    // kSgd: false for no moment at all

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
  // The moments are in the memory of the adapter. directory: where a paged optimizer keeps them
  // instead, in a file without a name that is mapped into host memory.
  Optimizer(const OptimizerType& type, const LoraAdapter& adapter, const std::string& directory);

  // Bytes of the moments of `adapter`, in memory or in a file.
  static std::size_t StateBytes(const OptimizerType& type, const LoraAdapter& adapter);
  // Resident bytes of the moments of `adapter`; a paged optimizer holds a slice at a time.
  static std::size_t Bytes(const OptimizerType& type, const LoraAdapter& adapter);

  // One update of the adapter from its gradients. args.rule is the type's; magnitudes of DoRA are
  // not decayed.
  void Update(Backend& backend, UpdateArgs args, const GroupRates& rates, LoraAdapter& adapter);

  // All state by name (exp_avg, exp_avg_sq, and their _absmax in 8 bits), (1, n) each, in memory().
  std::vector<std::pair<std::string, MatrixView>> State();
  std::vector<std::pair<std::string, ConstMatrixView>> State() const;
  Memory& memory() const { return *memory_; }
  // Paged optimizers: releases the memory of a part of the state. The values stay in the file.
  void Release(const void* begin, std::size_t bytes) const;

 private:
  static void Layout(Carver& carver, const OptimizerType& type, std::int64_t parameters, Moment& m,
                     Moment& v);

  void UpdatePart(Backend& backend, const UpdateArgs& args, LoraAdapter& adapter,
                  std::int64_t begin, std::int64_t count);

  OptimizerType type_;
  Memory* memory_;
  Arena arena_;
  Moment m_;
  Moment v_;
  // A slice of the moments in the memory of the adapter, where a paged optimizer is updated if that
  // is not the host's; else empty.
  Arena slice_;
  Moment slice_m_;
  Moment slice_v_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_OPTIMIZER_H_
