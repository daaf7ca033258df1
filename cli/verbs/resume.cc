// `qlora resume OUTPUT_DIR`: continues a run from the files in its folder.
//
//   train_config.json           every option of the run
//   run_info.json               the folder from which its relative paths lead
//   checkpoint-N/               adapter, moments and position; the newest complete one is taken
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/resume_options.h"
#include "checkpoint/run_info.h"
#include "command/common.h"
#include "data/data_options.h"
#include "dist/together.h"
#include "hub/hub_cache.h"
#include "io/json.h"
#include "records/file_bytes.h"
#include "training/recorded_paths.h"
#include "training/train_settings.h"
#include "training/training_run.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// True for options that are about a command, so that the values of an earlier command do not count.
bool IsOfTheCommand(std::string_view key) {
  return key == "output_dir" || key == "overwrite_output_dir" || key == "resume_from_checkpoint";
}

// True for options of earlier releases, which recorded them and whose values change nothing now:
// every run gives the same bits.
bool HasLeft(std::string_view key) { return key == "deterministic"; }

// dashboard belongs to the command, not to the run. Options that a step depends on may not change,
// or the run would not end in the bits that it would have had without the stop.
bool MayBeGiven(std::string_view key) {
  return key == "dashboard" || key == "ddp_timeout" || key == "gate" || IsOfMicroBatches(key) ||
         (MayChangeOnResume(key) && key != "overwrite_output_dir");
}

void CheckHoldsRun(const std::string& name) {
  const fs::path dir = (fs::path(name) / "").parent_path();  // without a slash at the end
  std::error_code ignored;
  if (!fs::is_directory(dir, ignored)) {
    ThrowInvalidInput("{}: there is no such folder; expected the output_dir of a run", name);
  }
  if (fs::exists(dir / kTrainConfig, ignored)) return;
  // A natural mistake, as other trainers resume from the folder of the checkpoint.
  if (StepOfCheckpoint(dir) && fs::exists(dir / kTrainerState, ignored)) {
    const fs::path run = dir.has_parent_path() ? dir.parent_path() : fs::path(".");
    ThrowInvalidInput("{0}: is a checkpoint; write `qlora resume {1} --resume_from_checkpoint {0}`",
                      ShellQuote(name), ShellQuote(run));
  }
  ThrowInvalidInput("{}: the folder holds no run: {} is missing; `qlora train` starts a run", name,
                    kTrainConfig);
}

DataPurpose PurposeOf(std::string_view key) {
  return key == "eval_dataset" ? DataPurpose::kEvaluation : DataPurpose::kTraining;
}

// Returns the type of matrix products that the newest readable checkpoint was made with: "auto" may
// choose another type on another machine. "" without a checkpoint.
std::string ComputeTypeOf(const fs::path& dir) {
  const std::vector<fs::path> checkpoints = ListCheckpoints(dir);
  // Newest first: a crash while the last one was written leaves it unreadable.
  for (auto checkpoint = checkpoints.rbegin(); checkpoint != checkpoints.rend(); ++checkpoint) {
    const fs::path file = *checkpoint / kTrainerState;
    try {
      const Json state = ReadJsonFile(file);
      const Json* options = FindJson(state, "options", file.string());
      if (options != nullptr) {
        return JsonGet<std::string>(*options, "compute_dtype", file.string());
      }
    } catch (const Error&) {  // PlanTraining skips this checkpoint and reports it
    }
  }
  return "";
}

// Runs find(); an error also names the option for the new place of the model or the data.
template <typename Find>
void FindPlace(const char* option, const Find& find) {
  try {
    find();
  } catch (const Error& error) {
    ThrowInvalidInput("{}\nif it was moved, say where it is now: --{}", error.what(), option);
  }
}

// Refuses records that a Python program had in memory.
void CheckIsFile(const char* option, const std::string& item) {
  std::error_code ignored;
  if ((item != kGivenDataset && item != kGivenEvalDataset) || fs::exists(item, ignored)) return;
  ThrowInvalidInput(
      "the run was given its {0} by a Python program, as records in memory: run that program again "
      "with resume_from_checkpoint=\"auto\", or write the same records to a file and give "
      "--{0} FILE",
      option);
}

void FindFiles(const char* option, const std::vector<std::string>& items) {
  for (const std::string& item : items) CheckIsFile(option, item);
  FindPlace(option, [&] {
    for (const std::string& item : items) {
      for (const DataSource& source :
           FindSources(item, RecordFormat::kAuto, PurposeOf(option)).sources) {
        FileBytes file(source.path);
      }
    }
  });
}

void CheckPlaces(const TrainOptions& options) {
  FindPlace("model_name_or_path", [&] { ResolveModelDir(options.model_name_or_path); });
  FindFiles("dataset", options.data.dataset);
  FindFiles("eval_dataset", options.data.eval_dataset);
  if (options.adapter.empty()) return;
  FindPlace("adapter", [&] { ReadJsonFile(fs::path(options.adapter) / "adapter_config.json"); });
}

// Refuses a run that has nothing left to do. A run without a checkpoint starts at its first step.
void CheckIsUnfinished(const TrainPlan& plan) {
  const TrainOptions& options = plan.options;
  const std::string& dir = options.output_dir;
  if (!plan.resume || !plan.resume->is_end || !plan.resume->is_complete) return;
  if (plan.resume->step < plan.total_steps) {
    ThrowInvalidInput(
        "{}: the run stopped early after step {} of {}; to train it further, give a larger "
        "--early_stopping_patience (it was {}), or 0 to never stop early",
        dir, plan.resume->step, plan.total_steps, options.early_stopping_patience);
  }
  ThrowInvalidInput(
      "{}: the run is finished, all of its {} steps are done; to train it further, give "
      "--num_train_epochs N or --max_steps N ({})",
      dir, plan.total_steps,
      options.max_steps > 0 ? fmt::format("max_steps was {}", options.max_steps)
                            : fmt::format("num_train_epochs was {}", options.num_train_epochs));
}

