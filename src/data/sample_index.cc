#include "data/sample_index.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "records/record_error.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

constexpr std::int64_t kBlock = 4096;  // records that are encoded before the results are collected

// Hashes every token with its label, in order.
std::uint64_t HashSample(const Sample& sample) {
  std::uint64_t hash = MixBits(sample.ids.size());
  for (std::size_t t = 0; t < sample.ids.size(); ++t) {
    // Through 32 bits without sign: otherwise -100 would set all upper bits and hide the id.
    const std::uint64_t both = std::uint64_t{static_cast<std::uint32_t>(sample.ids[t])} << 32 |
                               static_cast<std::uint32_t>(sample.labels[t]);
    hash = MixBits(hash ^ both);
  }
  return hash;
}

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
RecordEncoder MakeEncoder(const std::string& file, PromptLayout layout, const DataOptions& options,
                          const Tokenizer& tokenizer, const ChatRenderer* chat) {
  return NamePlace([&] { return file; },
                   [&] { return RecordEncoder(std::move(layout), options, tokenizer, chat); });
}

// True when a template lays out this record: the user's, or one that an adapter was trained with.
bool HasTemplateFor(const OrderedJson& record, const LayoutRules& rules) {
  if (!rules.prompt_template.empty()) return true;
  if (!rules.recorded || rules.recorded->format != RecordFormat::kTemplate) return false;
  const FieldTemplate recorded(rules.recorded->prompt_template, "prompt_template");
  return record.contains(recorded.main_field());
}

// A record that shows the format of a file: the first of some whose fields tell, as a table may
// have null in its first rows.
struct Example {
  OrderedJson record;
  DetectedFormat detected;
};

// format: as the user names it, or kAuto.
Example FindExample(const RecordFile& records, RecordFormat format, const LayoutRules& rules) {
  constexpr std::int64_t kRecordsTried = 64;
  const bool detects = format == RecordFormat::kAuto;
  for (std::int64_t i = 0; i < std::min(kRecordsTried, records.size()); ++i) {
    OrderedJson record = records.Read(i);
    auto detected = detects ? DetectRecordFormat(record, HasTemplateFor(record, rules))
                            : DetectFieldNames(record, format);
    if (detected) return {std::move(record), std::move(*detected)};
  }
  OrderedJson first = records.Read(0);
  if (detects) NamePlace([&] { return records.Where(0); }, [&] { ThrowUnknownFormat(first); });
  return {std::move(first), {format, {}}};
}

// Returns "prompt: question, completion: answer; not read: id", for records whose field names
// differ from the names of their format; "" for others.
std::string DescribeFields(const Example& example, const PromptLayout& layout) {
  const std::vector<FieldName>& names = example.detected.names;
  if (names.empty()) return {};
  const RecordLayout reader(layout);
  const OrderedJson record = WithNamesOfFormat(example.record, names);
  std::string unread;
  for (const auto& item : record.items()) {
    if (reader.Reads(item.key()) || item.key() == names.back().ours) continue;
    unread += (unread.empty() ? "" : ", ") + item.key();
  }
  return DescribeFieldNames(names) + (unread.empty() ? "" : "; not read: " + unread);
}

}  // namespace

// A file has one layout, which a record of it shows.
SampleIndex::FileLayout SampleIndex::FileLayoutOf(const RecordFile& records, RecordFormat asked,
                                                  const LayoutRules& rules,
                                                  bool has_chat_template) {
  const Example example = FindExample(records, asked, rules);
  const OrderedJson record = WithNamesOfFormat(example.record, example.detected.names);
  const RecordFormat format = example.detected.format;
  const bool is_conversation = format == RecordFormat::kPromptCompletion &&
                               HasField(record, "prompt") && record["prompt"].is_array();
  PromptLayout layout =
      NamePlace([&] { return records.file().name(); },
                [&] { return ChooseLayout(format, rules, has_chat_template, is_conversation); });
  std::string fields = DescribeFields(example, layout);
  return {std::move(layout), example.detected.names, std::move(fields)};
}

