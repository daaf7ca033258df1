// A project that has the library behind the program: options that name no model are refused.
#include <cstdio>

#include "qlora/error.h"
#include "qlora/train.h"

int main() {
  qlora::Context context(1);
  try {
    const qlora::TrainPlan plan = qlora::PlanTraining(context, {});
    qlora::TrainObserver observer;
    qlora::Train(context, plan, observer);
  } catch (const qlora::Error& error) {
    std::printf("refused: %s\n", error.what());
    return error.code() == qlora::ErrorCode::kInvalidInput ? 0 : 1;
  }
  return 1;
}
