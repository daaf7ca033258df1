// What a GGUF file says of decisions, for llama.cpp; inference/decision_source.h reads it.
#ifndef QLORA_EXPORT_GGUF_GGUF_DECISION_KEYS_H_
#define QLORA_EXPORT_GGUF_GGUF_DECISION_KEYS_H_

#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "inference/decision_source.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Adds type, template and temperatures; the template in the place of a chat template of its name.
void AddDecisionMetadata(const DecisionSource& decision, const std::string& architecture,
                         GgufMetadata& out);

// For a file with the keys of another one: adds to `changes` what makes `file` say this of
// decisions, and to `gone` the keys of temperatures that are others' then. Nothing where it says
// the same already, in whatever spelling.
void ChangeDecisionMetadata(const GgufMetadata& file, const DecisionSource& decision,
                            const std::string& architecture, GgufMetadata& changes,
                            std::vector<std::string>& gone);

// Whether the tokenizer of the file puts a space before texts. llama.cpp would put it before
// prompts of decisions and before their labels, too. decision: may be null.
bool WritesPrefixSpace(const Tokenizer& tokenizer, const DecisionSource* decision);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_DECISION_KEYS_H_