std::shared_ptr<const SampleIndex> SampleIndex::Open(const DataSource& source,
                                                     const DataOptions& options,
                                                     const Tokenizer& tokenizer,
                                                     const ChatRenderer* chat, Context* context) {
  const FileBytes file(source.path);
  const bool detects = source.format == RecordFormat::kAuto;
  const bool is_raw = source.format == RecordFormat::kRaw ||
                      (detects && DetectFileFormat(file) == FileFormat::kPlainText);
  if (is_raw) {
    return std::shared_ptr<SampleIndex>(new SampleIndex(file, options, tokenizer));
  }
  RecordFile records(file, options.index_folder);
  FileLayout layout = FileLayoutOf(records, source.format, options.layout, chat != nullptr);
  return std::shared_ptr<SampleIndex>(
      new SampleIndex(std::move(records), std::move(layout), options, tokenizer, chat, context));
}

SampleIndex::SampleIndex(const FileBytes& file, const DataOptions& options,
                         const Tokenizer& tokenizer)
    : name_(file.name()),
      encoder_(MakeEncoder(name_, {.format = RecordFormat::kRaw}, options, tokenizer, nullptr)),
      max_length_(options.max_length) {
  CheckIsText(file);
  std::string text = file.Read(0, file.size());
  file.CheckUtf8(0, text);
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  tokens_ = encoder_.EncodeRaw(text);
  if (tokens_.empty()) ThrowInvalidInput("{}: the data file is empty", name_);
  AddWindows();
}

SampleIndex::SampleIndex(RecordFile records, FileLayout layout, const DataOptions& options,
                         const Tokenizer& tokenizer, const ChatRenderer* chat, Context* context)
    : name_(records.file().name()),
      records_(std::move(records)),
      names_(std::move(layout.names)),
      fields_(std::move(layout.fields)),
      encoder_(MakeEncoder(name_, std::move(layout.layout), options, tokenizer, chat)),
      max_length_(options.max_length) {
  IndexPlace place;
  if (!options.index_folder.empty()) {  // the key takes time to make
    const std::string file_name = std::filesystem::path(name_).filename().string();
    place =
        IndexPlace::In(options.index_folder, file_name, records_->key() + encoder_.key() + "\n");
  }
  if (FindIndex(place)) return;
  entries_ = IndexArray<SampleEntry>(place);
  AddRecords(options.over_long, context);
  entries_.Finish(FormatJson(CountsToJson(counts_)));
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
  std::int64_t next = 0;
  for (const SampleEntry& entry : entries()) {
    const bool sound = entry.record >= next && entry.record < records() && entry.part == 0 &&
                       entry.length <= max_length_ && entry.supervised > 0 &&
                       entry.supervised < entry.length;
    if (!sound) return false;
    next = std::int64_t{entry.record} + 1;
  }
  return true;
}

FileFormat SampleIndex::file_format() const {
  return records_ ? records_->file_format() : FileFormat::kPlainText;
}

std::int64_t SampleIndex::records() const {
  if (records_) return records_->size();
  const std::int64_t width = encoder_.window_tokens();
  return (std::ssize(tokens_) + width - 1) / width;
}

// Encodes the record again instead of keeping 8 bytes a token: compared with a training step, that
// takes little time.
Sample SampleIndex::Read(const SampleEntry& entry) const {
  if (!records_) return Window(entry.record);
  Sample sample = Encode(entry.record).sample;
  if (std::ssize(sample.ids) > max_length_) Cut(sample, max_length_);
  if (HashSample(sample) != entry.hash || std::ssize(sample.ids) != entry.length ||
      CountSupervised(sample) != entry.supervised) {
    ThrowInvalidInput(
        "{}: the sample is not the one that was checked; the index belongs to other data: remove "
        "the folder of the index and start again",
        Where(entry.record));
  }
  return sample;
}

std::optional<OrderedJson> SampleIndex::ReadRecord(const SampleEntry& entry) const {
  if (!records_) return std::nullopt;
  return WithNamesOfFormat(records_->Read(entry.record), names_);
}

std::string SampleIndex::Where(std::int64_t record) const {
  return records_ ? records_->Where(record) : fmt::format("{}: window {}", name_, record + 1);
}

