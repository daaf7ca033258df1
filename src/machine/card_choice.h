// Which card of its host a rank computes on.
#ifndef QLORA_MACHINE_CARD_CHOICE_H_
#define QLORA_MACHINE_CARD_CHOICE_H_

#include <optional>
#include <string>

#include "qlora/communicator.h"

namespace qlora {

// CUDA_VISIBLE_DEVICES for one of `ranks` ranks of a host, where it was `visible` and the system
// has `cards` cards. A list of one card was chosen by the launcher, for this rank, and stays.
// Errors: InvalidInput where there are fewer cards than ranks.
std::string CardOf(int rank, int ranks, const std::optional<std::string>& visible, int cards);

// Shows this process the card of its rank, before CUDA looks for cards. Errors: as CardOf.
void ChooseCard(const Communicator& communicator);

}  // namespace qlora

#endif  // QLORA_MACHINE_CARD_CHOICE_H_
