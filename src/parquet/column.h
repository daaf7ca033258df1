// One column of a row group, entry by entry.
#ifndef QLORA_PARQUET_COLUMN_H_
#define QLORA_PARQUET_COLUMN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parquet/footer.h"
#include "parquet/memory_budget.h"
#include "parquet/rle_bit_packed.h"
#include "parquet/values.h"

namespace qlora::parquet {

// A cursor on an entry of a column, or at the end. One page of the column is in memory, and the
// dictionary. All functions throw InvalidInput that names column and page, but not the file.
class ColumnReader {
 public:
  // Source, leaf and budget must outlive the reader.
  ColumnReader(const Source& source, const Node& leaf, const ColumnChunk& chunk,
               MemoryBudget& budget);
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  bool at_end() const { return at_end_; }
  // Levels of the entry, at most the levels of the leaf. At the end the repetition is 0, as of a
  // new row.
  int repetition() const { return repetition_; }
  int definition() const;
  // The value of an entry whose definition level is the leaf's. Its text is valid until Next.
  const Value& value() const { return value_; }
  void Next();

  [[noreturn]] void Throw(std::string_view reason) const;

 private:
  struct PageHeader;

  void Advance();
  void LoadPage();
  PageHeader ReadHeader();
  void LoadDictionary(const PageHeader& header, std::string_view body);
  void LoadData(const PageHeader& header, std::string_view body);
  void LoadDataV2(const PageHeader& header, std::string_view body);
  // The levels are set; `values` are the rest of page_.
  void StartValues(const PageHeader& header, std::string_view values);
  int Level(RleBitPackedReader& levels, int highest) const;

  const Source& source_;
  const Node& leaf_;
  ColumnChunk chunk_;  // begin: of the next page
  std::int64_t page_number_ = 0;
  std::int64_t left_ = 0;       // entries of the column that no page has given yet
  std::int64_t page_left_ = 0;  // entries of the page that were not read
  bool has_dictionary_ = false;
  MemoryShare dictionary_share_;
  std::string dictionary_page_;
  std::vector<Value> dictionary_;
  MemoryShare page_share_;
  std::string page_;  // decompressed; of v2 the values alone
  std::string levels_page_;
  RleBitPackedReader repetitions_;
  RleBitPackedReader definitions_;
  std::unique_ptr<ValueReader> values_;

  bool at_end_ = false;
  int repetition_ = 0;
  int definition_ = 0;
  Value value_;
};

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_COLUMN_H_
