// What the card of a model (README.md) says of it in its first lines.
#ifndef QLORA_CONVERT_MODEL_CARD_H_
#define QLORA_CONVERT_MODEL_CARD_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

// Returns the values of the keys at the top level of the part between "---" and "---": a text, or
// the texts of a list. What is nested deeper, or no part of this kind of YAML, is left out: a card
// that somebody wrote by hand is no reason to fail.
std::map<std::string, std::vector<std::string>> ReadModelCard(std::string_view text);

}  // namespace qlora

#endif  // QLORA_CONVERT_MODEL_CARD_H_