class ResumeVerb : public Verb {
 public:
  ResumeVerb() {
    settings_.options.output_dir.clear();  // no default: a folder must be named
    settings_.options.resume_from_checkpoint = "auto";
    settings_.Declare(all_);
  }

  VerbText text() const override {
    return {
        .name = "resume",
        .summary = "continue a run that was stopped, or train a finished run further",
        .explanation =
            "Takes the newest complete checkpoint in the output_dir of a run, and model, data and "
            "options from what the run recorded there; an option that is not given keeps its "
            "recorded value, not the default shown here. The run ends in the same bits as if it "
            "had never been stopped. With a larger --num_train_epochs or --max_steps the run is "
            "trained further, with the moments of the optimizer and the order of the data kept; "
            "the learning rate follows the schedule of the new number of steps from there on. A "
            "model or data that were moved are found with the options that name them.",
        .examples = {"qlora resume my-adapter", "qlora resume my-adapter --num_train_epochs 5"},
        .positionals = {"output_dir"},
        .required = {"output_dir"},
        .writes = true,
        .takes_folders = true,
        .on_ranks = true,
    };
  }

  // Options that a step depends on are known, and refused with the reason.
  std::vector<std::string> Spell(std::vector<std::string> arguments) const override {
    TrainSettings settings;
    OptionTable known;
    settings.Declare(known);
    for (const std::string& argument : arguments) {
      if (!argument.starts_with("--")) continue;
      const Option* option = known.Find(argument.substr(2, argument.find('=') - 2));
      if (option == nullptr || MayBeGiven(option->name)) continue;
      ThrowInvalidInput(
          "{}: {} cannot change when a run resumes; to train with another value, start a run in "
          "another folder: qlora train ... --adapter OUTPUT_DIR",
          argument, option->name);
    }
    return arguments;
  }

  void Declare(OptionTable& table) override {
    const auto& sections = all_.sections();
    std::string title;  // of the section, until one of its options is there
    for (std::int64_t i = 0, next = 0; i < std::ssize(all_.options()); ++i) {
      const auto begins_here = [&] {
        return next < std::ssize(sections) && sections[next].second == static_cast<std::size_t>(i);
      };
      while (begins_here()) title = sections[next++].first;
      if (!MayBeGiven(all_.options()[i].name)) continue;
      if (!title.empty()) table.Section(std::exchange(title, ""));
      table.Add(all_.options()[i]);
    }
    run_.DeclareJson(table);
  }

  void Complete(OptionTable& table) override {
    TrainOptions& options = settings_.options;
    CheckBatchOptions(table);
    // Checked before the record is read, for an error that describes the folder.
    CheckHoldsRun(options.output_dir);
    TakeRecord(table);
    const std::string type = ComputeTypeOf(options.output_dir);
    // Products in another type would change the bits from the next step on.
    if (!type.empty()) options.compute_dtype = type;
    // Stages of a run before need not be those of this command.
    if (!table.Find("pipeline_stages")->set && ranks().size() % options.pipeline_stages != 0) {
      options.pipeline_stages = 1;
    }
    // A step keeps its samples on any number of ranks.
    if (!table.Find("gradient_accumulation_steps")->set && options.global_batch_size == 0) {
      options.global_batch_size =
          options.per_device_train_batch_size * options.gradient_accumulation_steps;
    }
    // A recorded max_steps would win over the epochs that are asked for.
    if (table.Find("num_train_epochs")->set && !table.Find("max_steps")->set)
      options.max_steps = -1;
  }

  int Run(const Console& console) override {
    Together(ranks(), [&] { CheckPlaces(settings_.options); });
    return RunTraining(console, ranks(), settings_, run_.json, CheckIsUnfinished);
  }

 private:
  // Gives the options that were not given on the command line the values of the run.
  void TakeRecord(OptionTable& given) {
    const fs::path dir = settings_.options.output_dir;
    const std::string where = (dir / kTrainConfig).string();
    const Json record = ReadJsonFile(where);
    if (!record.is_object()) ThrowInvalidInput("{}: expected a JSON object", where);
    RecordedPaths paths(dir, JsonGetOr<std::string>(record, "output_dir", "", where));
    // Options of the command, such as save_quantized, are not of a record.
    OptionTable recorded;
    settings_.options.Declare(recorded);
    for (const auto& [key, value] : record.items()) {
      const Option* on_command_line = given.Find(key);
      const bool is_given = on_command_line != nullptr && on_command_line->set;
      if (is_given || IsOfTheCommand(key) || HasLeft(key)) continue;
      if (value.is_array()) {
        recorded.Set(key, JsonAs<std::vector<std::string>>(value, key, where), where);
      } else {
        // Through the table, so that recorded values meet the same checks as typed ones.
        recorded.Set(key, JsonAs<std::string>(value, key, where), where);
      }
      paths.Take(*recorded.Find(key));
    }
    if (!given.Find("logging_dir")->set) paths.CheckLogs(settings_.options);
    paths.CheckInside();
  }

  TrainSettings settings_;
  RunFields run_;
  OptionTable all_;  // all options of a run, including fixed ones
};

}  // namespace

std::unique_ptr<Verb> MakeResumeVerb() { return std::make_unique<ResumeVerb>(); }

}  // namespace qlora
