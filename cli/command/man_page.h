// Manual pages in roff, made from the same declarations as the help texts.
#ifndef QLORA_CLI_COMMAND_MAN_PAGE_H_
#define QLORA_CLI_COMMAND_MAN_PAGE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "command/verb.h"

namespace qlora {

// Returns qlora(1): the program and its verbs.
std::string ProgramPage(const std::vector<std::unique_ptr<Verb>>& verbs);

// True when ProgramPage or VerbPage has written the page, in this version or an earlier one.
bool IsManPage(std::string_view text);

// Returns qlora-VERB(1).
std::string VerbPage(const VerbText& text, const OptionTable& table);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_MAN_PAGE_H_
