#include "common.h"
#include "qlora/error.h"
#include "qlora/train.h"
#include "run_check.h"
#include "train_display.h"
#include "train_settings.h"
#include "verbs.h"

namespace qlora {
namespace {

// Keeps what the plan reports.
class PlanObserver : public TrainObserver {
 public:
  void OnPlan(const MemoryPlan& plan) override { plan_ = plan; }
  void OnData(const std::string& summary) override { data_ = summary; }

  const MemoryPlan& plan() const { return plan_; }
  const std::string& data() const { return data_; }

 private:
  MemoryPlan plan_;
  std::string data_;
};

class PlanVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "plan",
        .summary = "the memory that a train command will need, without loading weights",
        .explanation =
            "Takes the options of `train`, checks them and the data, and prints what the run will "
            "need at its peak. Writes nothing. Exit code 3: it does not fit into max_memory, or "
            "into "
            "what this machine has free.",
        .examples = {"qlora plan --model ./my-model --dataset train.jsonl --max_length 1024",
                     "qlora plan run.yaml --per_device_train_batch_size 4 --json"},
        .positionals = {"config"},
        .required = {"model_name_or_path", "dataset"},
    };
  }

  void Declare(OptionTable& table) override {
    settings_.Declare(table);
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    Context context(ThreadCount(settings_.options.threads));
    PlanObserver observer;
    try {
      PlanTraining(context, settings_.options, observer);
    } catch (const Error&) {
      if (!observer.plan().parts.empty()) Print(console, observer);
      throw;
    }
    Print(console, observer);
    return 0;
  }

 private:
  void Print(const Console& console, const PlanObserver& observer) const {
    const MemoryPlan& plan = observer.plan();
    if (!run_.json) {
      console.out << observer.data() << FormatPlan(plan) << '\n';
      return;
    }
    PrintJson(console.out, PlanToJson(plan));
  }

  TrainSettings settings_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakePlanVerb() { return std::make_unique<PlanVerb>(); }

}  // namespace qlora
