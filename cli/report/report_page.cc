#include "report/report_page.h"

#include <fmt/format.h>

#include <string_view>

#include "command/common.h"
#include "data/dataset_report.h"
#include "io/json.h"
#include "log/log_reader.h"
#include "qlora/error.h"

namespace qlora {

extern const char kReportHtml[];  // cmake/embed_report.cmake

std::string ReportData(const std::vector<std::string>& run_dirs, bool live) {
  std::string runs;
  for (const std::string& dir : run_dirs) {
    try {
      runs += (runs.empty() ? "" : ",") + ReadRunLogs(dir);
    } catch (const Error&) {
      // A live page of a run that has not written its first log yet shows nothing, and
      // continues to ask.
      if (!live) throw;
    }
  }
  return fmt::format(R"({{"live":{},"remarks":{},"runs":[{}]}})", live, Dump(RemarksToJson()),
                     runs);
}

bool IsReportPage(std::string_view text) {
  // Recognised by the element that holds the data, which pages of other programs do not have.
  constexpr std::string_view kRecord = "<script type=\"application/json\" id=\"record\">";
  return text.starts_with("<!DOCTYPE html>") && text.find(kRecord) != std::string_view::npos;
}

std::string ReportPage(const std::string& data) {
  constexpr std::string_view kMark = "@DATA@";
  std::string page = kReportHtml;
  std::string safe;  // "</script>" in a text must not end the element that holds the data
  for (const char c : data) {
    // \u003c is the same character in JSON, and no character in HTML.
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  // Replaced once: data may hold the mark as text.
  return page.replace(page.find(kMark), kMark.size(), safe);
}

}  // namespace qlora
