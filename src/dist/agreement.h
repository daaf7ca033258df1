// Compares what the ranks of a job were given.
#ifndef QLORA_DIST_AGREEMENT_H_
#define QLORA_DIST_AGREEMENT_H_

#include <string>
#include <utility>
#include <vector>

#include "qlora/communicator.h"

namespace qlora {

// A name and its value on this rank.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Errors: InvalidInput, on every rank, when a value differs from that of rank 0; the message has
// the names, both values, and the ranks with their hosts. All ranks have the same names.
void AgreeOn(Communicator& communicator, const Facts& facts);

}  // namespace qlora

#endif  // QLORA_DIST_AGREEMENT_H_
