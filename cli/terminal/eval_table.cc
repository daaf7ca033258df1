#include "terminal/eval_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "terminal/decision_table.h"

namespace qlora {
namespace {

// Scripts read these names: they are part of the interface.
struct Figure {
  std::string name;
  double value;
  int digits;
};

std::vector<Figure> FiguresOf(const EvalResult& result) {
  std::vector<Figure> figures = {{"loss", result.loss, 6}};
  for (const MetricValue& it : result.metrics) figures.push_back({it.name, it.value, 6});
  if (!result.metrics.empty()) return figures;
  figures.push_back({"perplexity", result.perplexity, 4});
  figures.push_back({"accuracy", result.token_accuracy, 4});
  return figures;
}

// The width of their names.
int WidthOf(const std::vector<Figure>& figures) {
  std::size_t width = 10;
  for (const Figure& figure : figures) width = std::max(width, figure.name.size());
  return static_cast<int>(width);
}

}  // namespace

std::string EvalTable(const EvalResult& result) {
  const std::vector<Figure> figures = FiguresOf(result);
  const int width = WidthOf(figures);
  std::string table;
  for (const Figure& row : figures) {
    table += fmt::format("{:<{}}  {:.{}f}\n", row.name, width, row.value, row.digits);
  }
  return table + fmt::format("{0:<{1}}  {2}\n{3:<{1}}  {4}\n{5:<{1}}  {6:.2f}\n", "tokens", width,
                             result.tokens, "sequences", result.sequences, "seconds",
                             result.seconds);
}

std::string EvalComparison(const EvalResult& base, const EvalResult& adapter) {
  std::vector<Figure> left = FiguresOf(base);
  std::vector<Figure> right = FiguresOf(adapter);
  left.push_back({"seconds", base.seconds, 2});
  right.push_back({"seconds", adapter.seconds, 2});
  const int width = WidthOf(left);
  std::string table = fmt::format("{:<{}}  {:>12}  {:>12}\n", "", width, "base", "adapter");
  for (std::size_t i = 0; i < left.size(); ++i) {
    table += fmt::format("{0:<{1}}  {2:>12.{4}f}  {3:>12.{4}f}\n", left[i].name, width,
                         left[i].value, right[i].value, left[i].digits);
  }
  // Base and adapter have the same tokens and sequences: the data are read once.
  return table + fmt::format("{0:<{1}}  {2}\n{3:<{1}}  {4}\n", "tokens", width, adapter.tokens,
                             "sequences", adapter.sequences);
}

OrderedJson EvalJson(const EvalResult& result, bool per_token) {
  if (result.decision) {
    OrderedJson json = DecisionJson(*result.decision);
    json["loss"] = result.loss;
    json["sequences"] = result.sequences;
    json["dropped"] = result.dropped;
    json["prompt_layout"] = result.layout;
    json["seconds"] = result.seconds;
    return json;
  }
  OrderedJson json = {{"loss", result.loss}};
  if (result.metrics.empty()) {
    json["perplexity"] = result.perplexity;
    json["token_accuracy"] = result.token_accuracy;
  }
  for (const MetricValue& metric : result.metrics) json[metric.name] = metric.value;
  json["tokens"] = result.tokens;
  json["sequences"] = result.sequences;
  json["dropped"] = result.dropped;
  json["truncated"] = result.truncated;
  json["prompt_layout"] = result.layout;
  json["seconds"] = result.seconds;
  if (per_token) {
    // One number a token: for long data by far the largest part of the object, hence on request.
    json["logprobs"] = result.logprobs;
    json["token_ids"] = result.token_ids;
  }
  return json;
}

}  // namespace qlora
