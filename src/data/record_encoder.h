// From one record to the tokens and labels that the trainer sees.
#ifndef QLORA_DATA_RECORD_ENCODER_H_
#define QLORA_DATA_RECORD_ENCODER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/batch.h"
#include "data/conversation.h"
#include "data/data_options.h"
#include "data/record_file.h"
#include "data/field_template.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The format of `record` by its keys. Errors: InvalidInput, without a place, listing them.
RecordFormat DetectRecordFormat(const OrderedJson& record, const DataOptions& options);

// What is worth counting about a sample.
struct SampleNotes {
  bool split_boundary = false;      // a token would span the boundary of trained and masked text
  bool empty_completion = false;    // only EOS is trained
  bool without_eos = false;         // the last label is not a token that ends generation
  bool unlisted_stop = false;       // the turn ends in a special token that is not listed as EOS
  bool without_bos = false;         // the tokenizer would begin text with BOS
  std::int64_t foreign_labels = 0;  // labels that are neither the token itself nor ignored
};

struct EncodedRecord {
  Sample sample;
  SampleNotes notes;
};

// Encodes records of one format. May be used by several threads. Tokenizer and renderer must
// outlive it.
class RecordEncoder {
 public:
  // `chat` may be null when the format is not a conversation. Errors: InvalidInput when the options
  // contradict each other or the tokenizer lacks what the format needs.
  RecordEncoder(RecordFormat format, const DataOptions& options, const Tokenizer& tokenizer,
                const ChatRenderer* chat);

  RecordFormat format() const { return format_; }

  // Everything that the samples depend on besides the records, as text: equal keys, equal samples.
  std::string key() const;

  // The sample of a record, of any length. Errors: InvalidInput, without a place, when the record
  // lacks a field, no token is trained on, a token is beyond the vocabulary, BOS is doubled, or a
  // conversation does not train the token that ends the assistant's turn.
  EncodedRecord Encode(const OrderedJson& record) const;

  // The tokens of a long text, without BOS and EOS.
  std::vector<std::int32_t> EncodeRaw(std::string_view text) const;
  // A window of a long text: BOS where the tokenizer adds it, then `tokens`, all trained on.
  Sample Window(std::span<const std::int32_t> tokens) const;
  // How many tokens of a text fit a window of max_length.
  std::int64_t window_tokens() const;

 private:
  EncodedRecord EncodeText(const OrderedJson& record) const;
  EncodedRecord EncodeCompletion(const std::string& prompt, const std::string& completion) const;
  EncodedRecord EncodeConversation(const Conversation& conversation) const;
  EncodedRecord EncodeIds(const OrderedJson& record) const;
  // With BOS where the tokenizer adds it, without the EOS that it may add.
  std::vector<std::int32_t> EncodeOpen(std::string_view text) const;
  void AppendEos(std::vector<std::int32_t>& ids) const;
  std::vector<std::size_t> TokensAtBounds(const std::string& text,
                                          const std::vector<ChatSpan>& spans,
                                          const std::vector<std::int32_t>& ids, bool& split) const;
  std::size_t EndOfTurn(const std::vector<std::int32_t>& ids, std::size_t begin,
                        std::size_t end) const;
  void CheckTurnEnd(std::span<const std::int32_t> turn, std::size_t message,
                    SampleNotes& notes) const;
  void Check(EncodedRecord& record) const;
  bool IsStop(std::int32_t id) const;

  RecordFormat format_;
  const DataOptions options_;
  const Tokenizer& tokenizer_;
  const ChatRenderer* chat_;
  std::optional<FieldTemplate> prompt_;
  std::optional<FieldTemplate> completion_;
  std::int64_t vocab_size_;
};

}  // namespace qlora

#endif  // QLORA_DATA_RECORD_ENCODER_H_
