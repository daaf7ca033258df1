// Sets samples of a data set aside for evaluation.
#ifndef QLORA_DATA_DATASET_SPLIT_H_
#define QLORA_DATA_DATASET_SPLIT_H_

#include <cstdint>

#include "data/dataset.h"

namespace qlora {

struct DatasetSplit {
  Dataset train;
  Dataset held_out;
};

// Holds out val_set_size samples when it is 1 or more, else that fraction of them, rounded, at
// least one. Drawn by seed without replacement; both parts keep the order of the files. Errors:
// InvalidInput when a part would be empty.
DatasetSplit SplitDataset(const Dataset& dataset, double val_set_size, std::uint64_t seed);

}  // namespace qlora

#endif  // QLORA_DATA_DATASET_SPLIT_H_
