// Which names the text of a chat template holds.
#ifndef QLORA_PROMPT_FIT_TEMPLATE_NAMES_H_
#define QLORA_PROMPT_FIT_TEMPLATE_NAMES_H_

#include <string_view>

namespace qlora {

// True when `word` stands in the text and is not a part of a longer name.
bool HasWholeWord(std::string_view text, std::string_view word);
// True when a template names a field: as .name, or as a text in quotes.
bool NamesField(std::string_view source, std::string_view name);

}  // namespace qlora

#endif  // QLORA_PROMPT_FIT_TEMPLATE_NAMES_H_
