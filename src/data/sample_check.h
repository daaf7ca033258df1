// Refuses samples that would train something other than the user means, and counts notable
// properties of the other samples.
#ifndef QLORA_DATA_SAMPLE_CHECK_H_
#define QLORA_DATA_SAMPLE_CHECK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/batch.h"
#include "preference/preference_pair.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Something of a record that the model does not see, does not learn, or sees otherwise.
struct TextFinding {
  std::string what;        // for people; of many records the same
  std::string quote = {};  // the beginning of the text, or ""
};

// Remarks about one sample; dataset_report.h has their texts.
struct SampleNotes {
  bool split_boundary = false;    // a token would span the boundary of trained and masked text
  bool empty_completion = false;  // only EOS is trained
  bool without_eos = false;       // the last label is not a token that ends generation
  bool unlisted_stop = false;     // the turn ends in a special token that is not listed as EOS
  bool closed_turn = false;       // the template leaves the last turn open; EOS was appended
  std::vector<TextFinding> findings = {};      // audit/text_audit.h
  std::vector<std::string> other_fields = {};  // of the record, which are not read
  std::vector<std::string> readings = {};      // "thinking as reasoning_content"
  bool own_bos = false;             // the text begins with BOS, and the tokenizer's is not added
  bool without_bos = false;         // the tokenizer would begin text with BOS
  std::int64_t foreign_labels = 0;  // labels that are neither the token itself nor ignored
};

struct EncodedRecord {
  Sample sample;
  SampleNotes notes;
  // Of the whole sample, of which no more than max_length + 1 tokens are kept: where each turn of a
  // conversation is a sample, all of them together would grow with its square.
  std::int64_t length = 0;
  std::int64_t supervised = 0;
  std::int64_t cut_tokens = 0;             // of the answers of a pair, to max_length
  bool identical = false;                  // a pair of two equal answers
  PairCut pair_cut = PairCut::kDifferent;  // what that cut leaves of a pair
};

// Errors: InvalidInput, without a place, when a token or label is outside of the vocabulary or BOS
// is doubled. Sets without_bos and foreign_labels.
void CheckSample(const Sample& sample, const Tokenizer& tokenizer, std::int64_t vocab_size,
                 SampleNotes& notes);

// Of an answer behind a prompt. Errors: InvalidInput, without a place, when the answer begins with
// BOS, which belongs at the start of the prompt alone.
void CheckAnswerBegins(const Sample& sample, const Tokenizer& tokenizer);

// Errors: InvalidInput, without a place, when labels belong to the next token, as for a trainer
// that does not shift them.
void CheckNotShifted(const Sample& sample);

// True when the last label that is not ignored is a token that ends generation.
bool TrainsStop(const Sample& sample, const Tokenizer& tokenizer);

enum class TurnEnd {
  kNothing,  // the turn has no token but white space
  kStop,     // EOS, or another token that is listed as ending generation
  kSpecial,  // a special token that is not listed
  kText,     // an ordinary token: the model would not learn to stop
};
// Returns how a turn ends, ignoring white space at its end.
TurnEnd EndOf(std::span<const std::int32_t> turn, const Tokenizer& tokenizer);

// Throws InvalidInput about the turn of messages[message], which ends in ordinary text.
[[noreturn]] void ThrowOpenTurn(std::span<const std::int32_t> turn, std::int64_t message,
                                const Tokenizer& tokenizer);

}  // namespace qlora

#endif  // QLORA_DATA_SAMPLE_CHECK_H_
