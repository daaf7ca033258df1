// The contents of the data of a run, as values; src/data/dataset_report.h makes text of them.
#ifndef QLORA_DATA_REPORT_H_
#define QLORA_DATA_REPORT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace qlora {

struct FileReport {
  std::string path;
  std::string container;  // "JSON Lines" ...
  std::string format;     // "messages" ...
  // "prompt: question, completion: answer; not read: id", where the fields have other names than in
  // the format; otherwise "".
  std::string fields;
  double weight = 1;
  std::int64_t records = 0;  // of the file, or of its slice; windows of a raw text
  // Samples before any is left out, and records that cannot be read: as many as records, or more
  // where a conversation is several samples (train_turns: each).
  std::int64_t found = 0;
  std::int64_t samples = 0;  // kept
};

// Something of the records that the model does not see, does not learn, or sees otherwise than it
// is written.
struct DataFinding {
  std::string what;          // "messages[].thinking: thoughts that the chat template ..."
  std::int64_t records = 0;  // that have it
  std::string first;         // "data.jsonl:2"
  std::string quote;         // the beginning of such a text of the first, or ""
};

struct DataReport {
  std::vector<FileReport> files;
  std::vector<std::string> notes;           // what was found and not read, in lines for people
  std::vector<std::string> named_held_out;  // files read by name, though called "test" or the like

  // Samples that are trained on. Each is counted once, whatever the weight of its file.
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::int64_t supervised = 0;  // tokens trained on
  std::int32_t shortest = 0;    // tokens of the smallest sample
  std::int32_t longest = 0;     // tokens of the longest sequence
  std::int32_t largest = 0;     // tokens of the largest sample, which may be several sequences
  // Most rows of sequences that are written with their prefixes, for each row; 1 without prefixes.
  double unfolding = 1;
  std::int64_t duplicates = 0;  // samples equal to an earlier one

  // Bucket b counts the samples of b*width+1 ... (b+1)*width tokens.
  std::int64_t bucket_width = 0;
  std::vector<std::int64_t> buckets;

  // Counted when the files were opened: records left out, and remarks.
  std::int64_t max_length = 0;
  std::int64_t dropped_long = 0;       // records of more than max_length tokens, left out
  std::int64_t truncated = 0;          // records cut to max_length tokens
  std::int64_t truncated_tokens = 0;   // tokens that this cut off
  std::int64_t dropped_masked = 0;     // records that kept no trained token after the cut
  std::int64_t dropped_untrained = 0;  // records without a trained token, left out
  std::int64_t dropped_identical = 0;  // pairs of two equal answers, left out
  std::int64_t dropped_equal_cut = 0;  // pairs whose answers are equal after the cut, left out
  std::int64_t longest_record = 0;     // tokens, before dropping and cutting
  std::int64_t dropped_bad = 0;        // records that cannot be read, left out by bad_records
  // Of the first three of them in each file and of those with other reasons, up to ten, with file
  // and line.
  std::vector<std::string> bad_reasons;
  std::int64_t dropped_tail = 0;       // tokens at the end of raw texts too few to train on
  std::int64_t split_boundaries = 0;   // a token would span the boundary of trained and masked text
  std::int64_t empty_completions = 0;  // completions without text: only EOS is trained
  std::int64_t without_eos = 0;        // samples that do not train an end of text at their end
  std::int64_t unlisted_stops = 0;     // turns ended by a special token that is not listed as EOS
  std::int64_t closed_turns = 0;       // last turns that the template leaves open: EOS was appended
  std::int64_t cut_answers = 0;        // cut within an answer: no end of it is trained
  std::vector<DataFinding> findings;   // texts of records, by what they are
  std::vector<DataFinding> not_read;   // fields of records that say nothing to the model, by name
  // "thinking as reasoning_content": names given to the template.
  std::vector<std::string> readings;
  std::int64_t own_bos = 0;         // texts that begin with BOS: the tokenizer's is not added
  std::int64_t without_bos = 0;     // samples without the BOS that the tokenizer would add
  std::int64_t foreign_labels = 0;  // labels that are neither the token itself nor ignored
  // "data.jsonl:2": the first record of some of these counts, by their names above.
  std::map<std::string, std::string> first_places;
};

// The micro-batches of the first epoch when short samples are packed together.
struct PackingReport {
  std::int64_t micro_batches = 0;
  std::int64_t capacity = 0;  // tokens that fit into a micro-batch
  double fill_rate = 0;       // tokens in the micro-batches over tokens that would fit; 1: full
};

// The samples that a run trains on and the samples that it holds out for evaluation.
struct TrainingDataReport {
  DataReport train;
  std::optional<PackingReport> packing;  // with the option packing
  std::optional<DataReport> held_out;
  std::int64_t shared = 0;            // held-out samples that are trained on as well
  bool is_split = false;              // held_out was drawn from the same files, by val_set_size
  std::optional<DataReport> anchors;  // texts that keep the model near its base
};

}  // namespace qlora

#endif  // QLORA_DATA_REPORT_H_
