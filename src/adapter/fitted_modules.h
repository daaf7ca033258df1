// The LoRA modules of an adapter while it is fitted to a decoder (fitted_adapter.h): those of the
// file, and those that are made of them.
#ifndef QLORA_ADAPTER_FITTED_MODULES_H_
#define QLORA_ADAPTER_FITTED_MODULES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "io/peft/peft.h"

namespace qlora {

// The LoRA of one linear in memory.
struct LoraPair {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t rank = 0;
  double scale = 1;
  std::vector<float> a = {};          // (rank, in)
  std::vector<float> b = {};          // (out, rank)
  std::vector<float> magnitude = {};  // (out) with DoRA

  // A value of B where another scale is the one of all.
  float Scaled(float value, double of_all) const {
    return scale == of_all ? value : static_cast<float>(value * (scale / of_all));
  }
};

class FittedModules {
 public:
  // Both must outlive it. Begin takes the modules of `peft`, and Finish puts back what has become
  // of them, with a configuration that names it.
  FittedModules(Adapter& peft, const DecoderConfig& decoder) : peft_(peft), decoder_(decoder) {}
  void Begin();
  void Finish();

  Adapter& peft() { return peft_; }
  const DecoderConfig& decoder() const { return decoder_; }
  std::string file() const { return peft_.tensors->FileOf(peft_.tensors->tensors().front()); }

  // Of the file. Names of routers are the family's.
  bool Has(const std::string& path) const { return by_path_.contains(path); }
  bool HasIn(const std::string& layer) const;  // "model.layers.0."
  LoraPair PairOf(const AdapterModule& module) const;
  // Takes a module out of those of the file.
  LoraPair Take(const std::string& path);

  // Errors: InvalidInput for a second module of this path.
  void Add(const std::string& path, LoraPair pair);
  // One that was made, to change; of rank 0 where there is none.
  LoraPair& Made(const std::string& path) { return made_[path]; }
  bool HasMade(const std::string& path) const { return made_.contains(path); }
  // Whether anything is other than in the file.
  bool is_changed() const { return is_changed_; }

 private:
  void PutBack();
  void SetConfig();

  Adapter& peft_;
  const DecoderConfig& decoder_;
  std::map<std::string, AdapterModule> by_path_;
  std::map<std::string, LoraPair> made_;
  bool is_changed_ = false;
};

}  // namespace qlora

#endif  // QLORA_ADAPTER_FITTED_MODULES_H_
