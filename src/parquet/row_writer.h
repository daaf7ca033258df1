// Rows of a row group as JSON: puts together the values of all columns.
#ifndef QLORA_PARQUET_ROW_WRITER_H_
#define QLORA_PARQUET_ROW_WRITER_H_

#include <memory>
#include <string>
#include <vector>

#include "parquet/column.h"

namespace qlora::parquet {

// A null field of a struct inside a list is left out, because such a struct has the fields of all
// records together: "tool_calls": null in every message is not what the author of a chat wrote.
// `content` stays, which messages must have.
class RowWriter {
 public:
  // root: without unreadable columns. All but the group must outlive the writer.
  RowWriter(const Source& source, const Node& root, const RowGroup& group, MemoryBudget& budget);

  // Appends the next row, an object. Errors: InvalidInput, without the file's name: columns that
  // disagree about the form of the row, text that is not UTF-8, and all that ColumnReader refuses.
  void Append(std::string& out);
  // Errors: InvalidInput when a column has more rows than its row group.
  void CheckEnd() const;

 private:
  bool AppendAny(const Node& node, bool in_list, std::string& out);
  void AppendPresent(const Node& node, bool in_list, std::string& out);
  void AppendStruct(const Node& node, bool in_list, std::string& out);
  void AppendList(const Node& repeated, bool element_is_child, std::string& out);
  void AppendValue(const Node& leaf, std::string& out) const;
  void CountElement(const Node& repeated, const std::string& out);
  bool ListContinues(const Node& repeated) const;
  void SkipAbsent(const Node& node);
  ColumnReader& First(const Node& node) const { return *columns_[node.first_leaf]; }

  const Node& root_;
  MemoryShare row_share_;
  std::int64_t elements_ = 0;                           // of the lists of the row
  std::vector<std::unique_ptr<ColumnReader>> columns_;  // one for each leaf of the root
};

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_ROW_WRITER_H_
