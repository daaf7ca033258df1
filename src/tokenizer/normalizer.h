// The normalizer of a tokenizer.json: what happens to text before it is split.
#ifndef QLORA_TOKENIZER_NORMALIZER_H_
#define QLORA_TOKENIZER_NORMALIZER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer_json.h"

namespace qlora {

// Text on its way through the pipeline.
struct NormalizedText {
  std::string text;
  // How many characters, from the first on, come from the first character of the user's text.
  std::size_t leading = 1;

  // What Metaspace's prepend_scheme "first" asks.
  bool at_start() const { return leading > 0; }
};

class Normalizer {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    virtual void Apply(NormalizedText* text) const = 0;
  };

  // Supported: Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents,
  // Nmt, ByteLevel, Precompiled. Errors: InvalidInput for others, naming the key.
  static Normalizer Parse(const JsonValue& config);

  bool IsIdentity() const { return steps_.empty(); }
  bool prepends() const { return prepends_; }      // has a Prepend
  bool maps_bytes() const { return maps_bytes_; }  // has a ByteLevel
  void Apply(NormalizedText* text) const {
    for (const auto& step : steps_) step->Apply(text);
  }

 private:
  void Add(const JsonValue& config);

  std::vector<std::unique_ptr<const Step>> steps_;
  bool prepends_ = false;
  bool maps_bytes_ = false;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_NORMALIZER_H_
