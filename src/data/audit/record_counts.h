// Counts what the records of a file show, for the report of the file.
#ifndef QLORA_DATA_AUDIT_RECORD_COUNTS_H_
#define QLORA_DATA_AUDIT_RECORD_COUNTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/sample_check.h"
#include "qlora/data_report.h"
#include "qlora/error.h"

namespace qlora {

// Records come in their order, and the samples of one together.
class RecordCounts {
 public:
  // where: names the place of a record. report must outlive this.
  RecordCounts(DataReport& report, std::function<std::string(std::int64_t record)> where)
      : report_(report), where_(std::move(where)) {}

  // A record that cannot be read: keeps the first reasons, and behind them those that none of them
  // gives.
  void AddBad(const Error& bad);
  // What of a record is not shown, not trained or not read; of records that are left out, too.
  void AddTexts(const SampleNotes& notes, std::int64_t record);
  // That, and what else is known of a sample that is taken.
  void AddNotes(const SampleNotes& notes, std::int64_t record);

 private:
  void Add(std::vector<DataFinding>& findings, const TextFinding& finding, std::int64_t record);

  DataReport& report_;
  std::function<std::string(std::int64_t record)> where_;
  std::map<std::string, std::int64_t> counted_;  // findings: the last record that has them
};

}  // namespace qlora

#endif  // QLORA_DATA_AUDIT_RECORD_COUNTS_H_
