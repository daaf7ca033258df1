// The pre-tokenizer of a tokenizer.json: cuts text into words, which the model encodes one
// by one.
#ifndef QLORA_TOKENIZER_SPLIT_PRE_TOKENIZER_H_
#define QLORA_TOKENIZER_SPLIT_PRE_TOKENIZER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_value.h"

namespace qlora {

class PreTokenizer {
 public:
  struct Piece {
    std::string_view text;
    bool at_start;  // begins with the first character of the user's text
  };
  using PieceSink = std::function<void(const Piece&)>;
  class Step {
   public:
    virtual ~Step() = default;
    // Hands the parts of the piece to the sink, left to right.
    virtual void Apply(const Piece& piece, const PieceSink& sink) const = 0;
  };

  // Supported: Sequence, ByteLevel, Split, Digits, Punctuation, Metaspace; null leaves the text
  // whole. Errors: InvalidInput for others, naming the key.
  static PreTokenizer Parse(const JsonValue& config);

  // Calls sink for each word, left to right. Words are not empty.
  using WordSink = std::function<void(std::string_view)>;
  void Split(const Piece& text, const WordSink& sink) const { Run(0, text, sink); }

  // True when each byte of a word represents its byte character (see byte_characters.h).
  bool byte_level() const { return byte_level_; }
  // True when ByteLevel or Metaspace puts a space before the text.
  bool adds_prefix_space() const { return adds_prefix_space_; }

 private:
  void Add(const JsonValue& step, bool is_last);
  void AddByteLevel(const JsonValue& step, bool is_last);
  void AddSplit(const JsonValue& step);
  void AddMetaspace(const JsonValue& step);
  void Run(std::int64_t step, const Piece& piece, const WordSink& sink) const;

  std::vector<std::unique_ptr<const Step>> steps_;
  bool byte_level_ = false;
  bool adds_prefix_space_ = false;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SPLIT_PRE_TOKENIZER_H_
