// The data set that options describe.
#ifndef QLORA_TRAIN_DATA_SETUP_H_
#define QLORA_TRAIN_DATA_SETUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/train.h"
#include "text/dataset.h"

namespace qlora {

// paths: fields.dataset or fields.eval_dataset. vocab_size: rows of the model's embedding.
DataOptions ToDataOptions(const DataFields& fields, const std::vector<std::string>& paths,
                          std::int64_t vocab_size);

}  // namespace qlora

#endif  // QLORA_TRAIN_DATA_SETUP_H_
