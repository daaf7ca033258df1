// The page that shows training runs: a file that needs nothing else, or live.
//
// report.html, report.css, chart.js and report.js are embedded in the program by
// cmake/embed_report.cmake. The page draws one JSON object with the data of each run
// (log/log_reader.h). dashboard.h serves it live to browsers of this machine.
#ifndef QLORA_CLI_REPORT_REPORT_PAGE_H_
#define QLORA_CLI_REPORT_REPORT_PAGE_H_

#include <string>
#include <string_view>
#include <vector>

namespace qlora {

// {"live": ..., "remarks": {...}, "runs": [...]}: the texts about counts of the data
// (data/dataset_report.h), and a record of each run (log/log_reader.h). A live page may be
// asked for before its run has written anything; such a run is left out. Errors: InvalidInput.
std::string ReportData(const std::vector<std::string>& run_dirs, bool live);

// True for a page that ReportPage made, in this version or an earlier one.
bool IsReportPage(std::string_view text);

// The page with its data.
std::string ReportPage(const std::string& data);

}  // namespace qlora

#endif  // QLORA_CLI_REPORT_REPORT_PAGE_H_
