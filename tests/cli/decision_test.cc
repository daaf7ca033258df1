// Decisions as a user meets them: training, evaluation, temperatures, requests, and what is
// refused.
#include "cli/tiny_model.h"

namespace qlora {
namespace {

// The folder of a test holds a model as `model`, and records of questions.
class DecisionCommandTest : public TinyModelTest {
 protected:
  void SetUp() override {
    const fs::path golden = Golden("decision");
    fs::create_directory(scratch_ / "model");
    for (const char* name :
         {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(golden / "tiny-qwen3" / name, scratch_ / "model" / name);
    }
    for (const char* name : {"train.jsonl", "eval.jsonl", "calibration.jsonl"}) {
      fs::copy_file(golden / "qwen3" / name, scratch_ / name);
    }
    fs::copy(golden / "qwen3" / "adapter_mixed", scratch_ / "adapter");
    Write("base.yaml",
          "model: model\ndataset: train.jsonl\nadapter: adapter\noutput_dir: out\nmax_steps: 2\n"
          "decision_template: plain\ncompute_dtype: float32\nthreads: 1\n");
  }

  // The message of a training whose only record is this.
  std::string RefusedRecord(const std::string& record) const {
    std::ofstream(scratch_ / "bad.jsonl") << ReadAll(scratch_ / "eval.jsonl") << record << '\n';
    return Refused(TrainWords({"--dataset", "bad.jsonl"}));
  }

  void ExpectRefused(const std::string& record, const std::string& why) const {
    const std::string message = RefusedRecord(record);
    EXPECT_NE(message.find("bad.jsonl:17"), std::string::npos) << message;
    EXPECT_NE(message.find(why), std::string::npos) << message;
  }
};

// Probabilities of a file that were made with a temperature: of 3 to 1, logits say 9 to 1.
TEST_F(DecisionCommandTest, TemperaturesOfPredictionsAreThoseThatAreGiven) {
  const std::string line = R"({"record": 0, "id": "q", "type": "noul", "keys": ["false", "true"], )"
                           R"("probabilities": [0.25, 0.75], "target": [0, 1])";
  Write("p.jsonl", line + R"(, "logits": [0, 2.1972245773362196]})");
  const auto brier = [&](const std::vector<std::string>& more, const char* part = "decision") {
    std::vector<std::string> words = {"eval", "--from-predictions", "p.jsonl"};
    words.insert(words.end(), more.begin(), more.end());
    const nlohmann::json found = RunJson(words);
    return found.contains(part) ? found[part]["all"]["brier"].get<double>() : -1;
  };
  constexpr const char* kBefore = "decision_before_temperature";
  EXPECT_NEAR(brier({}), 0.125, 1e-12);
  EXPECT_NEAR(brier({"--decision-temperature", "noul=1"}), 0.02, 1e-12);
  EXPECT_EQ(brier({"--decision-temperature", "noul=1"}, kBefore), -1);
  EXPECT_NEAR(brier({"--decision-temperature", "noul=2"}), 0.125, 1e-12);
  EXPECT_NEAR(brier({"--decision-temperature", "noul=2"}, kBefore), 0.02, 1e-12);
  Write("p.jsonl", line + "}");
  const std::string message =
      Refused({"eval", "--from-predictions", "p.jsonl", "--decision-temperature", "noul=1"});
  EXPECT_NE(message.find("predictions without logits"), std::string::npos) << message;
}

TEST_F(DecisionCommandTest, TrainsJudgesCalibratesAndAnswers) {
  RunJson(TrainWords());
  const nlohmann::json file = nlohmann::json::parse(ReadAll(scratch_ / "out/decision.json"));
  EXPECT_EQ(file["type"], "nimble");
  EXPECT_EQ(file["temperature"], nlohmann::json::object());
  EXPECT_EQ(file["labels"].size(), 26u);

  const std::vector<std::string> eval = {"eval", "model", "eval.jsonl", "--adapter", "out"};
  auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const nlohmann::json before = RunJson(with(eval, {"--predictions", "predictions.jsonl"}));
  EXPECT_EQ(before["decision"]["all"]["n"], 32);
  EXPECT_FALSE(before.contains("decision_before_temperature"));
  // The same metrics of the file, without the model.
  const nlohmann::json again = RunJson({"eval", "--from-predictions", "predictions.jsonl"});
  EXPECT_EQ(again["decision"], before["decision"]);

  const nlohmann::json fitted =
      RunJson({"calibrate", "model", "calibration.jsonl", "--adapter", "out"});
  EXPECT_EQ(fitted["temperature"].size(), 3u);
  const nlohmann::json after = RunJson(eval);
  EXPECT_EQ(after["temperature"], fitted["temperature"]);
  EXPECT_EQ(after["decision_before_temperature"], before["decision"]);
  EXPECT_EQ(after["decision"]["all"]["accuracy"], before["decision"]["all"]["accuracy"]);

  Write("request.json",
        R"({"state": "It was a cat.", "questions": {"who": {"type": "choice",
            "instructions": "Who is it?", "criteria": {"cat": null, "dog": "it barks"}}}})");
  const nlohmann::json answer =
      RunJson({"decide", "model", "--adapter", "out", "--request", "request.json"});
  EXPECT_EQ(answer["answers"]["who"]["probabilities"].size(), 2u);
  const Outcome text = Run({"decide", "model", "--adapter", "out", "--request", "request.json"});
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("who: "), std::string::npos) << text.out;
  // What a terminal would obey is shown.
  Write("request.json", R"({"state": "s", "questions": {"a\u001b[2J": {"type": "choice",
            "instructions": "?", "criteria": {"b\u0007\n": null}}}})");
  const Outcome odd = Run({"decide", "model", "--adapter", "out", "--request", "request.json"});
  EXPECT_NE(odd.out.find(R"(a\x1b[2J: b\x07\n (b\x07\n 1.0000))"), std::string::npos) << odd.out;
}