// Only for the error of a data set without samples, so nothing is kept to find it faster.
std::int64_t SampleIndex::FirstUntrained() const {
  std::int64_t record = 0;
  while (CountSupervised(Encode(record).sample) > 0) ++record;
  return record;
}

// Windows are cut from the tokens, not from the text, so that every one of them but the last is
// full.
void SampleIndex::AddWindows() {
  for (std::int64_t w = 0; w < records(); ++w) {
    const Sample sample = Window(w);
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

// Encodes a block of records on all threads, then collects the results in the order of the file, so
// that the index and the first error do not depend on the threads.
void SampleIndex::AddRecords(OverLong over_long, Context* context) {
  struct Outcome {
    std::exception_ptr error;
    EncodedRecord encoded;
  };
  std::vector<Outcome> outcomes;
  for (std::int64_t begin = 0; begin < records(); begin += kBlock) {
    const std::int64_t count = std::min(kBlock, records() - begin);
    // One block at a time bounds memory: samples of 4096 records, not of the whole file.
    outcomes.assign(count, {});
    ForEach(context, count, [&](std::int64_t i) {
      Outcome& outcome = outcomes[i];
      try {
        outcome.encoded = Encode(begin + i);
      } catch (...) {
        outcome.error = std::current_exception();
      }
    });
    for (std::int64_t i = 0; i < count; ++i) {
      Outcome& outcome = outcomes[i];
      if (outcome.error) std::rethrow_exception(outcome.error);
      AddRecord(begin + i, over_long, outcome.encoded);
    }
  }
}

// Leaves a record out, cuts it, or takes it, and counts which.
void SampleIndex::AddRecord(std::int64_t record, OverLong over_long, EncodedRecord& encoded) {
  Sample& sample = encoded.sample;
  const std::int64_t length = std::ssize(sample.ids);
  counts_.longest_record = std::max(counts_.longest_record, length);
  if (CountSupervised(sample) == 0) {
    ++counts_.dropped_untrained;
    return;
  }
  if (length > max_length_) {
    if (over_long == OverLong::kError) {
      ThrowInvalidInput("{}: the sample has {} tokens and max_length is {}", Where(record), length,
                        max_length_);
    }
    if (over_long == OverLong::kDrop) {
      ++counts_.dropped_long;
      return;
    }
    Cut(sample, max_length_);
    if (CountSupervised(sample) == 0) {
      ++counts_.dropped_masked;
      return;
    }
    ++counts_.truncated;
    counts_.truncated_tokens += length - max_length_;
  }
  CountNotes(encoded.notes);
  AddSample(sample, record);
}

void SampleIndex::AddSample(const Sample& sample, std::int64_t record) {
  entries_.Add({.hash = HashSample(sample),
                .record = static_cast<std::uint32_t>(record),
                .part = 0,
                .length = static_cast<std::int32_t>(sample.ids.size()),
                .supervised = static_cast<std::int32_t>(CountSupervised(sample))});
}

void SampleIndex::CountNotes(const SampleNotes& notes) {
  counts_.split_boundaries += notes.split_boundary;
  counts_.empty_completions += notes.empty_completion;
  counts_.without_eos += notes.without_eos;
  counts_.unlisted_stops += notes.unlisted_stop;
  counts_.closed_turns += notes.closed_turn;
  counts_.hidden_calls += notes.hidden_calls;
  counts_.unread += !notes.unread_fields.empty();
  AddNames(notes.unread_fields, counts_.unread_fields);
  counts_.without_bos += notes.without_bos;
  counts_.foreign_labels += notes.foreign_labels;
}

Sample SampleIndex::Window(std::int64_t i) const {
  const std::int64_t width = encoder_.window_tokens();
  const auto rest = std::span(tokens_).subspan(i * width);
  return encoder_.Window(rest.first(std::min(width, std::ssize(rest))));
}

EncodedRecord SampleIndex::Encode(std::int64_t record) const {
  const OrderedJson json = WithNamesOfFormat(records_->Read(record), names_);
  const auto place = [&] {
    return names_.empty() ? Where(record)
                          : fmt::format("{} ({})", Where(record), DescribeFieldNames(names_));
  };
  return NamePlace(place, [&] { return encoder_.Encode(json); });
}

}  // namespace qlora
