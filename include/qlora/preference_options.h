// Options of training on preferences.
#ifndef QLORA_PREFERENCE_OPTIONS_H_
#define QLORA_PREFERENCE_OPTIONS_H_

#include <string>
#include <vector>

#include "qlora/options.h"

namespace qlora {

struct PreferenceFields {
  // sigmoid (DPO), kto, orpo ...; empty: no training on preferences.
  std::vector<std::string> preference_loss;
  std::vector<std::string> loss_weights;  // one number for each loss; empty: 1 each
  double beta = 0;                        // 0 (not set): 0.1, of simpo 2, of sigmoid_norm 5
  double simpo_gamma = 1;
  double cpo_alpha = -1;          // weight of -log p of chosen answers; -1: of cpo 1, of simpo 0
  double rpo_alpha = 0;           // the same beside other losses
  std::string nll_over = "auto";  // text, tokens, answers; auto: of orpo text, else tokens
  double discopop_tau = 0.05;
  double ld_alpha = 1;
  bool use_weighting = false;
  double desirable_weight = 1;
  double undesirable_weight = 1;
  std::string reference = "start";  // base, none, or the folder of an adapter

  void Declare(OptionTable& table);
  void DeclareLoss(OptionTable& table);  // all but the reference
  // Gives beta the default of the loss where the user has not set it. `table` is the table that
  // Declare filled. Errors: InvalidInput for a beta of 0 that the user has set.
  void Complete(OptionTable& table, double label_smoothing) const;
};

}  // namespace qlora

#endif  // QLORA_PREFERENCE_OPTIONS_H_