TEST_F(DecisionCommandTest, TemperaturesAreFittedAfterTraining) {
  const nlohmann::json trained =
      RunJson(TrainWords({"--calibration-dataset", "calibration.jsonl"}));
  const nlohmann::json file = nlohmann::json::parse(ReadAll(scratch_ / "out/decision.json"));
  EXPECT_EQ(file["temperature"].size(), 3u);
  EXPECT_EQ(file["fitted_on"], "calibration.jsonl");
  // As a command of its own would fit them.
  const nlohmann::json fitted = RunJson({"calibrate", "model", "calibration.jsonl", "--adapter",
                                         "out", "--compute-dtype", "float32"});
  for (const auto& [type, temperature] : file["temperature"].items()) {
    EXPECT_NEAR(fitted["temperature"][type].get<double>(), temperature.get<double>(),
                1e-4 * temperature.get<double>());
  }
  RunJson({"train", "base.yaml", "--calibration-size", "0.3", "--output-dir", "split"});
  EXPECT_NE(ReadAll(scratch_ / "split/decision.json").find("calibration_size 0.3"),
            std::string::npos);
}

// The answers are far from what this model would write.
TEST_F(DecisionCommandTest, ALowMassOfLabelsIsWarnedOf) {
  const char* warning = "warning: the labels of the options have ";
  const Outcome trained = Run(TrainWords({"--eval-dataset", "eval.jsonl"}));
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find(warning), std::string::npos) << trained.err;
  const std::string judged = Run({"eval", "model", "eval.jsonl", "--adapter", "out"}).err;
  EXPECT_NE(judged.find(warning), std::string::npos) << judged;
}

// The base is asked in the template of the adapter beside it, without its temperatures.
TEST_F(DecisionCommandTest, AreTasksThatCompareModels) {
  Write("mine.jinja",
        "{{ state | tojson }} {{ instructions }}{% for o in options %} {{ o.label }}. {{ o.key }}"
        "{% endfor %}\n");
  RunJson(TrainWords(
      {"--decision-template", "mine.jinja", "--calibration-dataset", "calibration.jsonl"}));
  const nlohmann::json both = RunJson({"eval", "model", "--task", "eval.jsonl", "--compare", "out",
                                       "adapter", "base", "--samples", "samples.jsonl"});
  const auto eval = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"eval", "model", "eval.jsonl"};
    words.insert(words.end(), more.begin(), more.end());
    return RunJson(words)["decision"]["all"]["log_loss"].get<double>();
  };
  const auto loss = [&](const char* model) {
    return both["results"][model]["eval"]["log_loss"].get<double>();
  };
  EXPECT_EQ(loss("out"), eval({"--adapter", "out"}));
  EXPECT_EQ(loss("adapter"), eval({"--adapter", "adapter"}));
  EXPECT_EQ(loss("base"), eval({"--decision-template", "mine.jinja"}));
  const nlohmann::json& rows = both["compared"]["out"]["eval"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["figure"], "accuracy");
  EXPECT_EQ(rows[1]["test"], "bootstrap");
  EXPECT_NEAR(rows[1]["difference"].get<double>(), loss("out") - loss("base"), 1e-12);
  const std::string samples = ReadAll(scratch_ / "samples.jsonl");
  EXPECT_EQ(std::count(samples.begin(), samples.end(), '\n'), 3 * 16);
  EXPECT_TRUE(samples.starts_with("{\"model\":\"out\",\"task\":\"eval\",\"doc\":0,\"context\":"));
}

