// The normalizer of a tokenizer.json: the rewriting of text before it is split.
#ifndef QLORA_TOKENIZER_NORMALIZER_H_
#define QLORA_TOKENIZER_NORMALIZER_H_

#include <functional>
#include <string>
#include <vector>

#include "tokenizer/json_value.h"

namespace qlora {

// Text on its way through the stages.
struct NormalizedText {
  std::string text;
  // True when the first character comes from the first character of the user's text: the condition
  // of Metaspace's prepend_scheme "first".
  bool at_start = true;
};

class Normalizer {
 public:
  // Supported: Sequence, NFC, NFKC, Prepend, Replace; null leaves text as it is.
  // Errors: InvalidInput for others, naming the key.
  static Normalizer Parse(const JsonValue& config);

  bool IsIdentity() const { return steps_.empty(); }
  bool prepends() const { return prepends_; }  // has a Prepend
  void Apply(NormalizedText* text) const {
    for (const Step& step : steps_) step(text);
  }

 private:
  using Step = std::function<void(NormalizedText*)>;
  static Step ParseStep(const JsonValue& config, const std::string& type, double* growth);

  std::vector<Step> steps_;
  bool prepends_ = false;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_NORMALIZER_H_
