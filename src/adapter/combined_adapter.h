// Adapters as options name them: read from any format, combined and reduced.
//
// The sum of the changes w_i s_i B_i A_i of several adapters is the change B A of one with
// A = [A_1; A_2; ...] and B = [w_1 s_1 B_1, w_2 s_2 B_2, ...], whose rank is the sum of the ranks:
// what PEFT calls the combination "cat". A given rank asks for its truncated singular value
// decomposition, "svd" there.
#ifndef QLORA_ADAPTER_COMBINED_ADAPTER_H_
#define QLORA_ADAPTER_COMBINED_ADAPTER_H_

#include <optional>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "adapter/lora_values.h"
#include "base/memory.h"
#include "io/peft/adapter_source.h"
#include "qlora/context.h"

namespace qlora {

// Reads and combines the adapters. Of one adapter with the weight 1 the matrices are those of its
// file. Errors: InvalidInput that names the adapter which is not for this model or has no low-rank
// form to combine: DoRA, whole tables, rows of tokens. progress, here and below: is told after
// each module or layer; what it throws ends the work.
AdapterValues LoadAdapterValues(const AdapterSet& adapters, const DecoderConfig& decoder,
                                const ProgressFn& progress = {});

// The sum of weights[i] times adapters[i], exact but for one rounding where scales are folded into
// B: those of all parts are equal, or each B is multiplied by its own. Errors: InvalidInput for a
// DoRA adapter beside others or with a weight.
AdapterValues WeightedSum(std::vector<AdapterValues> adapters, const std::vector<double>& weights,
                          const ProgressFn& progress = {});

// The adapter for passes.
LoraAdapter ToLoraAdapter(const AdapterValues& values, const DecoderConfig& decoder,
                          Memory& memory);

// Reads adapters of any format to compute with them. A single adapter of PEFT may also have whole
// tables and rows of tokens (LoraAdapter::Load). FoldTables finishes them.
LoraAdapter LoadAdapters(const AdapterSet& adapters, const DecoderConfig& decoder, Memory& memory,
                         const ProgressFn& progress = {});

// What LoadAdapters would return of one adapter, before its values are read: parts and sizes alone.
// Nothing for a format other than that of PEFT, of which the sizes are known once it is read.
// Errors: as LoadAdapters.
std::optional<LoraAdapter> ShapeOfAdapter(const std::string& path, const DecoderConfig& decoder,
                                          Memory& memory);

}  // namespace qlora

#endif  // QLORA_ADAPTER_COMBINED_ADAPTER_H_
