// A check that the tokenizer keeps what it reads: text -> ids -> text.
#ifndef QLORA_DATA_AUDIT_LOST_TEXT_H_
#define QLORA_DATA_AUDIT_LOST_TEXT_H_

#include <string>
#include <string_view>

#include "data/dataset.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Returns the first place of `text` that is lost or changed between ids and back, as a few
// characters, or as two words whose space is lost; "" where the text comes back. Other white space
// and canonical forms of characters (NFC) do not count: many tokenizers change them on purpose.
std::string LostText(const Tokenizer& tokenizer, std::string_view text);

// Returns a warning where the first records hold text that the tokenizer loses, or "".
std::string WarnOfLostText(const Dataset& dataset, const Tokenizer& tokenizer);

}  // namespace qlora

#endif  // QLORA_DATA_AUDIT_LOST_TEXT_H_
