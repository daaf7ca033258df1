// The samples of one file: encoded and checked once from end to end, then listed in an index, and
// encoded again whenever one of them is read.
#ifndef QLORA_DATA_SAMPLE_INDEX_H_
#define QLORA_DATA_SAMPLE_INDEX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/batch.h"
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
  std::uint32_t record;  // number of the record, or of the window of a raw text
  // Number of the sample within its record. A record is one sample, number 0. The field leaves room
  // for records of two (a chosen and a rejected answer), which would share a micro-batch.
  std::uint32_t part;
  std::int32_t length;      // tokens
  std::int32_t supervised;  // tokens that are trained on
};

class SampleIndex {
 public:
  // Reads the file, or takes the index that an earlier run left in options.index_folder for the
  // same file, options, tokenizer and template. Encodes on the threads of `context` where one is
  // given. Errors: InvalidInput with file and line.
  static std::shared_ptr<const SampleIndex> Open(const DataSource& source,
                                                 const DataOptions& options,
                                                 const Tokenizer& tokenizer,
                                                 const ChatRenderer* chat, Context* context);

  const std::string& name() const { return name_; }
  FileFormat file_format() const;
  const PromptLayout& layout() const { return encoder_.layout(); }
  // Names the fields that are read, where their names differ from the names of the format;
  // otherwise "".
  const std::string& fields() const { return fields_; }
  std::int64_t records() const;  // of the file; windows of a raw text
  std::span<const SampleEntry> entries() const { return entries_.values(); }
  const DataReport& counts() const { return counts_; }  // only the counts that CountsToJson takes

  // May be called by several threads. Errors: InvalidInput when the file has changed.
  Sample Read(const SampleEntry& entry) const;
  // Returns the record of a sample as the file has it, with the names of its format; nothing for a
  // raw text.
  std::optional<OrderedJson> ReadRecord(const SampleEntry& entry) const;
  // Returns "data.jsonl:17", or "book.txt: window 17".
  std::string Where(std::int64_t record) const;
  // Returns the first record without a trained token. There must be one; records before it are
  // encoded.
  std::int64_t FirstUntrained() const;

 private:
  struct FileLayout {
    PromptLayout layout;
    std::vector<FieldName> names;
    std::string fields;
  };

  static FileLayout FileLayoutOf(const RecordFile& records, RecordFormat asked,
                                 const LayoutRules& rules, bool has_chat_template);
  // A raw text, all of it encoded.
  SampleIndex(const FileBytes& file, const DataOptions& options, const Tokenizer& tokenizer);
  // Records; every one of them is checked.
  SampleIndex(RecordFile records, FileLayout layout, const DataOptions& options,
              const Tokenizer& tokenizer, const ChatRenderer* chat, Context* context);

  bool FindIndex(const IndexPlace& place);
  bool EntriesAreSound() const;
  void AddWindows();
  void AddRecords(OverLong over_long, Context* context);
  void AddRecord(std::int64_t record, OverLong over_long, EncodedRecord& encoded);
  void AddSample(const Sample& sample, std::int64_t record);
  void CountNotes(const SampleNotes& notes);
  Sample Window(std::int64_t i) const;
  EncodedRecord Encode(std::int64_t record) const;  // of any length; errors name the place

  std::string name_;
  std::optional<RecordFile> records_;  // none: a raw text
  std::vector<std::int32_t> tokens_;   // of a raw text
  std::vector<FieldName> names_;       // of the fields, where the format has others
  std::string fields_;
  RecordEncoder encoder_;
  std::int64_t max_length_;
  IndexArray<SampleEntry> entries_;  // ascending records
  DataReport counts_;
};

}  // namespace qlora

#endif  // QLORA_DATA_SAMPLE_INDEX_H_
