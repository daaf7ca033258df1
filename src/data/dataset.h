// A data set as the trainer sees it: files opened, checked once from end to end, then read sample
// by sample.
//
// The walk of a record through records/, prompt/ and this folder, from a file to the trainer:
//
//   record, an object         records/record_file.h draws the way to it from the bytes of a file
//     |                       record_format.h   the meaning of its fields: one of these four
//     |-- text
//     |-- input_ids
//     |-- fields  ----------  prompt_layout.h   laid out as prompt and completion
//     (field_template.h), |                                         or as a conversation
//     `-- conversation        conversation.h    messages in one form, whatever the file has
//           |                 rendered_conversation.h  as a chat template shows it
//         text and turns      assistant_turns.h which bytes the assistant wrote
//           |                 loss_mask.h       which tokens that is
//     |                                         (all of these in prompt/)
//   Sample: ids, labels       record_encoder.h  conversation_encoder.h; sample_check.h refuses and
//     |                                         counts, audit/ names what no text shows
//   entry of an index         sample_index.h    hash, length, trained tokens, in memory
//     |                                         or in a mapped file (records/index_array.h)
//   data set                  dataset.h         several files; training_data.h holds out a part,
//     |                                         dataset_report.h counts, sample_display.h shows
//   visits of an epoch        epoch_order.h     shuffled, weighted by file
//     |                       packing.h         grouped into micro-batches
//   WindowPlan                batch_stream.h    the micro-batches up to the next update
//     |
//   Batch (base/batch.h)      encoded again from the file, sample by sample
//
// Options enter at data_options.h, and training_data.h opens all that a run needs. An error on this
// walk begins with the file and the line (records/record_error.h).
//
// The number of a sample counts through all files. Order and packing move examples, the samples
// that must share a micro-batch; an example is one sample.
#ifndef QLORA_DATA_DATASET_H_
#define QLORA_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/batch.h"
#include "data/data_options.h"
#include "data/dataset_report.h"
#include "data/epoch_order.h"
#include "data/sample_index.h"
#include "prompt/chat_template.h"
#include "qlora/context.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The samples of some files, in the order of the files. Files of records may be larger than memory:
// an index of 48 bytes a record is kept, in memory or in options.index_folder, and a record is
// encoded when its sample is read. A later run with the same file, options, tokenizer and template
// takes the index from the folder instead of reading the file; a sample that is not the one that
// was checked is refused in any case. A raw text is encoded as a whole and its tokens are kept.
class Dataset {
 public:
  // Reads and checks every record of the slices, on the threads of `context` where one is given.
  // `chat` may be null when no file holds conversations. progress: receives how many bytes of the
  // files are read; what it throws ends the reading. Tokenizer and template must outlive the data
  // set. Errors: InvalidInput with file and line: everything that record_file.h and
  // record_encoder.h refuse, a sample of more than max_length tokens when over_long says so, files
  // that keep no sample.
  static Dataset Open(const DataOptions& options, const Tokenizer& tokenizer,
                      const ChatTemplate* chat, Context* context = nullptr,
                      const ProgressFn& progress = {});

  std::int64_t size() const;
  // visit: the number of the epoch; questions whose options are shuffled show them in another order
  // each time. May be called by several threads. Errors: InvalidInput when a file has changed.
  Sample Get(std::int64_t i, std::int64_t visit = 0) const;
  // Tokens of sample i, and how many of them are trained on: CountSupervised of the sample. Both
  // come from the index, without reading the file.
  std::int32_t length(std::int64_t i) const { return At(i).entry.length; }
  std::int32_t supervised(std::int64_t i) const { return At(i).entry.supervised; }
  // UnfoldedRows of sample i.
  std::int32_t unfolded(std::int64_t i) const { return At(i).entry.unfolded; }
  // CountOfFirst of sample i; of the tokens before the first one that is trained, their number and
  // a hash.
  std::int32_t chosen(std::int64_t i) const { return At(i).entry.chosen; }
  std::int32_t first(std::int64_t i) const { return At(i).entry.first; }
  std::uint64_t prompt(std::int64_t i) const { return At(i).entry.prompt; }
  // Depends on all tokens and labels of sample i.
  std::uint64_t key(std::int64_t i) const { return At(i).entry.hash; }
  // Returns the record of sample i as its file has it, with the names of its format; nothing for a
  // raw text.
  std::optional<OrderedJson> ReadRecord(std::int64_t i) const;
  // SampleIndex::StateOf.
  std::string StateOf(std::int64_t i) const;
  // Returns the number of this record, counted through all files as they are read.
  std::int64_t RecordOf(std::int64_t i) const;
  // Returns the layout of sample i, and the layout of the file with the most samples (of several,
  // the first).
  const PromptLayout& LayoutOf(std::int64_t i) const;
  const PromptLayout& layout() const;
  // True when the files differ in format at most.
  bool has_one_layout() const;
  // Returns "data.jsonl:17": the place of sample i.
  std::string Where(std::int64_t i) const;

  const DataReport& report() const { return report_; }
  // Returns the number of samples of each file, and how often an epoch visits them.
  std::vector<OrderPart> parts() const;
  // Depends on all tokens and labels and their order; equal data sets give equal streams.
  std::uint64_t fingerprint() const;

  // True for two parts of one data set.
  bool SharesFilesWith(const Dataset& other) const { return sources_ == other.sources_; }

  // Returns the same samples as an evaluation reads them: whatever the visit, options are in the
  // order in which their records have them.
  Dataset HeldOut() const;
  // Returns the samples of file f of the report.
  Dataset OfFile(std::int64_t f) const;
  // Returns some of the samples, by ascending index; the files are shared.
  Dataset Subset(std::span<const std::uint32_t> indices) const;

  // Returns the first sample of each record.
  std::vector<std::uint32_t> FirstsOfRecords() const;

  // Samples whose text is also in `other`, whatever is trained of it.
  std::int64_t CountShared(const Dataset& other) const;

 private:
  struct Place {
    std::int64_t source;
    const SampleEntry& entry;
  };

  void Add(std::shared_ptr<const SampleIndex> source, double weight);
  Place At(std::int64_t i) const;
  // Errors: InvalidInput for options of decisions where no file has any.
  void CheckAsked(const DecisionOptions& options) const;
  void Summarize();
  // The first sample that is equal to an earlier one. repeated: the hashes of several samples,
  // ascending, at least one.
  std::int64_t FirstDuplicate(std::span<const std::uint64_t> repeated) const;
  [[noreturn]] void ThrowEmpty(bool max_length_is_context) const;

  std::vector<std::shared_ptr<const SampleIndex>> sources_;
  std::vector<std::int64_t> first_ = {0};             // (sources + 1) samples before each file
  std::optional<std::vector<std::uint32_t>> subset_;  // ascending; none: all samples
  bool is_held_out_ = false;
  DataReport report_;
};

}  // namespace qlora

#endif  // QLORA_DATA_DATASET_H_
