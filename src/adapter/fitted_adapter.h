// An adapter of PEFT as the linears of a decoder need it. Other programs adapt the same matrices
// under other names, or in other pieces (model/module_spellings.h):
//
//   one LoRA of gate and up together   -> one for each: both get its A, and their rows of B
//   one for gate and one for up        -> one of both: A one above the other, B in two blocks
//   a stack of experts in such blocks  -> one for each expert, of gate and of up (expert_stack.h)
//
// Either is exact. A LoRA of keys or values that no layer computes is left out.
#ifndef QLORA_ADAPTER_FITTED_ADAPTER_H_
#define QLORA_ADAPTER_FITTED_ADAPTER_H_

#include <filesystem>

#include "config/config.h"
#include "io/peft/peft.h"

namespace qlora {

// OpenAdapter, and the above. Where anything changes, the configuration names what is there then.
// Errors: as OpenAdapter; InvalidInput for pieces of other sizes than this model's.
Adapter OpenAdapterFor(const std::filesystem::path& directory, const DecoderConfig& decoder);

}  // namespace qlora

#endif  // QLORA_ADAPTER_FITTED_ADAPTER_H_
