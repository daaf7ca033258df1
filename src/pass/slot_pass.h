// Passes over rows of many sequences: next tokens of some, parts of the prompts of others.
#ifndef QLORA_PASS_SLOT_PASS_H_
#define QLORA_PASS_SLOT_PASS_H_

#include <cstdint>
#include <functional>
#include <span>

#include "pass/decoder.h"
#include "pass/eval_memory.h"

namespace qlora {

// Memory for passes over rows of slots, at most `rows` of them. Their workspace is reserved.
Arena ReserveSlots(const Decoder& decoder, const Adapters& adapters, std::int64_t rows);

// Receives the softcapped logits (V) of token number `token` of slots[part].ids.
using VisitSlotLogits =
    std::function<void(std::int64_t part, std::int64_t token, std::span<const float> logits)>;

// Runs a pass over the next tokens of sequences, which leave their states in `pool`. Hands on the
// logits that they want, in their order. order: of the layers; the head has kFew. passes: in memory
// of ReserveSlots for the same adapters, or as large.
void RunSlots(const Decoder& decoder, std::span<const SlotRows> slots, SumOrder order,
              const StatePool& pool, EvalMemory& passes, const VisitSlotLogits& visit);

}  // namespace qlora

#endif  // QLORA_PASS_SLOT_PASS_H_
