// A data set as the trainer sees it: files opened, checked once from end to end, then read sample
// by sample.
#ifndef QLORA_TEXT_DATASET_H_
#define QLORA_TEXT_DATASET_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "text/batch.h"
#include "text/data_chat.h"
#include "text/data_options.h"
#include "text/data_order.h"
#include "text/data_report.h"
#include "text/tokenizer.h"

namespace qlora {

struct EncodedRecord;

// The samples of some files, in the order of the files. Files of records may be larger than memory:
// 32 bytes a record are kept and a record is encoded when it is asked for. A raw text is encoded
// as a whole and its tokens are kept.
class Dataset {
 public:
  // Reads and checks every record, on the threads of `context` where one is given. `chat` may be
  // null when no file holds conversations. Tokenizer and renderer must outlive the data set.
  // Errors: InvalidInput with file and line: everything that record.h and data_encode.h refuse,
  // a sample of more than max_length tokens when over_long says so, files that keep no sample.
  static Dataset Open(const DataOptions& options, const Tokenizer& tokenizer,
                      const ChatRenderer* chat, Context* context = nullptr);

  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
  // May be called by several threads. Errors: InvalidInput when a file has changed.
  Sample Get(std::int64_t i) const;
  // Tokens of sample i.
  std::int32_t length(std::int64_t i) const { return entries_[static_cast<std::size_t>(i)].length; }
  // "data.jsonl:17": where sample i stands.
  std::string Where(std::int64_t i) const;

  const DataReport& report() const { return report_; }
  // How many samples each file has and how often an epoch visits them.
  std::vector<OrderPart> parts() const;
  // Depends on all tokens and labels and their order; equal data sets give equal streams.
  std::uint64_t fingerprint() const;

  // Some of the samples, by ascending index; the files are shared.
  Dataset Subset(std::span<const std::uint32_t> indices) const;

  // Samples that are also in `other`, by their tokens and labels.
  std::int64_t CountShared(const Dataset& other) const;

 private:
  struct Source;  // a file and its encoder
  struct Entry {
    std::uint32_t source;
    std::uint32_t record;  // or window
    std::int32_t length;
    std::int32_t supervised;
    std::uint64_t hash;  // of tokens and labels
  };
  struct Scan;

  void OpenSource(const DataSource& source, const DataOptions& options, const Tokenizer& tokenizer,
                  const ChatRenderer* chat, Context* context);
  void AddWindows(const Source& source);
  void AddRecords(const Source& source, OverLong over_long, Context* context);
  void AddRecord(const Source& source, std::int64_t record, OverLong over_long,
                 EncodedRecord& encoded);
  void AddSample(const Sample& sample, std::int64_t record);
  void Summarize();

  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<Entry> entries_;
  DataReport report_;
};

// Sets samples aside for evaluation: val_set_size of them when it is 1 or more, else that share,
// rounded, at least one. Drawn by seed without replacement; both parts keep the order of the files.
// Errors: InvalidInput when a part would be empty.
struct DatasetSplit {
  Dataset train;
  Dataset held_out;
};
DatasetSplit SplitDataset(const Dataset& dataset, double val_set_size, std::uint64_t seed);

}  // namespace qlora

#endif  // QLORA_TEXT_DATASET_H_
