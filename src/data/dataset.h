// A data set as the trainer sees it: files opened, checked once from end to end, then read sample
// by sample.
#ifndef QLORA_DATA_DATASET_H_
#define QLORA_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/batch.h"
#include "data/conversation.h"
#include "data/data_options.h"
#include "data/dataset_report.h"
#include "data/epoch_order.h"
#include "qlora/context.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The samples of some files, in the order of the files. Files of records may be larger than memory:
// an index of 32 bytes a record is kept, in memory or in options.index_folder, and a record is
// encoded when it is asked for. A later run with the same file, options, tokenizer and template
// takes the index from the folder instead of reading the file; a sample that is not the one that
// was checked is refused in any case. A raw text is encoded as a whole and its tokens are kept.
class Dataset {
 public:
  // Reads and checks every record, on the threads of `context` where one is given. `chat` may be
  // null when no file holds conversations. Tokenizer and renderer must outlive the data set.
  // Errors: InvalidInput with file and line: everything that record.h and data_encode.h refuse,
  // a sample of more than max_length tokens when over_long says so, files that keep no sample.
  static Dataset Open(const DataOptions& options, const Tokenizer& tokenizer,
                      const ChatRenderer* chat, Context* context = nullptr);

  std::int64_t size() const;
  // May be called by several threads. Errors: InvalidInput when a file has changed.
  Sample Get(std::int64_t i) const;
  // Tokens of sample i.
  std::int32_t length(std::int64_t i) const;
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
  struct Source;           // a file, its encoder and its samples
  struct Entry {           // one sample
    std::uint64_t hash;    // of tokens and labels
    std::uint32_t record;  // or window
    std::int32_t length;
    std::int32_t supervised;
    std::int32_t uncut_length;
  };
  struct Place {
    std::size_t source;
    const Entry& entry;
  };

  void Add(std::shared_ptr<const Source> source, double weight);
  Place At(std::int64_t i) const;
  void Summarize();

  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<std::int64_t> first_ = {0};             // (sources + 1) samples before each file
  std::optional<std::vector<std::uint32_t>> subset_;  // ascending; none: all samples
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

#endif  // QLORA_DATA_DATASET_H_
