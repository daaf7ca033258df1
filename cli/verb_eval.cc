#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common.h"
#include "errors.h"
#include "model_loading.h"
#include "qlora/model.h"
#include "verbs.h"

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
            "(natural logarithm) and the perplexity, exp(loss). Lower is better: compare the base "
            "with the adapter on lines that were not trained on.",
        .examples = {"qlora eval ./my-model heldout.jsonl",
                     "qlora eval ./my-model heldout.jsonl --adapter my-adapter --json"},
        .positionals = {"model_name_or_path", "dataset"},
        .required = {"model_name_or_path", "dataset"},
    };
  }

  void Declare(OptionTable& table) override {
    model_.Declare(table);
    eval_.Declare(table);
    table.Section("Run");
    run_.DeclareThreads(table);
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    if (eval_.per_token && !run_.json) ThrowUsage("per_token fills the JSON object; add --json");
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    const EvalResult result = model.Evaluate(eval_);
    console.err << result.data;
    if (!result.warning.empty()) console.err << "warning: " << result.warning << '\n';
    if (!run_.json) {
      console.out << fmt::format(
          "loss        {:.6f}\nperplexity  {:.4f}\naccuracy    {:.4f}\ntokens      {}\nsequences   "
          "{}\n"
          "seconds     {:.2f}\n",
          result.loss, result.perplexity, result.token_accuracy, result.tokens, result.sequences,
          result.seconds);
      return 0;
    }
    OrderedJson json = {{"loss", result.loss},
                        {"perplexity", result.perplexity},
                        {"token_accuracy", result.token_accuracy},
                        {"tokens", result.tokens},
                        {"sequences", result.sequences},
                        {"dropped", result.dropped},
                        {"truncated", result.truncated},
                        {"seconds", result.seconds}};
    if (eval_.per_token) {
      json["logprobs"] = result.logprobs;
      json["token_ids"] = result.token_ids;
    }
    PrintJson(console.out, json);
    return 0;
  }

 private:
  ModelOptions model_;
  EvalOptions eval_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeEvalVerb() { return std::make_unique<EvalVerb>(); }

}  // namespace qlora
