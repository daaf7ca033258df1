#include "data/sample_display.h"

#include <fmt/format.h>

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

// Neighbouring tokens that are all trained on, or all masked.
struct Stretch {
  bool trained;
  std::string text;
};

// The text of each stretch is the text that its tokens add to the tokens before: a decoder that
// starts within the sample keeps the spaces that it would strip at the start of a text.
std::vector<Stretch> StretchesOf(const Sample& sample, const Tokenizer& tokenizer) {
  const std::span<const std::int32_t> ids = sample.ids;
  const auto is_trained = [&](std::int64_t t) {
    return t > 0 && sample.labels[t] != kIgnoreLabel;  // nothing predicts the first token
  };
  std::vector<Stretch> stretches;
  std::int64_t end = 0;
  while (end < std::ssize(ids)) {
    Stretch stretch = {is_trained(end), {}};
    Tokenizer::StreamDecoder decoder(tokenizer, /*skip_special_tokens=*/false, ids.first(end));
    // ids      <s> Q : 2 + 2 ? A : 4 </s>
    // labels    .  . . . . . . . . 4 </s>
    // text     <s>Q: 2+2? A:[ 4</s>]
    for (; end < std::ssize(ids) && is_trained(end) == stretch.trained; ++end) {
      stretch.text += decoder.Add(ids[end]);
    }
    stretch.text += decoder.Finish();
    stretches.push_back(std::move(stretch));
  }
  return stretches;
}

}  // namespace

std::string RenderSample(const Sample& sample, const Tokenizer& tokenizer, bool color) {
  std::string out;
  for (const auto& [trained, text] : StretchesOf(sample, tokenizer)) {
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
    for (const auto& [trained, text] : StretchesOf(sample, tokenizer)) {
      parts.push_back({{"trained", trained}, {"text", text}});
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
