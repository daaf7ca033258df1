#include "parquet/parquet.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "parquet/codec.h"
#include "parquet/row_writer.h"

namespace qlora::parquet {
namespace {

// Counts the bytes of all rows. A dictionary of one long text and a run of indices to it make any
// number of rows of a few bytes, so that a small file could fill every disk.
class TextBudget {
 public:
  TextBudget(const TextLimits& limits, std::uint64_t file_bytes)
      : left_(std::max(limits.bytes, limits.growth * static_cast<std::int64_t>(file_bytes))) {}

  void Spend(std::int64_t bytes) {
    if (bytes > left_) {
      ThrowInvalidInput(
          "the rows take more than 1000 times the bytes of the file as text; this is not a data "
          "set");
    }
    left_ -= bytes;
  }
  // rows * bytes, which may exceed 64 bits.
  void SpendRows(std::int64_t rows, std::int64_t bytes) {
    Spend(rows > left_ / bytes ? left_ + 1 : rows * bytes);
  }

 private:
  std::int64_t left_;
};

// Bytes of a row whose values take no room: names, quotes and commas.
std::int64_t SmallestRow(const Node& root) {
  std::int64_t bytes = 3;
  for (const Node& child : root.children) bytes += std::ssize(child.name) + 4;
  return bytes;
}

// Codecs are checked for all columns that are read before the first row is written.
void CheckCodecs(const Node& root, const Footer& footer) {
  for (const Node* leaf : LeavesOf(root)) {
    for (const RowGroup& group : footer.row_groups) CheckCodec(group.columns[leaf->column].codec);
  }
}

// Refuses a number of rows that cannot fit, before any of them is read.
void CheckRows(const Footer& footer, std::int64_t smallest_row, TextBudget budget) {
  for (const RowGroup& group : footer.row_groups) {
    if (group.rows > std::int64_t{1} << 40)
      ThrowInvalidInput("a row group claims {} rows", group.rows);
    budget.SpendRows(group.rows, smallest_row);
  }
}

// place: "row group 2, row 17", brought up to date before each step.
void WriteRows(const Source& source, const std::function<void(std::string_view)>& write,
               const TextLimits& limits, std::string& place) {
  const Footer footer = ReadFooter(source);
  const Node root = WithoutUnreadable(footer.root);
  CheckCodecs(root, footer);
  TextBudget budget(limits, source.size);
  CheckRows(footer, SmallestRow(root), budget);
  MemoryBudget memory(limits.memory);
  std::int64_t row = 0;
  std::string line;
  for (std::int64_t g = 0; g < std::ssize(footer.row_groups); ++g) {
    const RowGroup& group = footer.row_groups[g];
    place = fmt::format("row group {}", g + 1);
    RowWriter writer(source, root, group, memory);
    for (std::int64_t r = 0; r < group.rows; ++r) {
      line.clear();
      try {
        writer.Append(line);
      } catch (const Error&) {
        place += fmt::format(", row {}", row + 1);
        throw;
      }
      line += '\n';
      budget.Spend(std::ssize(line));
      write(line);
      ++row;
    }
    writer.CheckEnd();
  }
}

}  // namespace

// The functions below this one know no name of a file; errors get the name and the place here.
void WriteJsonLines(const Source& source, const std::function<void(std::string_view)>& write,
                    const TextLimits& limits) {
  std::string place;
  try {
    WriteRows(source, write, limits, place);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidInput) throw;
    ThrowInvalidInput("{}: {}{}{}", source.name, place, place.empty() ? "" : ": ", error.what());
  }
}

}  // namespace qlora::parquet
