// `qlora eval`: the loss of a model on data that `train` would read in the same way. Both numbers
// of --compare are of the same samples, in the same prompt layout, so that their difference is the
// adapter's work alone. Records that ask questions get the metrics of decisions, and preferences
// those of their loss.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "dist/together.h"
#include "qlora/model.h"
#include "records/file_format.h"
#include "tasks/task_evaluation.h"
#include "terminal/decision_table.h"
#include "terminal/eval_table.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

class EvalVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "eval",
        .summary = "measure loss and perplexity of a model (+ adapter) on a file",
        .explanation =
            "Reads the dataset as `train` would and reports the mean loss of its supervised tokens "
            "(natural logarithm) and the perplexity, exp(loss). Lower is better: --compare "
            "compares the adapter with the base, which says most on records that were not trained "
            "on. Records get the prompt layout that the adapter was trained in (--raw: that of the "
            "base model). Of records with questions it reports accuracy and calibration of the "
            "answers' probabilities; with --preference-loss, of pairs of answers and of answers "
            "with labels, the loss and the rewards against the base without the adapter.",
        .examples = {"qlora eval ./my-model heldout.jsonl",
                     "qlora eval ./my-model heldout.jsonl --adapter my-adapter --compare",
                     "qlora eval ./my-model pairs.jsonl --adapter mine --preference-loss sigmoid",
                     "qlora eval --from-predictions predictions.jsonl --json"},
        .positionals = {"model_name_or_path", "dataset"},
        .required = Required(),
        .on_ranks = true,
    };
  }

  // --compare alone compares with the base; only tasks compare with what is named behind it. The
  // parser takes a second task for a dataset, which other evaluations need.
  std::vector<std::string> Spell(std::vector<std::string> arguments) const override {
    const bool of_tasks = std::any_of(arguments.begin(), arguments.end(), [](const auto& word) {
      return word == "--task" || word.starts_with("--task=");
    });
    std::vector<std::string> spelled;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      spelled.push_back(arguments[i]);
      const bool is_task = arguments[i] == "--task";
      if (arguments[i] != "--compare" && !is_task) continue;
      std::vector<std::string> names;
      while (of_tasks && i + 1 < arguments.size() && !arguments[i + 1].starts_with("--") &&
             (!is_task || names.empty() || IsTask(arguments[i + 1]))) {
        names.push_back(arguments[++i]);
      }
      const bool is_flag = i + 1 < arguments.size() && ParseBool(arguments[i + 1]).has_value();
      if (names.empty() && !is_flag && !is_task) names = {"base"};
      if (!names.empty()) spelled.back() += fmt::format("={}", fmt::join(names, ","));
    }
    return spelled;
  }

  void Declare(OptionTable& table) override {
    model_.Declare(table);
    eval_.Declare(table);
    tasks_.Declare(table);
    table.AddPath("compare", &compare_,
                  "evaluate the base without the adapter as well; of tasks: adapters, or base, "
                  "whose figures stand beside those of the last of them");
    table.AddPath("predictions", &predictions_.path,
                  "file for the answers to questions, a line of JSON each");
    table.Add("overwrite", &predictions_.overwrite, "replace such a file when it exists");
    table.AddPath("from_predictions", &from_predictions_,
                  "judge such a file of predictions, without a model");
    run_.Declare(table);
  }

  void Complete(OptionTable& table) override {
    CheckIdle(table);
    eval_.preference.Complete(table, eval_.label_smoothing_factor);
  }

  int Run(const Console& console) override {
    // Before the model is loaded, which takes longest.
    const int threads = MakeTogether(ranks(), [&] {
      eval_.keeps_predictions = !predictions_.path.empty();
      eval_.Check();
      if (eval_.per_token && !run_.json)
        ThrowInvalidInput("per_token fills the JSON object; add --json");
      if (compare_ == std::vector<std::string>{"true"}) compare_ = {"base"};
      if (compare_ == std::vector<std::string>{"false"}) compare_.clear();
      if (compare_.size() == 1 && model_.adapter.empty()) {
        ThrowInvalidInput("compare: the base is compared with an adapter; name one with --adapter");
      }
      if (tasks_.is_asked() && !ranks().is_alone()) {
        ThrowInvalidInput("task: tasks are the work of one process; run it without others");
      }
      if (!tasks_.is_asked() && !compare_.empty() && compare_ != std::vector<std::string>{"base"}) {
        ThrowInvalidInput("compare: adapters are compared by --task; on a dataset, with the base");
      }
      if (ranks().is_root()) predictions_.Check();
      return run_.ThreadCount();
    });
    if (!from_predictions_.empty()) return RunPredictions(console);
    Context context(threads, ranks());
    if (tasks_.is_asked()) {
      return tasks_.Run(context, model_, compare_, predictions_.overwrite, run_.json, console);
    }
    // One load for both measurements: without_adapter leaves the adapter out of the pass.
    Model model = MakeTogether(ranks(), [&] { return LoadModel(context, model_, console); });

    const EvalResult result = Evaluate(model, eval_, console);
    // On standard error, as all remarks: standard output holds the result alone, for pipes.
    Say(console, fmt::format("{}prompt layout: {}", result.data, result.layout));
    if (!result.warning.empty()) Say(console, "warning: " + result.warning);
    if (!predictions_.path.empty()) WritePredictions(result, console);
    std::optional<EvalResult> base;
    if (!compare_.empty()) {
      EvalOptions without = eval_;
      without.without_adapter = true;
      base = Evaluate(model, without, console);
    }
    if (run_.json) {
      OrderedJson json = EvalJson(result, eval_.per_token);
      if (base) json["base"] = EvalJson(*base, eval_.per_token);
      PrintJson(console.out, json);
    } else if (result.decision) {
      if (base) console.out << "base\n" << DecisionTable(*base->decision) << "\nadapter\n";
      console.out << DecisionTable(*result.decision);
    } else {
      console.out << (base ? EvalComparison(*base, result) : EvalTable(result));
    }
    return 0;
  }

 private:
  // True for a word that is rather a task than a model: a definition, its name, or data.
  static bool IsTask(const std::string& word) {
    const std::string extension = DataExtension(word);
    if (extension.empty()) return word.find('/') == word.npos && !Exists(word);
    return extension == ".yaml" || extension == ".yml" || HasDataExtension(word);
  }
  // Refuses options of what is not asked for.
  void CheckIdle(const OptionTable& table) {
    OptionTable of_model, of_data, of_chat, of_tasks;
    model_.Declare(of_model);
    eval_.Declare(of_data);
    model_.chat.Declare(of_chat);
    tasks_.Declare(of_tasks);
    for (const char* name : {"predictions", "from_predictions"}) {
      of_data.Add(*std::find_if(table.options().begin(), table.options().end(),
                                [&](const Option& option) { return option.name == name; }));
    }
    if (!tasks_.is_asked()) Refuse(table, of_tasks, "without --task");
    if (tasks_.is_asked()) {
      for (OptionTable* other : {&of_data, &of_chat}) Refuse(table, *other, "with --task");
    } else if (!from_predictions_.empty()) {
      for (OptionTable* other : {&of_model, &of_data}) {
        Refuse(table, *other, "with --from_predictions",
               {"from_predictions", "decision_temperature", "ece_bins"});
      }
    }
  }
  static void Refuse(const OptionTable& given, OptionTable& idle, std::string_view when,
                     const std::set<std::string>& read = {}) {
    for (const Option& option : given.options()) {
      if (!option.set || read.contains(option.name) || idle.Find(option.name) == nullptr) continue;
      ThrowInvalidInput("{} would have no effect {}; leave it out", option.name, when);
    }
  }

  // By the first rank: all have the same.
  void WritePredictions(const EvalResult& result, const Console& console) {
    Together(ranks(), [&] {
      if (ranks().is_root()) predictions_.Write(console, result.decision->predictions);
    });
  }

  std::vector<std::string> Required() const {
    if (!from_predictions_.empty()) return {};
    if (tasks_.is_asked()) return {"model_name_or_path"};
    return {"model_name_or_path", "dataset"};
  }

  int RunPredictions(const Console& console) {
    const DecisionResult result =
        EvaluatePredictions(from_predictions_, eval_.decision_temperature, eval_.ece_bins);
    if (run_.json) {
      PrintJson(console.out, DecisionJson(result));
    } else {
      console.out << DecisionTable(result);
    }
    return 0;
  }

  static EvalResult Evaluate(Model& model, const EvalOptions& options, const Console& console) {
    StatusLine line(console.err, console.style);
    return model.Evaluate(
        options,
        [&](std::int64_t done, std::int64_t total) {
          ShowProgress(line, "evaluating", done, total);
        },
        [&](std::int64_t done, std::int64_t total) { ShowReading(line, done, total); });
  }

  ModelOptions model_;
  EvalOptions eval_;
  TaskEvaluation tasks_;
  std::vector<std::string> compare_;
  OutputFile predictions_;
  std::string from_predictions_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeEvalVerb() { return std::make_unique<EvalVerb>(); }

}  // namespace qlora
