// The step Replace, which normalizers and decoders have alike.
#ifndef QLORA_TOKENIZER_REPLACEMENT_H_
#define QLORA_TOKENIZER_REPLACEMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/json_value.h"
#include "tokenizer/split/split_pattern.h"

namespace qlora {

class Replacement {
 public:
  // step: {"pattern": {"String": ...} or {"Regex": ...}, "content": ...}
  explicit Replacement(const JsonValue& step);

  // `text` with every match replaced. *front: the bytes of a match at its front, 0 without a match
  // there.
  std::string Apply(std::string_view text, std::int64_t* front = nullptr) const;

  // At most how many times as long as the text the result is.
  double growth() const { return growth_; }
  // True when every match is one character.
  bool is_character() const { return is_character_; }
  const std::string& content() const { return content_; }

 private:
  std::unique_ptr<SplitPattern> pattern_;
  std::string content_;
  double growth_;
  bool is_character_ = false;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_REPLACEMENT_H_
