#include "data/dataset_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/json.h"

namespace qlora {
namespace {

// A count of opening files: its key in JSON, and its text for people.
struct Counted {
  const char* key;
  std::int64_t DataReport::*count;
  std::string_view text;
};
// One table for the text, the JSON and the index on disk: no count can be missing in one of them.
constexpr std::array<Counted, 15> kRemarks = {{
    {"dropped_long", &DataReport::dropped_long,
     "records dropped, longer than max_length (raise it, or cut them with over_long: truncate)"},
    {"truncated", &DataReport::truncated, "records cut to max_length"},
    {"truncated_tokens", &DataReport::truncated_tokens, "tokens cut off"},
    {"dropped_masked", &DataReport::dropped_masked,
     "records dropped, no trained token left by the cut"},
    {"dropped_untrained", &DataReport::dropped_untrained,
     "records dropped, no token is trained on (all masked, or none before them)"},
    {"dropped_tail", &DataReport::dropped_tail, "tokens at the end of a text left out"},
    {"split_boundaries", &DataReport::split_boundaries,
     "records where a token would span masked and trained text (end prompts with a line break; in "
     "conversations, the chat template decides)"},
    {"empty_completions", &DataReport::empty_completions, "records with an empty completion"},
    {"without_eos", &DataReport::without_eos,
     "samples that do not train an end of text at their end"},
    {"unlisted_stops", &DataReport::unlisted_stops,
     "samples that end in a special token that the model does not list as EOS (list it in "
     "generation_config.json, or the model will not stop there)"},
    {"closed_turns", &DataReport::closed_turns,
     "conversations whose last turn the chat template leaves open: EOS was appended (append_eos: "
     "false trains them as they are)"},
    {"hidden_calls", &DataReport::hidden_calls,
     "conversations with tool calls that the chat template does not show (name a template that "
     "knows tools)"},
    {"unread", &DataReport::unread,
     "conversations with a field that the chat template never reads"},
    {"without_bos", &DataReport::without_bos,
     "samples without the BOS that the tokenizer adds to text"},
    {"foreign_labels", &DataReport::foreign_labels,
     "labels that are neither the token itself nor ignored"},
}};

// Returns 0 for a whole of 0, not NaN.
double Percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string_view Are(std::int64_t count) { return count == 1 ? "is" : "are"; }

// Renders a line for each bucket from the first one that is not empty:
//   "   1-20  ##########                               7"
void RenderHistogram(const DataReport& report, std::string& text) {
  constexpr std::int64_t kBarWidth = 40;
  const std::int64_t most = *std::max_element(report.buckets.begin(), report.buckets.end());
  const std::size_t digits =
      fmt::formatted_size("{}", std::ssize(report.buckets) * report.bucket_width);
  text += "tokens per sample\n";
  const std::int64_t shortest = (report.shortest - 1) / report.bucket_width;
  for (std::int64_t b = shortest; b < std::ssize(report.buckets); ++b) {
    const std::int64_t first = b * report.bucket_width;
    const std::int64_t count = report.buckets[b];
    const std::int64_t bar = (count * kBarWidth + most - 1) / most;  // rounded up: 1 shows too
    fmt::format_to(std::back_inserter(text), "  {:>{}}-{:<{}} {:<{}} {}\n", first + 1, digits,
                   first + report.bucket_width, digits, std::string(bar, '#'), kBarWidth, count);
  }
}

}  // namespace

// Takes the narrowest round buckets that are few enough: readers compare 100 to 200 at a glance,
// not 97 to 194.
void CountLengths(const std::vector<std::int32_t>& lengths, std::int64_t max_buckets,
                  DataReport& report) {
  const std::int64_t longest =
      lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  // The widths are tried in the order 1, 2, 5, 10, 20, 50 ...
  const auto fits = [&](std::int64_t width) { return width * max_buckets >= longest; };
  report.bucket_width = 1;
  for (std::int64_t power = 1; !fits(report.bucket_width); power *= 10) {
    for (const std::int64_t digit : {1, 2, 5}) {
      // The loop stops at the first width that fits, though it runs through all three digits.
      if (!fits(report.bucket_width)) report.bucket_width = digit * power;
    }
  }
  const std::int64_t buckets = (longest + report.bucket_width - 1) / report.bucket_width;
  report.buckets.assign(buckets, 0);
  for (const std::int32_t length : lengths) {
    // Buckets end at round numbers: 1 ... 100, 101 ... 200, as max_length itself does.
    ++report.buckets[(length - 1) / report.bucket_width];
  }
}

// Files, totals, lengths, then every remark that applies.
std::string RenderReport(const DataReport& report) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const FileReport& file : report.files) {
    const std::string fields = file.fields.empty() ? "" : " (" + file.fields + ")";
    fmt::format_to(out, "{}: {}, format {}{}, {} of {} {} kept", file.path, file.container,
                   file.format, fields, file.samples, file.records,
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

OrderedJson CountsToJson(const DataReport& counts) {
  OrderedJson json = {{"longest_record", counts.longest_record}};
  for (const Counted& remark : kRemarks) json[remark.key] = counts.*remark.count;
  json["unread_fields"] = counts.unread_fields;
  return json;
}

std::optional<DataReport> CountsFromJson(const std::string& text) {
  OrderedJson json;
  if (TryParseJson(text, json) || !json.is_object()) return std::nullopt;
  DataReport counts;
  const auto take = [&json](const char* key, std::int64_t& count) {
    const auto field = json.find(key);
    // An index of a version that counted less has no such key: it is made again.
    if (field == json.end() || !field->is_number_integer()) return false;
    count = field->get<std::int64_t>();
    return true;
  };
  bool whole = take("longest_record", counts.longest_record);
  for (const Counted& remark : kRemarks) whole = whole && take(remark.key, counts.*remark.count);
  const auto names = json.find("unread_fields");
  whole = whole && names != json.end() && names->is_array();
  for (std::size_t i = 0; whole && i < names->size(); ++i) {
    whole = (*names)[i].is_string();
    if (whole) counts.unread_fields.push_back((*names)[i]);
  }
  return whole ? std::optional(counts) : std::nullopt;
}

void AddCounts(const DataReport& counts, DataReport& report) {
  report.longest_record = std::max(report.longest_record, counts.longest_record);
  for (const Counted& remark : kRemarks) report.*remark.count += counts.*remark.count;
  AddNames(counts.unread_fields, report.unread_fields);
}

void AddNames(const std::vector<std::string>& names, std::vector<std::string>& all) {
  all.insert(all.end(), names.begin(), names.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

std::string WarnOfUnreadFields(const DataReport& report) {
  if (report.unread == 0) return {};
  return fmt::format(
      "the chat template never reads fields of the data, so that the model does not see them: {} "
      "(conversations: {}); name a template that reads them with chat_template, or take them out "
      "of the data",
      fmt::join(report.unread_fields, ", "), report.unread);
}

// Returns "1250 of 1531 records (82 %) are dropped or cut: 1250 are dropped for having more than
// ...".
std::string WarnOfLostRecords(const DataReport& report, std::string_view records) {
  std::int64_t count = 0;
  for (const FileReport& file : report.files) count += file.records;
  const std::int64_t lost =
      report.dropped_long + report.truncated + report.dropped_masked + report.dropped_untrained;
  // Up to a tenth is usual and part of the report; the user seldom wants more.
  if (10 * lost <= count) return {};
  std::vector<std::string> causes;
  const auto add = [&causes](std::int64_t number, std::string_view cause) {
    if (number > 0) causes.push_back(fmt::format("{} {} {}", number, Are(number), cause));
  };
  const std::string raise =
      fmt::format("raise max_length, the longest has {} tokens", report.longest_record);
  add(report.dropped_long,
      fmt::format("dropped for having more than {} tokens ({}; or cut them with over_long "
                  "truncate)",
                  report.max_length, raise));
  add(report.truncated, fmt::format("cut to {} tokens ({})", report.max_length, raise));
  add(report.dropped_masked,
      fmt::format("dropped because the cut to {} tokens leaves no trained token ({})",
                  report.max_length, raise));
  add(report.dropped_untrained,
      "dropped because no token is trained on (all are masked; train_on_inputs trains on "
      "prompts too)");
  return fmt::format("{} of {} {} ({:.0f} %) {} dropped or cut: {}", lost, count, records,
                     Percent(lost, count), Are(lost), fmt::join(causes, "; "));
}

// Returns the report for programs: all counts, zeros too. Keys are part of the interface.
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
                             {"fields", file.fields},
                             {"weight", file.weight},
                             {"records", file.records},
                             {"samples", file.samples}});
  }
  return json;
}

OrderedJson RemarksToJson() {
  OrderedJson json = OrderedJson::object();
  for (const Counted& remark : kRemarks) json[remark.key] = remark.text;
  json["duplicates"] = "duplicates";
  return json;
}

}  // namespace qlora
