// Names come from transformers (GenerationConfig, BitsAndBytesConfig) and PEFT, aliases from TRL,
// Axolotl and LLaMA-Factory, so that their users need not learn new ones.
#include "qlora/model_options.h"

#include "base/check.h"
#include "decision/decision_metrics.h"
#include "decision/decision_temperature.h"
#include "inference/preference_evaluation.h"
#include "model/shared_options.h"
#include "qlora/decision.h"

namespace qlora {
namespace {

void DeclareTemperature(OptionTable& table, std::string* temperature) {
  table.Add("decision_temperature", temperature,
            "temperatures of the answers, as noul=1.2,choice=0.9; default: those of the model");
}

// As ParseTemperatures reads it; "": nothing is given.
void CheckTemperature(const std::string& temperature) {
  if (!temperature.empty()) ParseTemperatures(temperature, "decision_temperature");
}

// Options of training alone.
void CheckEvaluates(const DecisionReading& reading) {
  if (reading.max_options != DecisionReading().max_options) {
    ThrowInvalidInput(
        "max_options would have no effect: an evaluation shows all options of a question; leave it "
        "out");
  }
  if (reading.option_order == "shuffle") {
    ThrowInvalidInput(
        "option_order shuffle would have no effect: an evaluation shows options in the order in "
        "which they are given; leave it out, or average over orders with permutations all");
  }
}

}  // namespace

// --help shows the options of a table in this order.
void ModelOptions::Declare(OptionTable& table) {
  table.Section("Model");
  DeclareModelPath(table, &model_name_or_path);
  DeclareAdapters(table, &adapter, &adapter_rank, "to apply");
  table.Choice("load_in_4bit", &load_in_4bit, {"auto", "true", "false"},
               "load the linear layers in 4 bits; auto: as the adapter was trained, else true");
  quantization.Declare(table);
  DeclareComputeType(table, &compute_dtype);
  DeclareDevice(table, &device);
  chat.Declare(table);
}

void GenerateOptions::Declare(OptionTable& table) {
  table.Section("Generation");
  table.Add("max_new_tokens", &max_new_tokens, "maximum number of tokens to generate");
  table.Add(
      "do_sample", &do_sample,
      "sample tokens at random; implied by temperature, top_k, top_p and min_p; false: always take "
      "the most likely token");
  table.Add(
      "temperature", &temperature,
      "divides the logits before sampling; below 1: more likely text; above 1: more varied text");
  table.Add("top_k", &top_k, "sample among the k most likely tokens; 0: among all");
  table.Add(
      "top_p", &top_p,
      "sample among the most likely tokens whose probabilities add up to top_p; 1: among all");
  table.Add(
      "min_p", &min_p,
      "sample among tokens at least min_p times as likely as the most likely token; 0: among all");
  table.Add("repetition_penalty", &repetition_penalty,
            "above 1: makes tokens of the prompt and of the answer less likely; 1: no penalty");
  table.Add("seed", &seed, "random seed of the sampling");
  table.Add("stop", &stop,
            "text that ends the answer and is not shown; $'\\n' is a line break in most shells");
}

void EvalOptions::Declare(OptionTable& table) {
  table.Section("Data");
  table.AddPath("dataset", &dataset, "files to evaluate, separated by commas",
                {"datasets", "data"});
  reading.Declare(table);
  reading.decision.Declare(table);
  DeclareTemperature(table, &decision_temperature);
  table.Choice("permutations", &permutations, {"none", "all"},
               "all: ask a choice in all cyclic orders of its options, and average");
  table.Add("ece_bins", &ece_bins, "bins of the calibration error (ECE)");
  preference.DeclareLoss(table);
  table.Add("label_smoothing_factor", &label_smoothing_factor,
            "preference_loss sigmoid, robust, exo_pair: share of pairs whose answers are taken to "
            "be the other way round",
            {"label_smoothing"});
  table.AddPath(
      "reference", &reference,
      "the model that preferences are measured against: base (without the adapter), the folder of "
      "another adapter of the same base, or none");
  table.Section("Evaluation");
  table.Add("raw", &raw, "use the base model's prompt layout instead of the adapter's");
  table.Add("per_token", &per_token, "report the log-probability of every evaluated token");
}

void EvalOptions::Check() const {
  CheckEvaluates(reading.decision);
  CheckBins(ece_bins);
  CheckTemperature(decision_temperature);
  PreferenceLossOf(*this);
}

void DecideOptions::Declare(OptionTable& table) {
  table.Section("Decisions");
  table.AddPath("decision_template", &decision_template,
                "prompts of questions: plain, chat (the model's chat template), or a Jinja file; "
                "default: that of the training");
  DeclareTemperature(table, &decision_temperature);
}

void DecideOptions::Check() const { CheckTemperature(decision_temperature); }

void CalibrateOptions::Declare(OptionTable& table) {
  table.Section("Data");
  table.AddPath("dataset", &dataset,
                "files of questions with answers that were not trained on, separated by commas",
                {"datasets", "data"});
  table.AddPath("from_predictions", &from_predictions,
                "file of predictions (eval --predictions) in place of model and dataset");
  table.Add("min_questions", &min_questions,
            "questions of a type that a temperature needs; with fewer it is 1");
  reading.Declare(table);
  reading.decision.Declare(table);
}

void CalibrateOptions::Check() const {
  if (min_questions < 1) {
    ThrowInvalidInput("min_questions: expected a number from 1 on, found {}", min_questions);
  }
  if (!from_predictions.empty() && !dataset.empty()) {
    ThrowInvalidInput("dataset and from_predictions are both given; keep one");
  }
  if (reading.dataset_format != "auto" && reading.dataset_format != "decision") {
    ThrowInvalidInput("dataset_format: temperatures are fitted to decisions, found '{}'",
                      reading.dataset_format);
  }
  CheckEvaluates(reading.decision);
}

}  // namespace qlora
