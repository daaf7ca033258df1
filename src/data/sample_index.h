// The samples of one file: encoded and checked once from end to end, then listed in an index, and
// encoded again whenever one of them is read.
#ifndef QLORA_DATA_SAMPLE_INDEX_H_
#define QLORA_DATA_SAMPLE_INDEX_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/batch.h"
#include "data/audit/record_counts.h"
#include "data/data_options.h"
#include "data/dataset_report.h"
#include "data/record_encoder.h"
#include "qlora/context.h"
#include "records/index_array.h"
#include "records/record_file.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The entry of a sample, in memory or on disk.
struct SampleEntry {
  std::uint64_t hash;    // of tokens and labels
  std::uint64_t prompt;  // hash of the tokens before the first one that is trained
  std::uint32_t record;  // number of the record, or of the window of a raw text
  // Number of the sample within its record, which is one sample, number 0, unless each turn of a
  // conversation is a sample.
  std::uint32_t part;
  std::int32_t length;      // tokens
  std::int32_t supervised;  // tokens that are trained on
  std::int32_t longest;     // tokens of the longest sequence, with its prefix
  std::int32_t unfolded;    // UnfoldedRows
  std::int32_t chosen;      // CountOfFirst
  std::int32_t first;       // tokens before the first one that is trained
  std::uint64_t text;       // hash of the tokens
};

using ReadingProgress = std::function<void(double share)>;

class SampleIndex {
 public:
  // Reads the file, or takes the index that an earlier run left in options.index_folder for the
  // same file, options, tokenizer and template. Encodes the records of the slice alone, on the
  // threads of `context` where one is given. progress: receives the share of the file that is read.
  // Errors: InvalidInput with file and line, or with the file for a slice without records.
  static std::shared_ptr<const SampleIndex> Open(const DataSource& source,
                                                 const DataOptions& options,
                                                 const Tokenizer& tokenizer,
                                                 const ChatTemplate* chat, Context* context,
                                                 const ReadingProgress& progress = {});

  const std::string& name() const { return name_; }
  FileFormat file_format() const;
  const PromptLayout& layout() const { return encoder_.layout(); }
  // Names the fields that are read, where their names differ from the names of the format, and
  // those that are not read; "" when there is nothing to name.
  const std::string& fields() const { return fields_; }
  std::int64_t records() const { return end_ - begin_; }  // windows of a raw text
  // The samples of all records, with those that are left out; a record that cannot be read is one.
  std::int64_t found() const;
  std::span<const SampleEntry> entries() const { return entries_.values(); }
  const DataReport& counts() const { return counts_; }  // only the counts that CountsToJson takes

  // May be called by several threads. Errors: InvalidInput when the file has changed.
  // visit: as of Dataset::Get.
  Sample Read(const SampleEntry& entry, std::int64_t visit = 0) const;
  // Returns the record of a sample as the file has it, with the names of its format; nothing for a
  // raw text.
  std::optional<OrderedJson> ReadRecord(const SampleEntry& entry) const;
  // The state that the questions of a sample are about, as JSON, in whichever field and form the
  // record has it; "" of records that ask none.
  std::string StateOf(const SampleEntry& entry) const;
  // Returns "data.jsonl:17", or "book.txt: window 17". Records count from the start of the file.
  std::string Where(std::int64_t record) const;

 private:
  // True for a visit that shows options in another order than the first.
  bool IsInOtherOrder(std::int64_t visit) const;
  // The sample in the order of such a visit; nothing where it has other sizes than the entry.
  std::optional<Sample> OfVisit(const SampleEntry& entry, std::int64_t visit) const;
  struct FileLayout {
    PromptLayout layout;
    DetectedFormat detected;
  };

  static FileLayout FileLayoutOf(const RecordFile& records, RecordFormat asked,
                                 const DataOptions& options, bool has_chat_template);
  // A raw text, all of it encoded.
  SampleIndex(const FileBytes& file, const DataSlice& slice, const DataOptions& options,
              const Tokenizer& tokenizer);
  // Records; every one of the slice is checked.
  SampleIndex(RecordFile records, const DataSlice& slice, FileLayout layout,
              const DataOptions& options, const Tokenizer& tokenizer, const ChatTemplate* chat,
              Context* context, const ReadingProgress& progress);

  void TakeSlice(const DataSlice& slice, std::int64_t records);
  bool FindIndex(const IndexPlace& place);
  bool EntriesAreSound() const;
  void AddWindows();
  void AddRecords(const DataOptions& options, Context* context, const ReadingProgress& progress);
  std::int64_t BlockAt(std::int64_t begin) const;
  void AddBadRecord(const std::exception_ptr& error, RecordCounts& counts) const;
  void CheckBadRecords(BadRecords bad_records);
  void AddRecord(std::int64_t record, std::int64_t part, OverLong over_long, EncodedRecord& encoded,
                 RecordCounts& counts);
  void AddSample(const Sample& sample, std::int64_t record, std::int64_t part = 0);
  void DescribeFields();
  std::span<const std::int32_t> WindowTokens(std::int64_t i) const;
  Sample Window(std::int64_t i) const;
  // The samples of a record, of any length; errors name the place.
  std::vector<EncodedRecord> EncodeAll(std::int64_t record) const;
  template <typename Body>
  auto WithRecord(std::int64_t record, const Body& body) const;

  std::string name_;
  std::optional<RecordFile> records_;  // none: a raw text
  std::vector<std::int32_t> tokens_;   // of a raw text
  DetectedFormat detected_;            // and names of fields, where the format has others
  std::string fields_;
  RecordEncoder encoder_;
  std::int64_t max_length_;
  bool max_length_is_context_;
  std::int64_t begin_ = 0;           // the first record of the slice
  std::int64_t end_ = 0;             // the record behind it
  IndexArray<SampleEntry> entries_;  // ascending records
  DataReport counts_;
};

}  // namespace qlora

#endif  // QLORA_DATA_SAMPLE_INDEX_H_
