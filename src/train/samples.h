// Texts that the model writes during training, for people to read.
#ifndef QLORA_TRAIN_SAMPLES_H_
#define QLORA_TRAIN_SAMPLES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "model/setup.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

class Samples {
 public:
  Samples() = default;
  // Errors: InvalidInput for a prompt without tokens, or one that leaves no room for an answer.
  Samples(const std::vector<std::string>& prompts, std::int64_t max_new_tokens,
          const Tokenizer& tokenizer, const DecoderConfig& config);

  bool empty() const { return prompts_.empty(); }
  // What writing needs besides weights: rows of one pass, positions, bytes of keys and values.
  std::int64_t rows() const { return rows_; }
  std::int64_t capacity() const { return capacity_; }
  std::size_t CacheBytes(const DecoderConfig& config, const Precision& precision) const;

  // Takes the memory of the cache, once.
  void Reserve(const Decoder& decoder);
  // Continues prompt i with the likeliest tokens, in `memory`, which holds rows() rows. The same
  // weights give the same text, and nothing of the run is changed.
  std::string Write(std::size_t i, const Decoder& decoder, const Tokenizer& tokenizer,
                    const Arena& memory);

 private:
  std::vector<std::vector<std::int32_t>> prompts_;  // token ids
  std::int64_t max_new_tokens_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t capacity_ = 0;
  std::optional<CacheMemory> cache_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_SAMPLES_H_
