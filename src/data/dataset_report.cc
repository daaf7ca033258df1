#include "data/dataset_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/printable.h"
#include "io/json.h"
#include "prompt/record_format.h"
#include "records/data_files.h"

namespace qlora {
namespace {

// A count of opening files: its key in JSON, its text for people, and whether the first place
// counts to them.
struct Remark {
  const char* key;
  std::int64_t DataReport::*count;
  std::string_view text;
  bool has_place = false;
};
// One table for the text, the JSON and the index on disk: no count can be missing in one of them.
constexpr std::array<Remark, 18> kRemarks = {{
    {"dropped_long", &DataReport::dropped_long,
     "samples dropped, longer than max_length (raise it, or cut them with over_long: truncate)",
     true},
    {"truncated", &DataReport::truncated, "samples cut to max_length", true},
    {"truncated_tokens", &DataReport::truncated_tokens, "tokens cut off"},
    {"dropped_masked", &DataReport::dropped_masked,
     "samples dropped, no trained token left by the cut", true},
    {"dropped_untrained", &DataReport::dropped_untrained,
     "samples dropped, no token is trained on (all masked, or none before them)", true},
    {"dropped_identical", &DataReport::dropped_identical,
     "pairs dropped, the chosen and the rejected answer have the same tokens", true},
    {"dropped_equal_cut", &DataReport::dropped_equal_cut,
     "pairs dropped, the answers have the same tokens when cut to max_length (raise it)", true},
    {"dropped_bad", &DataReport::dropped_bad, "records dropped, they cannot be read"},
    {"dropped_tail", &DataReport::dropped_tail, "tokens at the end of a text left out"},
    {"split_boundaries", &DataReport::split_boundaries,
     "samples where a token would span masked and trained text (end prompts with a line break; in "
     "conversations, the chat template decides)"},
    {"empty_completions", &DataReport::empty_completions, "samples with an empty completion", true},
    {"without_eos", &DataReport::without_eos,
     "samples that do not train an end of text at their end"},
    {"unlisted_stops", &DataReport::unlisted_stops,
     "samples that end in a special token that the model does not list as EOS (list it in "
     "generation_config.json, or the model will not stop there)"},
    {"closed_turns", &DataReport::closed_turns,
     "conversations whose last turn the chat template leaves open: EOS was appended (append_eos: "
     "false trains them as they are)"},
    {"cut_answers", &DataReport::cut_answers,
     "samples cut within an answer, which train it without its end", true},
    {"without_bos", &DataReport::without_bos,
     "samples without the BOS that the tokenizer adds to text"},
    {"own_bos", &DataReport::own_bos,
     "texts that begin with BOS: the one that the tokenizer adds is left out"},
    {"foreign_labels", &DataReport::foreign_labels,
     "labels that are neither the token itself nor ignored"},
}};

// Findings that are collected when files are opened.
struct Found {
  const char* key;
  std::vector<DataFinding> DataReport::*list;
};
constexpr std::array<Found, 2> kFound = {
    {{"findings", &DataReport::findings}, {"not_read", &DataReport::not_read}}};

OrderedJson FindingsToJson(const std::vector<DataFinding>& findings) {
  OrderedJson list = OrderedJson::array();
  for (const DataFinding& one : findings) {
    list.push_back(
        {{"what", one.what}, {"records", one.records}, {"first", one.first}, {"quote", one.quote}});
  }
  return list;
}

// False for JSON that FindingsToJson has not written.
bool TakeFindings(const OrderedJson& json, const char* key, std::vector<DataFinding>& findings) {
  const auto list = json.find(key);
  if (list == json.end() || !list->is_array()) return false;
  for (const OrderedJson& one : *list) {
    const auto text = [&one](const char* name) {
      return one.is_object() && one.contains(name) && one[name].is_string()
                 ? one[name].get<std::string>()
                 : std::string();
    };
    const bool is_whole = one.is_object() && one.contains("records") &&
                          one["records"].is_number_integer() && !text("what").empty();
    if (!is_whole) return false;
    findings.push_back({text("what"), one["records"], text("first"), text("quote")});
  }
  return true;
}

// Returns 0 for a whole of 0, not NaN.
double Percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string_view Are(std::int64_t count) { return count == 1 ? "is" : "are"; }

// Returns ", the first data.jsonl:2", or "" where the report names no place of a count.
std::string FirstPlace(const DataReport& report, const char* key) {
  const auto place = report.first_places.find(key);
  return place == report.first_places.end() ? "" : ", the first " + Printable(place->second);
}

// Renders a line for each bucket from the first one that is not empty:
//   "   1-20  ##########                               7"
void RenderHistogram(const DataReport& report, std::string& text) {
  constexpr std::int64_t kBarWidth = 40;
  const std::int64_t most = *std::ranges::max_element(report.buckets);
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
  const std::int64_t longest = lengths.empty() ? 0 : *std::ranges::max_element(lengths);
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
    const char* const unit = file.format == "raw" ? "windows" : "records";
    text += Printable(
        fmt::format("{}: {}, format {}{}, ", file.path, file.container, file.format, fields));
    fmt::format_to(out, "{} of {} kept", file.samples, DescribeFound({&file, 1}, unit));
    if (file.weight != 1) fmt::format_to(out, ", weight {}", file.weight);
    text += '\n';
  }
  for (const std::string& note : report.notes) text += Printable(note) + '\n';
  fmt::format_to(out, "samples {}, tokens {}, trained tokens {} ({:.1f} %)\n", report.samples,
                 report.tokens, report.supervised, Percent(report.supervised, report.tokens));
  if (report.samples > 0) {
    fmt::format_to(out, "lengths {} to {}, mean {:.1f}, max_length {}", report.shortest,
                   report.largest,
                   static_cast<double>(report.tokens) / static_cast<double>(report.samples),
                   report.max_length);
    // It is what max_length limits, and shorter where a sample is several sequences.
    if (report.longest != report.largest) {
      fmt::format_to(out, " (longest sequence {})", report.longest);
    }
    text += '\n';
    RenderHistogram(report, text);
  }
  if (report.longest_record > report.max_length) {
    fmt::format_to(out, "tokens of the longest record: {}\n", report.longest_record);
  }
  for (const Remark& remark : kRemarks) {
    const std::int64_t count = report.*remark.count;
    if (count == 0) continue;
    fmt::format_to(out, "{}: {}{}\n", remark.text, count, FirstPlace(report, remark.key));
  }
  for (const std::string& reason : report.bad_reasons) text += "  " + Printable(reason) + '\n';
  if (const auto more = report.dropped_bad - std::ssize(report.bad_reasons); more > 0) {
    fmt::format_to(out, "  and {} more\n", more);
  }
  if (!report.readings.empty()) {
    text += Printable(fmt::format("given to the chat template under another name: {}\n",
                                  fmt::join(report.readings, ", ")));
  }
  if (report.duplicates > 0) {
    fmt::format_to(out, "duplicates: {} ({:.1f} %){}\n", report.duplicates,
                   Percent(report.duplicates, report.samples), FirstPlace(report, "duplicates"));
  }
  return text;
}

OrderedJson CountsToJson(const DataReport& counts) {
  OrderedJson json = {{"longest_record", counts.longest_record}};
  for (const Remark& remark : kRemarks) json[remark.key] = counts.*remark.count;
  for (const Found& found : kFound) json[found.key] = FindingsToJson(counts.*found.list);
  json["readings"] = counts.readings;
  json["bad_reasons"] = counts.bad_reasons;
  json["first_places"] = counts.first_places;
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
  for (const Remark& remark : kRemarks) whole = whole && take(remark.key, counts.*remark.count);
  const auto take_texts = [&json](const char* key, std::vector<std::string>& texts) {
    const auto list = json.find(key);
    bool is_list = list != json.end() && list->is_array();
    for (std::size_t i = 0; is_list && i < list->size(); ++i) {
      is_list = (*list)[i].is_string();
      if (is_list) texts.push_back((*list)[i]);
    }
    return is_list;
  };
  for (const Found& found : kFound) {
    whole = whole && TakeFindings(json, found.key, counts.*found.list);
  }
  whole = whole && take_texts("readings", counts.readings) &&
          take_texts("bad_reasons", counts.bad_reasons) &&
          counts.bad_reasons.empty() == (counts.dropped_bad == 0);
  const auto places = json.find("first_places");
  whole = whole && places != json.end() && places->is_object();
  for (const Remark& remark : kRemarks) {
    if (!whole || !remark.has_place || counts.*remark.count == 0) continue;
    const auto place = places->find(remark.key);
    whole = place != places->end() && place->is_string();
    if (whole) counts.first_places[remark.key] = *place;
  }
  return whole ? std::optional(counts) : std::nullopt;
}

void NameFirsts(DataReport& counts, const std::function<std::string()>& place) {
  for (const Remark& remark : kRemarks) {
    if (!remark.has_place || counts.*remark.count == 0) continue;
    if (!counts.first_places.contains(remark.key)) counts.first_places[remark.key] = place();
  }
}

void AddCounts(const DataReport& counts, DataReport& report) {
  report.longest_record = std::max(report.longest_record, counts.longest_record);
  for (const Remark& remark : kRemarks) report.*remark.count += counts.*remark.count;
  for (const Found& found : kFound) AddFindings(counts.*found.list, report.*found.list);
  AddNames(counts.readings, report.readings);
  report.first_places.insert(counts.first_places.begin(), counts.first_places.end());
  report.bad_reasons.insert(report.bad_reasons.end(), counts.bad_reasons.begin(),
                            counts.bad_reasons.end());
}

void AddNames(const std::vector<std::string>& names, std::vector<std::string>& all) {
  for (const std::string& name : names) {
    const auto place = std::ranges::lower_bound(all, name);
    if (place != all.end() && *place == name) continue;
    if (std::ssize(all) >= kMostNames) return;
    all.insert(place, name);
  }
}

void AddFindings(const std::vector<DataFinding>& findings, std::vector<DataFinding>& all) {
  for (const DataFinding& one : findings) {
    const auto place = std::ranges::lower_bound(all, one.what, {}, &DataFinding::what);
    if (place != all.end() && place->what == one.what) {
      place->records += one.records;
    } else if (std::ssize(all) < kMostNames) {
      all.insert(place, one);
    }
  }
}

std::vector<std::string> WarnOfFindings(const DataReport& report) {
  std::vector<std::string> warnings;
  for (const DataFinding& one : report.findings) {
    const std::string quote = one.quote.empty() ? "" : fmt::format(": '{}'", one.quote);
    warnings.push_back(
        Printable(one.records == 1 ? fmt::format("{} (1 record, {}{})", one.what, one.first, quote)
                                   : fmt::format("{} ({} records, the first {}{})", one.what,
                                                 one.records, one.first, quote)));
  }
  return warnings;
}

std::string DescribeNotRead(const std::vector<DataFinding>& not_read, std::int64_t records) {
  std::vector<std::string> names;
  for (const DataFinding& one : not_read) {
    names.push_back(one.records == records ? one.what
                    : one.records == 1     ? fmt::format("{} (1 record, {})", one.what, one.first)
                                           : fmt::format("{} ({} records, the first {})", one.what,
                                                         one.records, one.first));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string WarnOfHeldOutNames(const DataReport& report) {
  if (report.named_held_out.empty()) return {};
  return fmt::format(
      "data that are held out by their names are trained on, because dataset names them: {}; an "
      "evaluation on them then shows memory, not learning",
      ListOfNames(report.named_held_out));
}

std::string DescribeFound(std::span<const FileReport> files, std::string_view records) {
  std::int64_t found = 0;
  std::int64_t count = 0;
  for (const FileReport& file : files) {
    found += file.found;
    count += file.records;
  }
  return found > count ? fmt::format("{} samples of {} {}", found, count, records)
                       : fmt::format("{} {}", count, records);
}

bool AsksQuestions(const DataReport& report) {
  return std::ranges::all_of(report.files, [](const FileReport& file) {
    return file.format == RecordFormatName(RecordFormat::kDecision);
  });
}

// Returns "1250 of 1531 records (82 %) are dropped or cut: 1250 are dropped for having more than
// ...".
std::string WarnOfLostRecords(const DataReport& report, std::string_view records) {
  std::int64_t count = 0;
  for (const FileReport& file : report.files) count += file.found;
  const std::int64_t lost = report.dropped_long + report.truncated + report.dropped_masked +
                            report.dropped_untrained + report.dropped_bad +
                            report.dropped_identical + report.dropped_equal_cut;
  // Up to a tenth is usual and part of the report; the user seldom wants more.
  if (10 * lost <= count) return {};
  std::vector<std::string> causes;
  const auto add = [&causes](std::int64_t number, std::string_view cause) {
    if (number > 0) causes.push_back(fmt::format("{} {} {}", number, Are(number), cause));
  };
  const bool asks = AsksQuestions(report);
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
      asks ? "dropped because no question has an answer"
           : "dropped because no token is trained on (all are masked; train_on_inputs trains on "
             "prompts too)");
  add(report.dropped_identical, "dropped because both answers are the same");
  add(report.dropped_equal_cut,
      fmt::format("dropped because both answers are the same when cut to {} tokens ({})",
                  report.max_length, raise));
  if (!report.bad_reasons.empty()) {
    add(report.dropped_bad,
        fmt::format("dropped as unreadable (the first: {})", report.bad_reasons.front()));
  }
  return fmt::format("{} of {} ({:.0f} %) {} dropped or cut: {}", lost,
                     DescribeFound(report.files, records), Percent(lost, count), Are(lost),
                     fmt::join(causes, "; "));
}

// Returns the report for programs: all counts, zeros too. Keys are part of the interface.
OrderedJson ReportToJson(const DataReport& report) {
  OrderedJson json = {{"samples", report.samples},           {"tokens", report.tokens},
                      {"trained_tokens", report.supervised}, {"shortest", report.shortest},
                      {"largest", report.largest},           {"longest", report.longest},
                      {"max_length", report.max_length},     {"duplicates", report.duplicates}};
  json.update(CountsToJson(report));
  json["histogram"] = {{"bucket_width", report.bucket_width}, {"counts", report.buckets}};
  json["notes"] = report.notes;
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
  for (const Remark& remark : kRemarks) json[remark.key] = remark.text;
  json["duplicates"] = "duplicates";
  return json;
}

}  // namespace qlora
