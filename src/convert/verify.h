// Checks that an exported file computes the same as the trained model.
#ifndef QLORA_CONVERT_VERIFY_H_
#define QLORA_CONVERT_VERIFY_H_

#include "pass/decoder.h"

namespace qlora {

struct Divergence {
  double mean = 0;  // of |log p - log p'| over the tokens of a few fixed random sequences
  double max = 0;
};

// Returns the greatest mean that is expected of matrices rounded to `outtype`: at least eight times
// the mean of the models and adapters of examples/ and tests/golden.
double MostExpectedMean(DType outtype);

// One model in two forms, both in the memory of the backend, which runs them in float32.
struct ModelForm {
  const DecoderWeights& weights;
  LoraAdapter* adapter = nullptr;  // null: merged, or none
};

Divergence Compare(Backend& backend, const DecoderConfig& config, const ModelForm& a,
                   const ModelForm& b);

}  // namespace qlora

#endif  // QLORA_CONVERT_VERIFY_H_
