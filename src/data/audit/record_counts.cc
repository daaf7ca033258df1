#include "data/audit/record_counts.h"

#include <algorithm>
#include <string_view>

#include "base/printable.h"
#include "data/dataset_report.h"

namespace qlora {
namespace {

// "malformed JSON" of "data.jsonl:17:4: malformed JSON".
std::string_view WithoutPlace(std::string_view message) {
  const std::size_t place = message.find(": ");
  return place == message.npos ? message : message.substr(place + 2);
}

}  // namespace

void RecordCounts::AddBad(const Error& bad) {
  constexpr std::int64_t kFirst = 3;
  constexpr std::int64_t kMost = 10;
  ++report_.dropped_bad;
  std::vector<std::string>& reasons = report_.bad_reasons;
  std::string reason = Printable(bad.what());
  const bool is_new = std::ranges::none_of(reasons, [&](const std::string& shown) {
    return WithoutPlace(shown) == WithoutPlace(reason);
  });
  const std::int64_t most = is_new ? kMost : kFirst;
  if (std::ssize(reasons) < most) reasons.push_back(std::move(reason));
}

void RecordCounts::Add(std::vector<DataFinding>& findings, const TextFinding& finding,
                       std::int64_t record) {
  // Names are fields of strangers' records: some are enough.
  if (std::ssize(counted_) >= kMostNames && !counted_.contains(finding.what)) return;
  const auto [last, is_new] = counted_.try_emplace(finding.what, record);
  if (is_new) {
    AddFindings({{finding.what, 1, where_(record), finding.quote}}, findings);
  } else if (last->second != record) {
    last->second = record;
    AddFindings({{finding.what, 1, {}, {}}}, findings);
  }
}

void RecordCounts::AddTexts(const SampleNotes& notes, std::int64_t record) {
  for (const TextFinding& one : notes.findings) Add(report_.findings, one, record);
  for (const std::string& name : notes.other_fields) {
    Add(report_.not_read, {name}, record);
  }
}

void RecordCounts::AddNotes(const SampleNotes& notes, std::int64_t record) {
  report_.split_boundaries += notes.split_boundary;
  report_.empty_completions += notes.empty_completion;
  report_.without_eos += notes.without_eos;
  report_.unlisted_stops += notes.unlisted_stop;
  report_.closed_turns += notes.closed_turn;
  AddTexts(notes, record);
  if (!notes.readings.empty()) AddNames(notes.readings, report_.readings);
  report_.own_bos += notes.own_bos;
  report_.without_bos += notes.without_bos;
  report_.foreign_labels += notes.foreign_labels;
}

}  // namespace qlora
