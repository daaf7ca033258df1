// Experts of an adapter while it is fitted to a decoder (fitted_adapter.h).
#ifndef QLORA_ADAPTER_FITTED_EXPERTS_H_
#define QLORA_ADAPTER_FITTED_EXPERTS_H_

#include "adapter/fitted_modules.h"

namespace qlora {

// Splits stacks in two blocks, as PEFT makes them of a LoRA for each expert (expert_stack.h).
// Others stay.
void SplitStacks(FittedModules& modules);

// All experts of a parameter have one rank and one scale, and gate and up one A, where PEFT has
// them in one parameter: smaller ranks, and experts without an adapter, are filled with zeros.
void CompleteJoinedExperts(FittedModules& modules);

}  // namespace qlora

#endif  // QLORA_ADAPTER_FITTED_EXPERTS_H_
