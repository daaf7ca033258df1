#include "data/dataset_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

namespace qlora {
namespace {

struct Counted {
  const char* key;
  std::int64_t DataReport::*count;
  std::string_view text;
};
constexpr std::array<Counted, 11> kRemarks = {{
    {"dropped_long", &DataReport::dropped_long,
     "records dropped, longer than max_length (raise it, or cut them with over_long: truncate)"},
    {"truncated", &DataReport::truncated, "records cut to max_length"},
    {"truncated_tokens", &DataReport::truncated_tokens, "tokens cut off"},
    {"dropped_masked", &DataReport::dropped_masked,
     "records dropped, no trained token left by the cut"},
    {"dropped_tail", &DataReport::dropped_tail, "tokens at the end of a text left out"},
    {"split_boundaries", &DataReport::split_boundaries,
     "records where a token would span masked and trained text (end prompts with a line break)"},
    {"empty_completions", &DataReport::empty_completions, "records with an empty completion"},
    {"without_eos", &DataReport::without_eos,
     "samples that do not train an end of text at their end"},
    {"unlisted_stops", &DataReport::unlisted_stops,
     "samples that end in a special token that the model does not list as EOS (list it in "
     "generation_config.json, or the model will not stop there)"},
    {"without_bos", &DataReport::without_bos,
     "samples without the BOS that the tokenizer adds to text"},
    {"foreign_labels", &DataReport::foreign_labels,
     "labels that are neither the token itself nor ignored"},
}};

double Percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

void RenderHistogram(const DataReport& report, std::string& text) {
  constexpr std::int64_t kBarWidth = 40;
  const std::int64_t most = *std::max_element(report.buckets.begin(), report.buckets.end());
  const std::size_t digits = fmt::formatted_size(
      "{}", static_cast<std::int64_t>(report.buckets.size()) * report.bucket_width);
  text += "tokens per sample\n";
  const auto shortest = static_cast<std::size_t>((report.shortest - 1) / report.bucket_width);
  for (std::size_t b = shortest; b < report.buckets.size(); ++b) {
    const auto first = static_cast<std::int64_t>(b) * report.bucket_width;
    const std::int64_t count = report.buckets[b];
    const std::int64_t bar = (count * kBarWidth + most - 1) / most;  // a count shows at least one
    fmt::format_to(std::back_inserter(text), "  {:>{}}-{:<{}} {:<{}} {}\n", first + 1, digits,
                   first + report.bucket_width, digits,
                   std::string(static_cast<std::size_t>(bar), '#'), kBarWidth, count);
  }
}

}  // namespace

void CountLengths(const std::vector<std::int32_t>& lengths, std::int64_t max_buckets,
                  DataReport& report) {
  const std::int64_t longest =
      lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const auto fits = [&](std::int64_t width) { return width * max_buckets >= longest; };
  report.bucket_width = 1;
  for (std::int64_t power = 1; !fits(report.bucket_width); power *= 10) {
    for (const std::int64_t digit : {1, 2, 5}) {
      if (!fits(report.bucket_width)) report.bucket_width = digit * power;
    }
  }
  const std::int64_t buckets = (longest + report.bucket_width - 1) / report.bucket_width;
  report.buckets.assign(buckets, 0);
  for (const std::int32_t length : lengths) {
    ++report.buckets[(length - 1) / report.bucket_width];
  }
}

std::string RenderReport(const DataReport& report) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const FileReport& file : report.files) {
    fmt::format_to(out, "{}: {}, format {}, {} of {} {} kept", file.path, file.container,
                   file.format, file.samples, file.records,
                   file.format == "raw" ? "windows" : "records");
    if (file.weight != 1) fmt::format_to(out, ", weight {}", file.weight);
    text += '\n';
  }
  fmt::format_to(out, "samples {}, tokens {}, trained tokens {} ({:.1f} %)\n", report.samples,
                 report.tokens, report.supervised, Percent(report.supervised, report.tokens));
  if (report.samples > 0) {
    fmt::format_to(out, "lengths {} to {}, mean {:.1f}, max_length {}\n", report.shortest,
                   report.longest,
                   static_cast<double>(report.tokens) / static_cast<double>(report.samples),
                   report.max_length);
    RenderHistogram(report, text);
  }
  if (report.longest_record > report.max_length) {
    fmt::format_to(out, "tokens of the longest record: {}\n", report.longest_record);
  }
  for (const Counted& remark : kRemarks) {
    const std::int64_t count = report.*remark.count;
    if (count > 0) fmt::format_to(out, "{}: {}\n", remark.text, count);
  }
  if (report.duplicates > 0) {
    fmt::format_to(out, "duplicates: {} ({:.1f} %)\n", report.duplicates,
                   Percent(report.duplicates, report.samples));
  }
  return text;
}

OrderedJson CountsToJson(const DataReport& report) {
  OrderedJson counts = {{"longest_record", report.longest_record}};
  for (const Counted& remark : kRemarks) counts[remark.key] = report.*remark.count;
  return counts;
}

void AddCounts(const OrderedJson& counts, DataReport& report) {
  report.longest_record =
      std::max(report.longest_record, counts.at("longest_record").get<std::int64_t>());
  for (const Counted& remark : kRemarks) {
    report.*remark.count += counts.at(remark.key).get<std::int64_t>();
  }
}

OrderedJson ReportToJson(const DataReport& report) {
  OrderedJson json = {{"samples", report.samples},           {"tokens", report.tokens},
                      {"trained_tokens", report.supervised}, {"shortest", report.shortest},
                      {"longest", report.longest},           {"max_length", report.max_length},
                      {"duplicates", report.duplicates}};
  json.update(CountsToJson(report));
  json["histogram"] = {{"bucket_width", report.bucket_width}, {"counts", report.buckets}};
  json["files"] = OrderedJson::array();
  for (const FileReport& file : report.files) {
    json["files"].push_back({{"path", file.path},
                             {"container", file.container},
                             {"format", file.format},
                             {"weight", file.weight},
                             {"records", file.records},
                             {"samples", file.samples}});
  }
  return json;
}

}  // namespace qlora
