// Records of token ids: {"input_ids", "labels", "attention_mask", masks of TRL}.
#ifndef QLORA_DATA_TOKEN_RECORD_H_
#define QLORA_DATA_TOKEN_RECORD_H_

#include "base/batch.h"
#include "io/json_fwd.h"

namespace qlora {

// The tokens as they are. Errors: InvalidInput, without a place, for what is no list of integers,
// and for mistakes of the program that made them: padding, labels that are shifted already, masks
// of another length.
Sample ReadTokenRecord(const OrderedJson& record);

}  // namespace qlora

#endif  // QLORA_DATA_TOKEN_RECORD_H_
