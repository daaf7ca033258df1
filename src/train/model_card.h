// README.md of an adapter: the model card that the hub and people read.
#ifndef QLORA_TRAIN_MODEL_CARD_H_
#define QLORA_TRAIN_MODEL_CARD_H_

#include "checkpoint/train_position.h"
#include "qlora/train_plan.h"

namespace qlora {

// Writes README.md into output_dir, unless a file is there that another program or person wrote.
void WriteModelCard(const TrainPlan& plan, const TrainPosition& at);

}  // namespace qlora

#endif  // QLORA_TRAIN_MODEL_CARD_H_
