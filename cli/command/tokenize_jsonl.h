// `qlora tokenize --jsonl`: JSON strings in, ids and their text out, line by line.
#ifndef QLORA_CLI_COMMAND_TOKENIZE_JSONL_H_
#define QLORA_CLI_COMMAND_TOKENIZE_JSONL_H_

#include <iosfwd>
#include <string>

#include "tokenizer/tokenizer.h"

namespace qlora {

// Reads one JSON string, or one array of ids, a line (blank lines are skipped) and writes one line
// {"ids": [...], "text": "..."} each, where text is Decode(ids), special tokens left out.
// Ill-formed UTF-8 in a line counts as U+FFFD. Errors: InvalidInput with `name` and line number.
void TokenizeJsonl(const Tokenizer& tokenizer, std::istream& in, const std::string& name,
                   bool add_special_tokens, std::ostream& out);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_TOKENIZE_JSONL_H_
