// The report on a data set: its contents and the records that were left out, as data and as text.
#ifndef QLORA_DATA_DATASET_REPORT_H_
#define QLORA_DATA_DATASET_REPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "qlora/data_report.h"

namespace qlora {

// Sets bucket_width and buckets: at most `max_buckets`, of a width that is 1, 2 or 5 times 10^n.
void CountLengths(const std::vector<std::int32_t>& lengths, std::int64_t max_buckets,
                  DataReport& report);

// Returns the counts of opening files, without the others: as JSON, and back. CountsFromJson
// returns nothing for a text that CountsToJson has not written.
OrderedJson CountsToJson(const DataReport& counts);
std::optional<DataReport> CountsFromJson(const std::string& text);
// Names the first place of each count that a person wants to look up and that has become more than
// 0.
void NameFirsts(DataReport& counts, const std::function<std::string()>& place);
// Adds them to a report; of longest_record, takes the maximum.
void AddCounts(const DataReport& counts, DataReport& report);
// Adds names to ascending ones, each once, until there are kMostNames: each record may have a field
// of its own.
inline constexpr std::int64_t kMostNames = 100;
void AddNames(const std::vector<std::string>& names, std::vector<std::string>& all);

// Adds findings to ascending ones; the same of two are counted together.
void AddFindings(const std::vector<DataFinding>& findings, std::vector<DataFinding>& all);

// Returns a warning about files that are trained on although their names say that they are held
// out, or "".
std::string WarnOfHeldOutNames(const DataReport& report);

// Returns a warning for each finding.
std::vector<std::string> WarnOfFindings(const DataReport& report);
// Returns "id, score (12 records, the first data.jsonl:4)": of `records`, those that have a field.
std::string DescribeNotRead(const std::vector<DataFinding>& not_read, std::int64_t records);

// Returns "100 records", or "150 samples of 100 records" where records are several samples: what
// was found in the files. records: how they are called, such as "evaluation records".
std::string DescribeFound(std::span<const FileReport> files, std::string_view records = "records");

// True when the records of all files are decisions.
bool AsksQuestions(const DataReport& report);

// Returns a warning when more than a tenth of the samples are dropped or cut, with the options that
// mend it, or "". records: as for DescribeFound.
std::string WarnOfLostRecords(const DataReport& report, std::string_view records = "records");

// Returns the report in lines for people; counts of things that did not occur are left out.
std::string RenderReport(const DataReport& report);
OrderedJson ReportToJson(const DataReport& report);

// Returns {key of a count in ReportToJson: text}: RenderReport's text about each count that is not
// 0.
OrderedJson RemarksToJson();

}  // namespace qlora

#endif  // QLORA_DATA_DATASET_REPORT_H_
