// What a data set holds and what was left out of it, as data and as text.
#ifndef QLORA_DATA_DATA_REPORT_H_
#define QLORA_DATA_DATA_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "data/record_file.h"
#include "qlora/data_report.h"

namespace qlora {

// Sets bucket_width and buckets: at most `max_buckets`, of a width that is 1, 2 or 5 times 10^n.
void CountLengths(const std::vector<std::int32_t>& lengths, std::int64_t max_buckets,
                  DataReport& report);

// The counts of what opening a file met, and their addition to a report (the longest_record is the
// maximum). Errors: nlohmann's exceptions when `counts` does not come from CountsToJson.
OrderedJson CountsToJson(const DataReport& report);
void AddCounts(const OrderedJson& counts, DataReport& report);

// The report in lines for people; counts of things that did not occur are left out.
std::string RenderReport(const DataReport& report);
OrderedJson ReportToJson(const DataReport& report);

}  // namespace qlora

#endif  // QLORA_DATA_DATA_REPORT_H_
