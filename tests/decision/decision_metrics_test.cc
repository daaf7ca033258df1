// Metrics and temperatures against the values of a float64 program in Python (numpy).
#include "decision/decision_metrics.h"

#include <cmath>

#include "base/file.h"
#include "base/random.h"
#include "decision/decision_temperature.h"
#include "io/json.h"
#include "io/test_util.h"

namespace qlora {
namespace {

using testing::HasSubstr;

// Sums of up to 80 numbers of at most 35 (-ln 1e-15) each, by two orders of addition.
constexpr double kTolerance = 80 * 35 * 80 * 2.3e-16;

OrderedJson Golden() {
  return ParseOrderedJson(ReadTextFile(SourceDir() / "tests/golden/decision/metrics.json"),
                          "golden");
}

std::vector<Prediction> RowsOf(const OrderedJson& rows) {
  std::vector<Prediction> out;
  for (const OrderedJson& row : rows) out.push_back(ReadPrediction(row));
  return out;
}

Prediction Row(QuestionType type, std::vector<double> p, std::vector<double> t,
               std::int64_t record = 0) {
  Prediction row;
  row.record = record;
  row.type = type;
  for (std::size_t k = 0; k < p.size(); ++k) row.keys.push_back(std::to_string(k));
  row.probabilities = std::move(p);
  row.target = std::move(t);
  return row;
}

TEST(DecisionMetricsTest, EqualTheGoldenValues) {
  int compared = 0;
  const OrderedJson golden = Golden();
  for (const auto& [name, table] : golden["cases"].items()) {
    const std::vector<Prediction> rows = RowsOf(table["rows"]);
    for (const auto& [bins, expected] : table["bins"].items()) {
      const OrderedJson all = MetricsJson(rows, std::stoll(bins))["all"];
      for (const auto& [metric, value] : expected.items()) {
        SCOPED_TRACE(name + " " + bins + " " + metric);
        ASSERT_TRUE(all.contains(metric));
        ASSERT_EQ(all[metric].is_null(), value.is_null());
        if (!value.is_null()) {
          EXPECT_NEAR(all[metric].get<double>(), value.get<double>(), kTolerance);
        }
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(DecisionMetricsTest, TemperaturesEqualTheGoldenValues) {
  const OrderedJson golden = Golden();
  for (const auto& [name, table] : golden["temperature"].items()) {
    SCOPED_TRACE(name);
    std::vector<Prediction> rows;
    for (std::size_t i = 0; i < table["logits"].size(); ++i) {
      Prediction row;
      row.logits = table["logits"][i].get<std::vector<double>>();
      row.target = table["targets"][i].get<std::vector<double>>();
      rows.push_back(row);
    }
    const double expected = table["temperature"].get<double>();
    EXPECT_NEAR(FitTemperature(rows), expected, 1e-9 * expected);
    for (Prediction& row : rows) row.type = QuestionType::kScore;
    const auto fitted = FitTemperatures(rows, 2);
    ASSERT_EQ(fitted.size(), 1u);
    const bool at_bound = expected == kLeastTemperature || expected == kMostTemperature;
    EXPECT_EQ(fitted[0].is_at_bound, at_bound);
    EXPECT_EQ(fitted[0].temperature, at_bound ? 1 : fitted[0].fitted);
    EXPECT_TRUE(FitTemperatures(rows, 1000)[0].is_few);
    EXPECT_EQ(ToUse(FitTemperatures(rows, 1000)).Of(QuestionType::kScore, 3), 1);
  }
}

TEST(DecisionMetricsTest, ByType) {
  const std::vector<Prediction> rows = RowsOf(Golden()["cases"]["mixed_types"]["rows"]);
  const OrderedJson json = MetricsJson(rows);
  std::vector<std::string> names;
  for (const auto& [name, metrics] : json.items()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"all", "noul", "choice", "score"}));
  EXPECT_FALSE(json["all"].contains("auroc"));
  EXPECT_TRUE(json["noul"].contains("auroc"));
  EXPECT_EQ(json["choice"]["n"], 10);
  EXPECT_EQ(MetricsJson({}), OrderedJson::object());
}

TEST(DecisionMetricsTest, CoverageTakesAnswersOfOneConfidenceTogether) {
  std::vector<Prediction> rows;
  // 19 right ones and a wrong one of confidence 0.9; behind them 20 wrong ones.
  for (int i = 0; i < 20; ++i) {
    rows.push_back(Row(QuestionType::kNoul, {0.1, 0.9}, {i == 0 ? 1.0 : 0.0, i == 0 ? 0.0 : 1.0}));
    rows.push_back(Row(QuestionType::kNoul, {0.2, 0.8}, {1, 0}));
  }
  const OrderedJson metrics = MetricsJson(rows)["all"];
  EXPECT_EQ(metrics["coverage_at_5_percent_error"], 0.5);
  EXPECT_EQ(metrics["confident_errors"], 1);
  rows.push_back(Row(QuestionType::kNoul, {0.1, 0.9}, {1, 0}));
  EXPECT_EQ(MetricsJson(rows)["all"]["coverage_at_5_percent_error"], 0);
}

TEST(DecisionMetricsTest, IntervalsAreThoseOfRecords) {
  const RandomKey key = MakeKey(3, RandomPlace::kTest);
  std::vector<Prediction> rows;
  for (int i = 0; i < 100; ++i) {
    const double p = RandomUniform(key, static_cast<std::uint64_t>(i));
    rows.push_back(Row(QuestionType::kNoul, {1 - p, p}, {i % 2 ? 0.0 : 1.0, i % 2 ? 1.0 : 0.0}, i));
  }
  const OrderedJson metrics = MetricsJson(rows)["all"];
  EXPECT_LT(metrics["intervals"]["brier"][0], metrics["brier"]);
  EXPECT_GT(metrics["intervals"]["brier"][1], metrics["brier"]);
  EXPECT_EQ(MetricsJson(rows)["all"]["intervals"], metrics["intervals"]);
  // All rows of one record: every draw is that record.
  for (Prediction& row : rows) row.record = 7;
  const OrderedJson one = MetricsJson(rows)["all"]["intervals"];
  const double accuracy = metrics["accuracy"].get<double>();
  EXPECT_DOUBLE_EQ(one["accuracy"][0].get<double>(), accuracy);
  EXPECT_DOUBLE_EQ(one["accuracy"][1].get<double>(), accuracy);
  EXPECT_NEAR(one["ece"][0].get<double>(), metrics["ece"].get<double>(), 1e-12);
}

TEST(DecisionMetricsTest, Confusion) {
  const std::vector<Prediction> rows = {Row(QuestionType::kChoice, {0.6, 0.4}, {1, 0}),
                                        Row(QuestionType::kChoice, {0.6, 0.4}, {0, 1}),
                                        Row(QuestionType::kChoice, {0.5, 0.5}, {0, 1})};
  EXPECT_EQ(FormatJson(MetricsJson(rows)["choice"]["confusion"]),
            R"({"":{"keys":["0","1"],"counts":[[1,0],[2,0]]}})");
}

TEST(PredictionTest, LinesAreReadAsTheyAreWritten) {
  Prediction row = Row(QuestionType::kScore, {0.1, 0.2, 0.7}, {0, 0, 1}, 17);
  row.id = "hats";
  row.logits = {1.0 / 3, -2, 1e-30};
  const Prediction read = ReadPrediction(OrderedJson::parse(PredictionLine(row)));
  EXPECT_EQ(read.record, 17);
  EXPECT_EQ(read.id, "hats");
  EXPECT_EQ(read.type, row.type);
  EXPECT_EQ(read.keys, row.keys);
  EXPECT_EQ(read.logits, row.logits);
  EXPECT_EQ(read.probabilities, row.probabilities);
  EXPECT_EQ(read.target, row.target);
}

TEST(PredictionTest, RefusesWhatIsNoPrediction) {
  const auto refuse = [](const std::string& key, const std::string& value,
                         const std::string& part) {
    OrderedJson line = OrderedJson::parse(PredictionLine(Row(QuestionType::kNoul, {1, 0}, {0, 1})));
    line[key] = OrderedJson::parse(value);
    ExpectRefused([&] { ReadPrediction(line); }, part);
  };
  refuse("type", "\"guess\"", "type: expected noul, choice or score");
  refuse("keys", "[]", "keys: expected");
  refuse("keys", "[\"a\"]", "keys: expected");
  refuse("probabilities", "[0.5]", "probabilities: expected 2 numbers, one for each key");
  refuse("probabilities", "[0.5, 0.6]", "sum to 1");
  refuse("target", "[2, -1]", "sum to 1");
  refuse("logits", "[1, \"a\"]", "logits: expected 2 numbers");
  refuse("target", "null", "target: missing");
  refuse("record", "\"a\"", "record: expected a number");
}

TEST(TemperaturesTest, OfTypesAndNumbersOfOptions) {
  const Temperatures t = ParseTemperatures("noul=2, choice=1.5,choice.2=0.5", "here");
  EXPECT_EQ(t.Of(QuestionType::kNoul, 2), 2);
  EXPECT_EQ(t.Of(QuestionType::kChoice, 3), 1.5);
  EXPECT_EQ(t.Of(QuestionType::kChoice, 2), 0.5);
  EXPECT_EQ(t.Of(QuestionType::kScore, 2), 1);
  for (const char* bad : {"noul", "noul=", "noul=x", "guess=1", "predicate=1", "choice.x=1",
                          "choice.=1", "choice.03=1", "choice.27=1", "noul.3=1", "score.11=1",
                          "noul=1,noul=2", "=1", "noul=0", "noul=-1", "noul=nan", "noul=inf"}) {
    SCOPED_TRACE(bad);
    ExpectRefused([&] { ParseTemperatures(bad, "decision_temperature"); },
                  "decision_temperature: ");
  }
}

TEST(TemperaturesTest, SaysWhyATemperatureIsNotUsed) {
  FittedTemperature fitted = {.type = QuestionType::kNoul, .questions = 24, .fitted = 1.31};
  EXPECT_EQ(Describe(fitted), "noul: 1.3100, of 24 questions");
  fitted.is_few = true;
  EXPECT_THAT(Describe(fitted), HasSubstr("24 questions are too few"));
  fitted = {.type = QuestionType::kScore, .questions = 1, .fitted = 20, .is_at_bound = true};
  EXPECT_THAT(Describe(fitted), HasSubstr("20 of 1 question is at its bound"));
}

}  // namespace
}  // namespace qlora
