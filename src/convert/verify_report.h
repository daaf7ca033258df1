// What a verification found, as text and as a file: NAME.export_report.json beside the exported
// file NAME, export_report.json in an exported folder.
#ifndef QLORA_CONVERT_VERIFY_REPORT_H_
#define QLORA_CONVERT_VERIFY_REPORT_H_

#include <cstdint>
#include <span>
#include <string>

#include "qlora/export.h"

namespace qlora {

// The first place at which two token sequences differ; -1 when they are equal.
std::int64_t FirstOtherToken(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

// Why the report did not pass: "its log-probabilities differ ...".
std::string DescribeFailure(const VerifyReport& report, const std::string& outtype);

// Removes the report of an earlier output of the same name.
void RemoveVerifyReport(const ExportOptions& options);

// Writes the report. A file of that name that is no such report stays, with a note in report.notes,
// as where it cannot be written.
void WriteVerifyReport(const ExportOptions& options, ExportReport& report);

}  // namespace qlora

#endif  // QLORA_CONVERT_VERIFY_REPORT_H_
