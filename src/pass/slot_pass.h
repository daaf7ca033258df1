// Passes over rows of many sequences: next tokens of some, parts of the prompts of others.
#ifndef QLORA_PASS_SLOT_PASS_H_
#define QLORA_PASS_SLOT_PASS_H_

#include <span>
#include <vector>

#include "pass/decoder.h"
#include "pass/eval_memory.h"

namespace qlora {

// Memory for passes over rows of slots, at most `rows` of them. Their workspace is reserved.
Arena ReserveSlots(const Decoder& decoder, const Adapters& adapters, std::int64_t rows);

// Runs a pass over the next tokens of sequences, which leave their states in `pool`. Returns the
// softcapped logits (V) of those that want them, in their order. order: of the layers; the head has
// kFew. passes: in memory of ReserveSlots for the same adapters, or as large.
std::vector<std::vector<float>> RunSlots(const Decoder& decoder, std::span<const SlotRows> slots,
                                         SumOrder order, const StatePool& pool, EvalMemory& passes);

}  // namespace qlora

#endif  // QLORA_PASS_SLOT_PASS_H_
