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
#include "data/conversation_encoder.h"
#include "data/data_options.h"
#include "data/decision_encoder.h"
#include "data/sample_check.h"
#include "io/json_fwd.h"
#include "preference/preference_record.h"
#include "prompt/chat_template.h"
#include "prompt/prompt_layout.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Encodes records of one layout. May be used by several threads. Tokenizer and template must
// outlive it.
class RecordEncoder {
 public:
  // `chat` may be null when the layout is not kChat. Errors: InvalidInput when the tokenizer or the
  // model lacks what the layout needs.
  RecordEncoder(PromptLayout layout, const EncodingOptions& options, const Tokenizer& tokenizer,
                const ChatTemplate* chat);

  const PromptLayout& layout() const { return layout_.layout(); }

  // Everything except the records that the samples depend on, as text: equal keys, equal samples.
  std::string key() const;

  // The samples of a record, one unless each turn of a conversation is a sample: measured and cut
  // to max_length + 1 tokens, perhaps without a trained token. Errors: InvalidInput, without a
  // place, when the record lacks a field, a token is beyond the vocabulary, BOS is doubled, or a
  // conversation does not train the token that ends the assistant's turn.
  std::vector<EncodedRecord> EncodeAll(const OrderedJson& record) const;
  // The record of ordinary training behind a sample: an answer of a record of preferences, of a
  // pair the chosen one; else the record itself.
  OrderedJson AnswerOf(const OrderedJson& record, std::int64_t part) const;
  // One of these samples again.
  Sample Encode(const OrderedJson& record, std::int64_t part) const;

  // Null unless the layout is kDecision.
  const DecisionEncoder* decisions() const { return decisions_ ? &*decisions_ : nullptr; }

  // The tokens of a long text, without BOS and EOS.
  std::vector<std::int32_t> EncodeRaw(std::string_view text) const;
  // True for tokens of a text that begins with the BOS that the tokenizer adds.
  bool BeginsWithBos(std::span<const std::int32_t> tokens) const;
  // A window of a long text: BOS where the tokenizer adds it and the text does not begin with it,
  // then `tokens`, all trained on.
  Sample Window(std::span<const std::int32_t> tokens) const;
  // The number of tokens of a text that fit a window of max_length.
  std::int64_t window_tokens() const;

 private:
  std::vector<EncodedRecord> EncodeAnswers(const OrderedJson& record) const;
  Sample EncodeAnswer(const OrderedJson& record, std::int64_t part) const;
  std::vector<EncodedRecord> JoinAnswers(const PreferenceRecord& record,
                                         std::vector<EncodedRecord> answers) const;
  EncodedRecord JoinPair(const PreferenceRecord& record, std::vector<EncodedRecord> answers) const;
  PreferenceRecord ReadPreference(const OrderedJson& record) const;
  void Measure(EncodedRecord& encoded) const;
  EncodedRecord EncodeFields(const OrderedJson& record) const;
  void CheckFields(const OrderedJson& record, std::span<const std::string> used,
                   std::span<const std::string> unused, std::string_view text,
                   SampleNotes& notes) const;
  EncodedRecord EncodeText(const OrderedJson& record) const;
  EncodedRecord EncodeCompletion(const std::string& prompt, const std::string& completion) const;
  // With BOS where the tokenizer adds it, without the EOS that it may add. A text that begins with
  // BOS itself keeps it, and is given no other; `notes` says so.
  std::vector<std::int32_t> EncodeOpen(std::string_view text, SampleNotes& notes) const;
  void AppendEos(std::vector<std::int32_t>& ids) const;

  const RecordLayout layout_;
  const EncodingOptions options_;
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;  // null: none
  std::int64_t vocab_size_;
  std::optional<ConversationEncoder> conversations_;  // kChat
  std::optional<DecisionEncoder> decisions_;          // kDecision
};

}  // namespace qlora

#endif  // QLORA_DATA_RECORD_ENCODER_H_
