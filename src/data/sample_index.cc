#include "data/sample_index.h"

#include <fcntl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "data/format_example.h"
#include "data/sample_hash.h"
#include "decision/class_labels.h"
#include "io/json.h"
#include "preference/preference_pair.h"
#include "records/compressed_file.h"
#include "records/record_error.h"

namespace qlora {
namespace {

// Records that are encoded before the results are collected, at most.
constexpr std::int64_t kBlock = 4096;

void Cut(Sample& sample, std::int64_t length) {
  sample.ids.resize(length);
  sample.labels.resize(length);
}

// Refuses a file with a zero byte, which no text has, before the file is in memory as a whole: to
// many tokenizers every zero is a token, and a word that never ends.
void CheckIsText(const FileBytes& file) {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 20;  // bytes that are read at a time
  for (std::uint64_t begin = 0; begin < file.size(); begin += kPart) {
    const std::size_t zero = file.Read(begin, kPart).find('\0');
    if (zero == std::string::npos) continue;
    ThrowInvalidInput(
        "{}: found a zero byte, expected text; the file is of another kind, or damaged",
        file.PositionOf(begin + zero));
  }
}

// Calls body(i) for i in [0, count), on threads where there are any.
template <typename Body>
void ForEach(Context* context, std::int64_t count, const Body& body) {
  if (context != nullptr) {
    context->ParallelFor(count, [&](std::int64_t i, int) { body(i); });
  } else {
    for (std::int64_t i = 0; i < count; ++i) body(i);
  }
}

// Its errors are about options and model, but the user must know which file needs them.
RecordEncoder MakeEncoder(const std::string& file, PromptLayout layout,
                          const EncodingOptions& options, const Tokenizer& tokenizer,
                          const ChatTemplate* chat) {
  return NamePlace([&] { return file; },
                   [&] { return RecordEncoder(std::move(layout), options, tokenizer, chat); });
}

FileBytes OpenSource(const DataSource& source) {
  if (source.descriptor < 0) return FileBytes(source.path);
  // The data set may outlive the caller's descriptor.
  const int own = ::fcntl(source.descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0) {
    ThrowInvalidInput("{}: cannot read the records: {}", source.path.string(),
                      std::strerror(errno));
  }
  return FileBytes::FromDescriptor(source.path.string(), own);
}

}  // namespace

// A file has one layout, which a record of it shows.
SampleIndex::FileLayout SampleIndex::FileLayoutOf(const RecordFile& records, RecordFormat asked,
                                                  const DataOptions& options,
                                                  bool has_chat_template) {
  const LayoutRules& rules = options.layout;
  const FormatExample example = FindFormatExample(records, asked, rules, options.preference.form);
  const OrderedJson record =
      NamePlace([&] { return records.file().name(); },
                [&] { return WithNamesOfFormat(example.record, example.detected); });
  const RecordFormat format = example.detected.format;
  const bool is_conversation = format == RecordFormat::kPromptCompletion &&
                               HasField(record, "prompt") && record["prompt"].is_array();
  PromptLayout layout =
      NamePlace([&] { return records.file().name(); },
                [&] { return ChooseLayout(format, rules, has_chat_template, is_conversation); });
  return {std::move(layout), example.detected};
}

std::shared_ptr<const SampleIndex> SampleIndex::Open(const DataSource& source,
                                                     const DataOptions& options,
                                                     const Tokenizer& tokenizer,
                                                     const ChatTemplate* chat, Context* context,
                                                     const ReadingProgress& progress) {
  // An index of records without a file would never be found again.
  if (source.descriptor >= 0 && !options.index_folder.empty()) {
    DataOptions in_memory = options;
    in_memory.index_folder.clear();
    return Open(source, in_memory, tokenizer, chat, context, progress);
  }
  if (progress) progress(0);
  const FileBytes file =
      Decompressed(OpenSource(source), options.index_folder, {.reading = options.reading});
  const bool detects = source.format == RecordFormat::kAuto;
  const bool is_raw = source.format == RecordFormat::kRaw ||
                      (detects && DetectFileFormat(file) == FileFormat::kPlainText);
  if (is_raw) {
    return std::shared_ptr<SampleIndex>(new SampleIndex(file, source.slice, options, tokenizer));
  }
  RecordFile records(file, options.index_folder, options.reading);
  records.Ignore(options.ignore_fields);
  FileLayout layout = FileLayoutOf(records, source.format, options, chat != nullptr);
  DataOptions named = options;
  if (layout.layout.kind == PromptLayout::Kind::kDecision) {
    named.decision.fields = WithClassLabels(options.decision.fields, source.path);
    records.RefuseWideNumbers();
  }
  return std::shared_ptr<SampleIndex>(new SampleIndex(std::move(records), source.slice,
                                                      std::move(layout), named, tokenizer, chat,
                                                      context, progress));
}

SampleIndex::SampleIndex(const FileBytes& file, const DataSlice& slice, const DataOptions& options,
                         const Tokenizer& tokenizer)
    : name_(file.name()),
      encoder_(MakeEncoder(name_, {.format = RecordFormat::kRaw}, options, tokenizer, nullptr)),
      max_length_(options.max_length),
      max_length_is_context_(options.max_length_is_context()) {
  CheckIsText(file);
  std::string text = file.Read(0, file.size());
  file.CheckUtf8(0, text);
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  tokens_ = encoder_.EncodeRaw(text);
  if (tokens_.empty()) ThrowInvalidInput("{}: {}", name_, kEmptyFile);
  const std::int64_t width = encoder_.window_tokens();
  TakeSlice(slice, (std::ssize(tokens_) + width - 1) / width);
  AddWindows();
}

SampleIndex::SampleIndex(RecordFile records, const DataSlice& slice, FileLayout layout,
                         const DataOptions& options, const Tokenizer& tokenizer,
                         const ChatTemplate* chat, Context* context,
                         const ReadingProgress& progress)
    : name_(records.file().name()),
      records_(std::move(records)),
      detected_(std::move(layout.detected)),
      encoder_(MakeEncoder(name_, std::move(layout.layout), options, tokenizer, chat)),
      max_length_(options.max_length),
      max_length_is_context_(options.max_length_is_context()) {
  TakeSlice(slice, records_->size());
  IndexPlace place;
  if (!options.index_folder.empty()) {  // the key takes time to make
    const std::string file_name = std::filesystem::path(name_).filename().string();
    std::string key = records_->key() + encoder_.key() + "\n";
    if (this->records() < records_->size()) key += fmt::format("records {} to {}\n", begin_, end_);
    place = IndexPlace::In(options.index_folder, file_name, std::move(key));
  }
  if (!FindIndex(place)) {
    entries_ = IndexArray<SampleEntry>(place);
    AddRecords(options, context, progress);
    entries_.Finish(FormatJson(CountsToJson(counts_)));
  }
  DescribeFields();
}

void SampleIndex::TakeSlice(const DataSlice& slice, std::int64_t records) {
  std::tie(begin_, end_) = slice.Of(records);
  if (begin_ == end_) {
    ThrowInvalidInput("{}: the slice holds none of its {} records", name_, records);
  }
}

// "prompt: question, completion: answer; not read: id".
void SampleIndex::DescribeFields() {
  fields_ = DescribeFieldNames(detected_.names);
  std::string unread = DescribeNotRead(counts_.not_read, records());
  const std::int64_t unnamed = records_->unnamed_columns();
  if (unnamed > 0 && !unread.empty()) unread += ", ";
  if (unnamed == 1) unread += "the column without a name";
  if (unnamed > 1) unread += fmt::format("the {} columns without a name", unnamed);
  if (unread.empty()) return;
  fields_ += fmt::format("{}not read: {}", fields_.empty() ? "" : "; ", unread);
}

// Takes the entries and counts of an earlier run. False, and no change that matters, when there is
// no index or it was damaged.
bool SampleIndex::FindIndex(const IndexPlace& place) {
  auto found = IndexArray<SampleEntry>::Find(place);
  if (!found) return false;
  entries_ = std::move(*found);
  const std::optional<DataReport> counts = CountsFromJson(entries_.text());
  // Checked once here, so that planning and reading need no checks of entries.
  if (!counts || !EntriesAreSound()) return false;
  counts_ = *counts;
  return true;
}

// True when every entry is possible: reading one must find a record, and planning must find lengths
// that fit. A wrong entry that is possible is refused by its hash when its sample is read.
bool SampleIndex::EntriesAreSound() const {
  std::int64_t next = begin_;  // record
  std::int64_t next_part = 0;
  for (const SampleEntry& entry : entries()) {
    const bool follows =
        entry.record >= next || (std::int64_t{entry.record} + 1 == next && entry.part >= next_part);
    const bool sound = follows && entry.record < end_ && entry.longest <= max_length_ &&
                       entry.longest <= entry.length && entry.supervised > 0 &&
                       entry.supervised <= entry.length;
    if (!sound) return false;
    next = std::int64_t{entry.record} + 1;
    next_part = std::int64_t{entry.part} + 1;
  }
  return true;
}

FileFormat SampleIndex::file_format() const {
  return records_ ? records_->file_format() : FileFormat::kPlainText;
}

std::int64_t SampleIndex::found() const {
  if (!records_) return records();
  return std::ssize(entries()) + counts_.dropped_long + counts_.dropped_masked +
         counts_.dropped_untrained + counts_.dropped_bad + counts_.dropped_identical +
         counts_.dropped_equal_cut;
}

template <typename Body>
auto SampleIndex::WithRecord(std::int64_t record, const Body& body) const {
  const OrderedJson read = records_->Read(record);
  const auto place = [&] {
    return detected_.names.empty()
               ? Where(record)
               : fmt::format("{} ({})", Where(record), DescribeFieldNames(detected_.names));
  };
  return NamePlace(place, [&] { return body(WithNamesOfFormat(read, detected_)); });
}

// Encodes the record again instead of keeping 8 bytes a token: compared with a training step, that
// takes little time.
Sample SampleIndex::Read(const SampleEntry& entry, std::int64_t visit) const {
  if (!records_) return Window(entry.record);
  if (IsInOtherOrder(visit)) {
    if (auto sample = OfVisit(entry, visit)) return *std::move(sample);
  }
  Sample sample = WithRecord(
      entry.record, [&](const OrderedJson& json) { return encoder_.Encode(json, entry.part); });
  if (LongestSequence(sample) > max_length_) Cut(sample, max_length_);
  if (HashSample(sample) != entry.hash || std::ssize(sample.ids) != entry.length ||
      CountSupervised(sample) != entry.supervised) {
    ThrowInvalidInput(
        "{}: the sample is not the one that was checked; the index belongs to other data: remove "
        "the folder of the index and start again",
        Where(entry.record));
  }
  return sample;
}

bool SampleIndex::IsInOtherOrder(std::int64_t visit) const {
  const DecisionEncoder* decisions = encoder_.decisions();
  return decisions != nullptr &&
         (visit > 0 || (visit == kNoVisit && decisions->shuffles_options()));
}

// Plans of memory and of micro-batches count the tokens of the first visit. Another order has as
// many, but where letters join what is around them; such a record keeps its first order. Of a
// limited choice other options may have other lengths; then those of the first visit are shown.
std::optional<Sample> SampleIndex::OfVisit(const SampleEntry& entry, std::int64_t visit) const {
  for (const std::int64_t draw : {visit, std::int64_t{0}}) {
    Sample sample = WithRecord(entry.record, [&](const OrderedJson& json) {
      return encoder_.decisions()->Encode(json, visit, draw).sample;
    });
    const bool fits =
        std::ssize(sample.ids) == entry.length && LongestSequence(sample) == entry.longest &&
        UnfoldedRows(sample) == entry.unfolded && CountSupervised(sample) == entry.supervised;
    if (fits) return sample;
  }
  return std::nullopt;
}

std::optional<OrderedJson> SampleIndex::ReadRecord(const SampleEntry& entry) const {
  if (!records_) return std::nullopt;
  const OrderedJson record = WithNamesOfFormat(records_->Read(entry.record), detected_);
  return encoder_.AnswerOf(record, entry.part);
}

std::string SampleIndex::StateOf(const SampleEntry& entry) const {
  const DecisionEncoder* decisions = encoder_.decisions();
  if (decisions == nullptr) return "";
  return WithRecord(entry.record, [&](const OrderedJson& json) {
    return FormatJson(decisions->Read(json).decision.state);
  });
}

std::string SampleIndex::Where(std::int64_t record) const {
  return records_ ? records_->Where(record) : fmt::format("{}: window {}", name_, record + 1);
}

// Windows are cut from the tokens, not from the text, so that every one of them but the last is
// full.
void SampleIndex::AddWindows() {
  for (std::int64_t w = begin_; w < end_; ++w) {
    const Sample sample = Window(w);
    counts_.own_bos += encoder_.BeginsWithBos(WindowTokens(w));
    counts_.longest_record = std::max(counts_.longest_record, std::ssize(sample.ids));
    if (CountSupervised(sample) == 0) {
      // A window of one token has nothing to predict.
      counts_.dropped_tail += std::ssize(sample.ids);
    } else {
      AddSample(sample, w);
    }
  }
  entries_.Finish();
}

// Some records from `begin` on, which together have as many bytes as one may have.
std::int64_t SampleIndex::BlockAt(std::int64_t begin) const {
  const auto most = static_cast<std::uint64_t>(records_->limits().record_bytes());
  std::int64_t count = 1;
  while (count < kBlock && begin + count < end_ &&
         records_->Begin(begin + count + 1) - records_->Begin(begin) <= most) {
    ++count;
  }
  return count;
}

// Encodes a block of records on all threads, then collects the results in the order of the file, so
// that the index and the first error do not depend on the threads.
void SampleIndex::AddRecords(const DataOptions& options, Context* context,
                             const ReadingProgress& progress) {
  struct Outcome {
    std::exception_ptr error;
    std::vector<EncodedRecord> samples;
  };
  std::vector<Outcome> outcomes;
  RecordCounts counts(counts_, [this](std::int64_t record) { return Where(record); });
  for (std::int64_t begin = begin_, count = 0; begin < end_; begin += count) {
    count = BlockAt(begin);
    if (progress) {
      progress(static_cast<double>(records_->Begin(begin)) /
               static_cast<double>(records_->file().size()));
    }
    // One block at a time bounds memory: the samples of some records, not of the whole file.
    outcomes.assign(count, {});
    ForEach(context, count, [&](std::int64_t i) {
      Outcome& outcome = outcomes[i];
      try {
        outcome.samples = EncodeAll(begin + i);
      } catch (...) {
        outcome.error = std::current_exception();
      }
    });
    for (std::int64_t i = 0; i < count; ++i) {
      Outcome& outcome = outcomes[i];
      if (outcome.error) {
        AddBadRecord(outcome.error, counts);
        continue;
      }
      for (std::int64_t part = 0; part < std::ssize(outcome.samples); ++part) {
        AddRecord(begin + i, part, options.over_long, outcome.samples[part], counts);
        NameFirsts(counts_, [&] { return Where(begin + i); });
      }
    }
  }
  CheckBadRecords(options.bad_records);
}

// Errors that are not about the record are thrown.
void SampleIndex::AddBadRecord(const std::exception_ptr& error, RecordCounts& counts) const {
  try {
    std::rethrow_exception(error);
  } catch (const Error& bad) {
    if (bad.code() != ErrorCode::kInvalidInput) throw;
    records_->file().CheckUnchanged();
    counts.AddBad(bad);
  }
}

// Errors: InvalidInput with the first reasons and the count when bad records are not dropped: a
// person who mends them wants to know how many there are.
void SampleIndex::CheckBadRecords(BadRecords bad_records) {
  const std::int64_t bad = counts_.dropped_bad;
  if (bad == 0 || bad_records == BadRecords::kDrop) return;
  std::string text = fmt::format("{}", fmt::join(counts_.bad_reasons, "\n"));
  if (records() > 1) {
    text += fmt::format("\n{}: {} of {} records cannot be read", name_, bad, records());
    if (const std::int64_t shown = std::ssize(counts_.bad_reasons); shown < bad) {
      text += fmt::format(", of which {} are shown", shown);
    }
    if (bad < records()) text += "; to train on the others: bad_records drop";
  }
  ThrowInvalidInput("{}", text);
}

// Leaves a record out, cuts it, or takes it, and counts which.
void SampleIndex::AddRecord(std::int64_t record, std::int64_t part, OverLong over_long,
                            EncodedRecord& encoded, RecordCounts& counts) {
  Sample& sample = encoded.sample;
  const std::int64_t length = encoded.length;
  counts_.longest_record = std::max(counts_.longest_record, length);
  if (encoded.identical) {
    ++counts_.dropped_identical;
    return;
  }
  if (encoded.supervised == 0) {
    ++counts_.dropped_untrained;
    counts.AddTexts(encoded.notes, record);
    return;
  }
  if (encoded.pair_cut != PairCut::kDifferent) {
    ++(encoded.pair_cut == PairCut::kEqual ? counts_.dropped_equal_cut : counts_.dropped_masked);
    return;
  }
  if (length > max_length_) {
    if (over_long == OverLong::kError) {
      ThrowInvalidInput("{}: the sample has {} tokens and {} {}", Where(record), length,
                        max_length_is_context_ ? "the context of the model has" : "max_length is",
                        max_length_);
    }
    // A question without its end is another question, and branches end apart.
    const bool can_be_cut = sample.branches.empty() && sample.choices.empty();
    if (over_long == OverLong::kDrop || !can_be_cut) {
      ++counts_.dropped_long;
      return;
    }
    const bool in_answer = sample.labels[max_length_] != kIgnoreLabel;
    Cut(sample, max_length_);
    if (CountSupervised(sample) == 0) {
      ++counts_.dropped_masked;
      return;
    }
    ++counts_.truncated;
    counts_.truncated_tokens += length - max_length_;
    counts_.cut_answers += in_answer && sample.labels.back() != kIgnoreLabel;
  }
  counts_.truncated += encoded.cut_tokens > 0;
  counts_.truncated_tokens += encoded.cut_tokens;
  counts_.cut_answers += encoded.cut_tokens > 0;
  counts.AddNotes(encoded.notes, record);
  AddSample(sample, record, part);
}

void SampleIndex::AddSample(const Sample& sample, std::int64_t record, std::int64_t part) {
  entries_.Add({.hash = HashSample(sample),
                .prompt = HashPrompt(sample),
                .record = static_cast<std::uint32_t>(record),
                .part = static_cast<std::uint32_t>(part),
                .length = static_cast<std::int32_t>(sample.ids.size()),
                .supervised = static_cast<std::int32_t>(CountSupervised(sample)),
                .longest = static_cast<std::int32_t>(LongestSequence(sample)),
                .unfolded = static_cast<std::int32_t>(UnfoldedRows(sample)),
                .chosen = static_cast<std::int32_t>(CountOfFirst(sample)),
                .first = static_cast<std::int32_t>(FirstTrained(sample)),
                .text = HashText(sample)});
}

std::span<const std::int32_t> SampleIndex::WindowTokens(std::int64_t i) const {
  const std::int64_t width = encoder_.window_tokens();
  const auto rest = std::span(tokens_).subspan(i * width);
  return rest.first(std::min(width, std::ssize(rest)));
}

Sample SampleIndex::Window(std::int64_t i) const { return encoder_.Window(WindowTokens(i)); }

std::vector<EncodedRecord> SampleIndex::EncodeAll(std::int64_t record) const {
  return WithRecord(record, [&](const OrderedJson& json) { return encoder_.EncodeAll(json); });
}

}  // namespace qlora
