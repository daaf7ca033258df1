// `qlora decide` answers questions of a request; `qlora calibrate` fits the temperatures of a model
// that does.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "base/text.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "io/json.h"
#include "qlora/model.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

class DecideVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "decide",
        .summary = "answer typed questions about a state with probabilities",
        .explanation =
            "Reads a request of /v1/systemone or /v1/decisions, a JSON object with a state and "
            "questions (yes or no, one of several, a level), and prints the probability of each "
            "option. Nothing is generated: an answer is one token. Template and temperatures are "
            "those beside the adapter (decision.json) or in the GGUF file.",
        .examples = {"qlora decide ./my-model --adapter my-adapter --request request.json",
                     "qlora decide model.gguf --request - --json"},
        .positionals = {"model_name_or_path"},
        .required = {"model_name_or_path", "request"},
    };
  }

  void Declare(OptionTable& table) override {
    model_.Declare(table);
    decide_.Declare(table);
    table.AddPath("request", &request_, "file with the request; -: standard input");
    run_.Declare(table);
  }

  int Run(const Console& console) override {
    decide_.Check();
    const std::string request = ReadInput(request_);
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    const OrderedJson answer = ParseOrderedJson(model.Decide(request, decide_), "answer");
    if (run_.json) {
      PrintJson(console.out, answer);
      return 0;
    }
    // A list of OpenAI's answers numbers those without a name.
    for (const auto& [key, value] : answer.at("answers").items()) {
      const bool is_named = value.contains("name") && value.at("name").is_string();
      console.out << Line(is_named ? value.at("name").get<std::string>() : key, value);
    }
    return 0;
  }

 private:
  // "who: dog (dog 0.61, cat 0.39)".
  static std::string Line(const std::string& id, const OrderedJson& answer) {
    for (const char* key : {"noul", "probability"}) {
      if (answer.contains(key)) {
        return fmt::format("{}: {:.4f}\n", Shown(id), answer.at(key).get<double>());
      }
    }
    const OrderedJson& probabilities = answer.at("probabilities");
    std::vector<std::string> parts;
    for (const auto& [key, value] : probabilities.items()) {
      const bool is_listed = value.is_object();
      const std::string name = is_listed ? Plain(value.at("value")) : key;
      const double p = (is_listed ? value.at("probability") : value).get<double>();
      parts.push_back(fmt::format("{} {:.4f}", Shown(name), p));
    }
    const OrderedJson& decided =
        answer.contains("choice") ? answer.at("choice") : answer.at("score");
    return fmt::format(
        "{}: {} ({})\n", Shown(id),
        decided.is_number() ? fmt::format("{:.2f}", decided.get<double>()) : Shown(Plain(decided)),
        fmt::join(parts, ", "));
  }
  // On one line, without what a terminal would obey.
  static std::string Shown(const std::string& name) {
    return ReplaceAll(Printable(name), "\n", "\\n");
  }
  static std::string Plain(const OrderedJson& value) {
    return value.is_string() ? value.get<std::string>() : FormatJson(value);
  }

  ModelOptions model_;
  DecideOptions decide_;
  std::string request_;
  RunFields run_;
};

class CalibrateVerb : public Verb {
 public:
  VerbText text() const override {
    const bool reads_file = !calibrate_.from_predictions.empty();
    return {
        .name = "calibrate",
        .summary = "fit the temperatures of a model that decides",
        .explanation =
            "Asks the questions of a dataset that was not trained on, fits one temperature for "
            "each "
            "type of question so that probabilities are as large as answers are often right, and "
            "writes them to decision.json beside the adapter. Decisions stay as they are.",
        .examples = {"qlora calibrate ./my-model calibration.jsonl --adapter my-adapter",
                     "qlora calibrate --from-predictions predictions.jsonl --adapter my-adapter"},
        .positionals = {"model_name_or_path", "dataset"},
        .required = reads_file ? std::vector<std::string>()
                               : std::vector<std::string>{"model_name_or_path", "dataset"},
        .writes = true,
    };
  }

  void Declare(OptionTable& table) override {
    model_.Declare(table);
    calibrate_.Declare(table);
    run_.Declare(table);
  }

  int Run(const Console& console) override {
    const CalibrationResult result = Fit(console);
    for (const std::string& note : result.notes) Say(console, note);
    Say(console, result.file.empty() ? "nothing is written: there is no folder of one adapter"
                                     : "written to " + result.file);
    if (run_.json) {
      OrderedJson json = {{"temperature", result.temperatures}};
      if (!result.file.empty()) json["file"] = result.file;
      PrintJson(console.out, json);
      return 0;
    }
    for (const auto& [type, temperature] : result.temperatures) {
      console.out << fmt::format("{:<8}{:.6f}\n", type, temperature);
    }
    return 0;
  }

 private:
  CalibrationResult Fit(const Console& console) {
    calibrate_.Check();
    if (!calibrate_.from_predictions.empty()) {
      return CalibratePredictions(calibrate_, model_.adapter.empty() ? "" : model_.adapter.front());
    }
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    StatusLine line(console.err, console.style);
    return Calibrate(model, calibrate_, [&](std::int64_t done, std::int64_t total) {
      ShowProgress(line, "asking", done, total);
    });
  }

  ModelOptions model_;
  CalibrateOptions calibrate_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeDecideVerb() { return std::make_unique<DecideVerb>(); }
std::unique_ptr<Verb> MakeCalibrateVerb() { return std::make_unique<CalibrateVerb>(); }

}  // namespace qlora
