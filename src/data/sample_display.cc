#include "data/sample_display.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "base/printable.h"

namespace qlora {
namespace {

// Escape sequences of terminals: green, grey, and back.
constexpr std::string_view kTrained = "\x1b[32m";
constexpr std::string_view kMasked = "\x1b[90m";
constexpr std::string_view kReset = "\x1b[0m";

// Neighbouring tokens of a sequence that are all trained on, or all masked; or a choice.
struct Stretch {
  bool trained;
  std::string text;
  std::int64_t branch = -1;  // -1: a prefix, or the only sequence
  bool is_choice = false;
};

// The tokens [begin, end) of a sample, which go on from the first `prefix` ones.
struct Part {
  std::int64_t prefix;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t branch;
};

std::vector<Part> PartsOf(const Sample& sample) {
  const std::int64_t size = std::ssize(sample.ids);
  if (sample.branches.empty()) return {{0, 0, size, -1}};
  const std::int64_t prefix = sample.branches.front();
  std::vector<Part> parts;
  if (prefix > 0) parts.push_back({0, 0, prefix, -1});
  for (std::int64_t b = 0; b < std::ssize(sample.branches); ++b) {
    const bool is_last = b + 1 == std::ssize(sample.branches);
    parts.push_back({prefix, sample.branches[b], is_last ? size : sample.branches[b + 1], b});
  }
  return parts;
}

// "B", or "A 0.3, B 0.7": the labels that have a probability.
std::string TextOf(const Choice& choice, const Tokenizer& tokenizer) {
  std::vector<std::string> labels;
  for (std::size_t k = 0; k < choice.labels.size(); ++k) {
    if (choice.targets[k] == 0) continue;
    labels.push_back(tokenizer.TokenText(choice.labels[k]));
    if (choice.targets[k] != 1) labels.back() += fmt::format(" {:.3g}", choice.targets[k]);
  }
  return fmt::format("{}", fmt::join(labels, ", "));
}

// The text of each stretch is the text that its tokens add to the tokens before: a decoder that
// starts within the sample keeps the spaces that it would strip at the start of a text.
void AddStretches(const Sample& sample, const Part& part, const Tokenizer& tokenizer,
                  std::vector<Stretch>& stretches) {
  const auto first = sample.ids.begin();
  std::vector<std::int32_t> ids(first, first + part.prefix);
  ids.insert(ids.end(), first + part.begin, first + part.end);
  const auto is_trained = [&](std::int64_t t) {
    return t > part.begin && sample.labels[t] != kIgnoreLabel;  // nothing predicts the first token
  };
  std::int64_t end = part.begin;
  while (end < part.end) {
    Stretch stretch = {is_trained(end), {}, part.branch};
    Tokenizer::StreamDecoder decoder(tokenizer, /*skip_special_tokens=*/false,
                                     std::span(ids).first(part.prefix + end - part.begin));
    // ids      <s> Q : 2 + 2 ? A : 4 </s>
    // labels    .  . . . . . . . . 4 </s>
    // text     <s>Q: 2+2? A:[ 4</s>]
    for (; end < part.end && is_trained(end) == stretch.trained; ++end) {
      stretch.text += decoder.Add(sample.ids[end]);
    }
    stretch.text += decoder.Finish();
    stretches.push_back(std::move(stretch));
  }
  for (const Choice& choice : sample.choices) {
    if (choice.row < part.begin || choice.row >= part.end) continue;
    stretches.push_back({true, TextOf(choice, tokenizer), part.branch, /*is_choice=*/true});
  }
}

std::vector<Stretch> StretchesOf(const Sample& sample, const Tokenizer& tokenizer) {
  std::vector<Stretch> stretches;
  for (const Part& part : PartsOf(sample)) AddStretches(sample, part, tokenizer, stretches);
  return stretches;
}

struct PairFigures {
  double chosen = 0;    // trained tokens of an answer, mean
  double rejected = 0;  // likewise
  double saved = 0;     // share of the rows of pairs that were computed apart
};
PairFigures FiguresOf(const Dataset& pairs) {
  PairFigures figures;
  double shared = 0;
  double apart = 0;
  for (std::int64_t i = 0; i < pairs.size(); ++i) {
    figures.chosen += pairs.chosen(i);
    figures.rejected += pairs.supervised(i) - pairs.chosen(i);
    shared += pairs.length(i);
    // unfolded = prefix + (prefix + chosen) + (prefix + rejected)
    apart += 0.5 * (pairs.unfolded(i) + pairs.length(i));
  }
  const auto n = static_cast<double>(pairs.size());
  return {figures.chosen / n, figures.rejected / n, 1 - shared / apart};
}

}  // namespace

std::string RenderSample(const Sample& sample, const Tokenizer& tokenizer, bool color) {
  std::string out;
  std::int64_t branch = -1;
  bool begins_line = true;
  for (const auto& [trained, text, of_branch, is_choice] : StretchesOf(sample, tokenizer)) {
    if (of_branch != branch) out += begins_line ? "| " : "\n| ";
    branch = of_branch;
    begins_line = text.ends_with('\n');
    out += color ? (trained ? kTrained : kMasked) : (trained ? "[" : "");
    // Data may hold escape sequences, which would move the cursor or worse.
    out += Printable(text);
    out += color ? kReset : (trained ? "]" : "");
  }
  return out;
}

// Renders a line with the place and counts before each sample; the legend once, at the end.
std::string RenderSamples(const Dataset& dataset, const Tokenizer& tokenizer, std::int64_t samples,
                          bool color) {
  std::string out;
  const std::int64_t shown = std::min(samples, dataset.size());
  for (std::int64_t i = 0; i < shown; ++i) {
    const Sample sample = dataset.Get(i);
    fmt::format_to(std::back_inserter(out), "--- {}: {} tokens, {} trained\n",
                   Printable(dataset.Where(i)), sample.ids.size(), CountSupervised(sample));
    out += RenderSample(sample, tokenizer, color) + "\n";
  }
  if (shown > 0) {
    out += color ? fmt::format("--- {}trained{}, {}masked{}\n", kTrained, kReset, kMasked, kReset)
                 : std::string("--- [trained], masked\n");
  }
  return out;
}

OrderedJson SamplesToJson(const Dataset& dataset, const Tokenizer& tokenizer,
                          std::int64_t samples) {
  OrderedJson list = OrderedJson::array();
  for (std::int64_t i = 0; i < std::min(samples, dataset.size()); ++i) {
    const Sample sample = dataset.Get(i);
    OrderedJson parts = OrderedJson::array();
    for (const auto& [trained, text, branch, is_choice] : StretchesOf(sample, tokenizer)) {
      parts.push_back({{"trained", trained}, {"text", text}});
      if (branch >= 0) parts.back()["branch"] = branch;
      if (is_choice) parts.back()["choice"] = true;
    }
    list.push_back({{"place", dataset.Where(i)},
                    {"ids", sample.ids},
                    {"labels", sample.labels},
                    {"parts", std::move(parts)}});
  }
  return list;
}

TrainingDataReport ReportTrainingData(const Dataset& train, const std::optional<Dataset>& held_out,
                                      const StreamOptions& stream) {
  TrainingDataReport report;
  report.train = train.report();
  const BatchStream batches(train, stream);  // made in any case: it checks the weights
  if (stream.packing) {
    report.packing = {batches.MicroBatchesIn(0), batches.MaxRows(), batches.FillRate()};
  }
  if (held_out) {
    report.held_out = held_out->report();
    report.shared = held_out->CountShared(train);
    report.is_split = held_out->SharesFilesWith(train);
  }
  return report;
}

std::string RenderPairs(const Dataset& pairs) {
  const PairFigures figures = FiguresOf(pairs);
  return fmt::format(
      "answers: {:.1f} tokens are trained of a chosen one, {:.1f} of a rejected one ({:+.1f}); "
      "shared prompts save {:.0f} % of the rows\n",
      figures.chosen, figures.rejected, figures.chosen - figures.rejected, 100 * figures.saved);
}

OrderedJson PairsToJson(const Dataset& pairs) {
  const PairFigures figures = FiguresOf(pairs);
  return {{"chosen_tokens", figures.chosen},
          {"rejected_tokens", figures.rejected},
          {"saved_rows", figures.saved}};
}

std::string WarnOfSharedSamples(const TrainingDataReport& report) {
  // Some shared samples are usual in public data; from a half on, eval_loss measures memory.
  if (report.shared == 0 || 2 * report.shared < report.held_out->samples) return {};
  return fmt::format(
      "{} of {} evaluation samples are also in the training data: eval_loss does not show what the "
      "model does with new text; {}",
      report.shared, report.held_out->samples,
      report.is_split ? "the data hold duplicates; remove them"
                      : "name other data with eval_dataset, or hold some out with val_set_size");
}

std::string RenderTrainingData(const TrainingDataReport& report) {
  std::string out = RenderReport(report.train);
  if (report.packing) {
    fmt::format_to(
        std::back_inserter(out), "packing: {} micro-batches of up to {} tokens, {:.1f} % full\n",
        report.packing->micro_batches, report.packing->capacity, 100 * report.packing->fill_rate);
  }
  if (report.held_out) out += "held out for evaluation\n" + RenderReport(*report.held_out);
  if (report.anchors) out += "anchor\n" + RenderReport(*report.anchors);
  if (report.shared > 0) {
    fmt::format_to(std::back_inserter(out),
                   "evaluation samples that are also in the training data: {}\n", report.shared);
  }
  return out;
}

OrderedJson TrainingDataToJson(const TrainingDataReport& report) {
  OrderedJson json = ReportToJson(report.train);
  if (report.packing) {
    json["packing"] = {{"micro_batches", report.packing->micro_batches},
                       {"tokens", report.packing->capacity},
                       {"fill_rate", report.packing->fill_rate}};
  }
  if (report.held_out) {
    json["held_out"] = ReportToJson(*report.held_out);
    json["held_out"]["also_trained_on"] = report.shared;
  }
  if (report.anchors) json["anchor"] = ReportToJson(*report.anchors);
  return json;
}

}  // namespace qlora