TEST_F(DecisionCommandTest, AreMembersOfAGate) {
  Write("suite.yaml",
        "tasks:\n- {task: eval.jsonl, max_loss: 1}\n"
        "- {task: eval.jsonl, figure: brier, max_loss: 2, limit: 5}\n");
  ASSERT_EQ(Run(TrainWords({"--gate", "suite.yaml"})).code, 0);
  const nlohmann::json gate = nlohmann::json::parse(ReadAll(scratch_ / "out/gate.json"));
  EXPECT_EQ(gate["tasks"][0]["figure"], "accuracy");
  EXPECT_EQ(gate["tasks"][1]["figure"], "brier");
  EXPECT_EQ(gate["tasks"][1]["higher_is_better"], false);
  Write("suite.yaml", "tasks: [{task: eval.jsonl, figure: acc}]\n");
  EXPECT_NE(Refused(TrainWords({"--gate", "suite.yaml"})).find("accuracy, log_loss, brier, ece"),
            std::string::npos);
}

TEST_F(DecisionCommandTest, WrongRecordsAreNamedWithTheirLine) {
  const std::string state = R"({"state": "s", "questions": {"q": )";
  const auto choice = [&](const std::string& criteria, const std::string& answer) {
    return state + R"({"type": "choice", "instructions": "?", "criteria": )" + criteria +
           R"(}}, "answers": {"q": )" + answer + "}}";
  };
  ExpectRefused(choice(R"({"a": null, "b": null})", "\"c\""), "\"c\" is not among the options");
  ExpectRefused(choice(R"({"a": null, "b": null})", R"({"a": -1, "b": 2})"), "from 0 on");
  ExpectRefused(choice(R"({"a": null, "b": null})", R"({"a": 0, "b": 0})"), "not all 0");
  ExpectRefused(choice(R"({"a": null})", "\"a\""), "at least 2 options");
  ExpectRefused(choice(R"(["a", "a"])", "\"a\""), "appears twice");
  std::string many = "{";
  for (int i = 0; i < 27; ++i) many += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "\": null";
  ExpectRefused(choice(many + "}", "\"1\""), "26");
  ExpectRefused(state + R"({"type": "score", "instructions": "?", "criteria": ["one"]}},
                            "answers": {"q": 0}})",
                "2 to 10 levels");
  ExpectRefused(state + R"({"type": "noul"}}, "answers": {"q": true}})", "instructions: missing");
  ExpectRefused(R"({"state": "s", "questions": "{\"q\": ", "answers": {"q": 1}})", "questions");
  ExpectRefused(R"({"questions": {"q": {"type": "noul", "instructions": "?"}},
                    "answers": {"q": true}})",
                "state: missing");
}

TEST_F(DecisionCommandTest, WrongOptionsAreRefused) {
  const auto refused = [&](const std::vector<std::string>& words, const std::string& why) {
    const std::string message = Refused(words);
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  refused(TrainWords({"--label-smoothing", "1"}), "label_smoothing");
  refused(TrainWords({"--train-on-inputs", "true"}), "train_on_inputs");
  refused(TrainWords({"--brier-weight", "-1"}), "brier_weight");
  refused(TrainWords({"--calibration-dataset", "train.jsonl"}), "is trained on");
  refused({"eval", "model", "eval.jsonl", "--decision-temperature", "noul=0"}, "above 0");
  refused({"eval", "model", "eval.jsonl", "--ece-bins", "0"}, "ece_bins");
  refused({"eval", "--from-predictions", "eval.jsonl"}, "eval.jsonl:1");
  refused({"eval", "eval.jsonl"}, "missing");
  Write("no-state.jinja", "{% for o in options %}{{ o.label }}{% endfor %}\n\n");
  refused(TrainWords({"--decision-template", "no-state.jinja"}), "leaves out the state");
  Write("no-label.jinja", "{{ state | tojson }}\n\n");
  refused(TrainWords({"--decision-template", "no-label.jinja"}),
          "leaves out the label of an option");
  Write("request.json", R"({"state": "s", "questions": {"q": {"type": "rank"}}})");
  refused({"decide", "model", "--request", "request.json"}, "questions.q.type");
  Write("broken.json", R"({"state": )");
  refused({"decide", "model", "--request", "broken.json"}, "request");
  // The data of the training are no data for temperatures.
  RunJson(TrainWords());
  refused({"calibrate", "model", "train.jsonl", "--adapter", "out"}, "was trained on");
  Write("other.jinja",
        "{{ state | tojson }}{{ instructions | tojson }}{% for o in options %}{{ o.label }}"
        "{% endfor %}:\n\n");
  refused({"calibrate", "model", "calibration.jsonl", "--adapter", "out", "--decision-template",
           "other.jinja"},
          "decision.json has another template");
}

}  // namespace
}  // namespace qlora
