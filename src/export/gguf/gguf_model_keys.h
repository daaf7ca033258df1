// The keys of a GGUF file of a model, of all kinds.
#ifndef QLORA_EXPORT_GGUF_GGUF_MODEL_KEYS_H_
#define QLORA_EXPORT_GGUF_GGUF_MODEL_KEYS_H_

#include <string>
#include <vector>

#include "export/gguf/gguf_model_source.h"
#include "export/gguf/imatrix.h"
#include "gguf/gguf.h"

namespace qlora {

// The keys of a model that is written by its configuration. importance: what its tensors are
// rounded with, or null. notes: as of ExportGgufModel.
GgufMetadata GgufKeysOf(const GgufModelSource& model, const ImportanceMatrix* importance,
                        std::vector<std::string>& notes);

// The keys of model.stored, with those that this file has otherwise: with an adapter, its origin,
// and what the tokenizer and decisions have of it; where tensors are rounded anew, the importance
// they are rounded with. coarsest: the type of the fewest bits to which any is rounded.
GgufMetadata GgufKeysAsStored(const GgufModelSource& model, const TensorType& coarsest,
                              const ImportanceMatrix* importance, std::vector<std::string>& notes);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_MODEL_KEYS_H_
