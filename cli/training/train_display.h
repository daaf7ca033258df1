// Shows a training run: one line per logging step, and in a terminal a bar below.
#ifndef QLORA_CLI_TRAINING_TRAIN_DISPLAY_H_
#define QLORA_CLI_TRAINING_TRAIN_DISPLAY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "qlora/train.h"
#include "terminal/terminal.h"

namespace qlora {

// Returns "step=3/10 epoch=0.3 loss=2.1 ...": for people and for grep.
std::string FormatStep(const StepReport& report);
// Returns the line at the bottom of a terminal, with a bar, in at most `columns` characters if they
// are 50 or more. Values that do not fit are left out, the least important first.
std::string FormatLiveStep(const StepReport& report, std::int64_t columns);

// What the system tells folders apart by, whatever their names.
struct FolderIdentity {
  std::uint64_t device = 0;
  std::uint64_t number = 0;

  bool operator==(const FolderIdentity&) const = default;
};

class TrainDisplay : public TrainObserver {
 public:
  // stop: asked after each step, true ends the run. on_load: called with the loading progress, may
  // throw to end the run before it starts.
  TrainDisplay(std::ostream& out, TerminalStyle style, std::int64_t logging_steps,
               std::function<bool()> stop, std::function<void()> on_load)
      : line_(out, style),
        logging_steps_(logging_steps),
        stop_(std::move(stop)),
        on_load_(std::move(on_load)) {}

  void OnLoad(std::int64_t done, std::int64_t total) override;
  void OnResume(const std::string& checkpoint, std::int64_t step,
                std::int64_t total_steps) override;
  void OnMicroBatch(std::int64_t done, std::int64_t total) override;
  void OnStep(const StepReport& report) override;
  void OnEvalProgress(std::int64_t done, std::int64_t total) override;
  void OnEval(std::int64_t step, const EvalReport& report) override;
  void OnSample(const SampleReport& report) override;
  void OnCheckpoint(const std::string& dir) override;
  void OnWarning(const std::string& text) override { Warn(text); }
  bool ShouldStop() override { return stop_(); }

  // Prints the plan of the run, in plain text, and then its warnings, so that they are seen.
  void PrintPlan(const TrainPlan& plan);
  // Prints the end of the run, in plain text.
  void PrintSummary(const RunSummary& summary);
  // True when the losses of the last quarter of the steps are well below those of the quarter
  // before: the run has not learned all that it could.
  bool StillFalls() const;
  // Says that the losses of the last quarter of the steps are as high as those of the first; ""
  // otherwise, and for runs too short to tell.
  std::string DescribeFlatLoss() const;
  // Returns the folder of the last checkpoint, or "".
  const std::string& last_checkpoint() const { return last_checkpoint_; }
  // True while that folder is the one that the run wrote: its name may be of another run by now.
  bool HasLastCheckpoint() const;

 private:
  void Warn(const std::string& text);
  // Warns of ranks that wait, once.
  void WatchRanks(const std::vector<RankReport>& ranks);

  StatusLine line_;
  std::int64_t steps_ = 0;  // done
  // The mean loss of a quarter of the steps, the first or, at 3, the last.
  double MeanOfQuarter(int which) const;

  std::vector<double> losses_;  // of the steps of this process
  std::int64_t logging_steps_;
  std::function<bool()> stop_;
  std::function<void()> on_load_;
  std::string last_checkpoint_;
  std::optional<FolderIdentity> last_identity_;
  bool warned_of_rise_ = false;
  std::vector<RankReport> first_ranks_;  // over the first steps
  std::int64_t first_steps_ = 0;         // their number
};

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_TRAIN_DISPLAY_H_
