// Signs in the metrics of a run that preferences are not learned, or at the cost of the answers.
#ifndef QLORA_TRAIN_PREFERENCE_WATCH_H_
#define QLORA_TRAIN_PREFERENCE_WATCH_H_

#include <string>
#include <vector>

#include "step/step.h"

namespace qlora {

// Keeps the newest steps of a run; those of other objectives say nothing.
class PreferenceWatch {
 public:
  static constexpr std::int64_t kSteps = 20;  // fewer are not judged

  void Add(const StepResult& step);
  // Of the run so far.
  std::vector<std::string> Warnings() const;

 private:
  struct Signs {
    double accuracy = 0;
    double chosen = 0;  // reward
    std::int64_t pairs = 0;
  };
  std::vector<Signs> newest_;  // of pairs, the oldest first
};

}  // namespace qlora

#endif  // QLORA_TRAIN_PREFERENCE_WATCH_H_
