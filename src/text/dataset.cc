#include "text/dataset.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "text/data_encode.h"
#include "text/tokenizer_tables.h"

namespace qlora {
namespace {

constexpr std::int64_t kBlock = 4096;  // records that are encoded before the results are collected
constexpr std::int64_t kHistogramBuckets = 16;
constexpr std::uint64_t kSplitDetail =
    (std::uint64_t{1} << 48) - 1;  // no epoch of DataOrder has it

std::uint64_t HashSample(const Sample& sample) {
  std::uint64_t hash = MixBits(sample.ids.size());
  for (std::size_t t = 0; t < sample.ids.size(); ++t) {
    const std::uint64_t both = std::uint64_t{static_cast<std::uint32_t>(sample.ids[t])} << 32 |
                               static_cast<std::uint32_t>(sample.labels[t]);
    hash = MixBits(hash ^ both);
  }
  return hash;
}

void Cut(Sample& sample, std::int64_t length) {
  sample.ids.resize(static_cast<std::size_t>(length));
  sample.labels.resize(static_cast<std::size_t>(length));
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

}  // namespace

struct Dataset::Source {
  static std::shared_ptr<const Source> OfText(const DataFile& file, const DataOptions& options,
                                              const Tokenizer& tokenizer) {
    std::string text = file.Read(0, file.size());
    file.CheckUtf8(0, text);
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    RecordEncoder encoder(RowFormat::kRaw, options, tokenizer, nullptr);
    std::vector<std::int32_t> tokens = encoder.EncodeRaw(text);
    if (tokens.empty()) ThrowInvalidInput("{}: the data file is empty", file.name());
    return std::shared_ptr<const Source>(
        new Source{file.name(), std::nullopt, std::move(tokens), std::move(encoder)});
  }

  static std::shared_ptr<const Source> OfRecords(const DataFile& file, RowFormat format,
                                                 const DataOptions& options,
                                                 const Tokenizer& tokenizer,
                                                 const ChatRenderer* chat) {
    RecordFile records(file);
    if (format == RowFormat::kAuto) format = DetectRowFormat(records.Read(0), options);
    return std::shared_ptr<const Source>(new Source{
        file.name(), std::move(records), {}, RecordEncoder(format, options, tokenizer, chat)});
  }

  std::int64_t size() const {
    if (records) return records->size();
    const std::int64_t width = encoder.window_tokens();
    return (std::ssize(tokens) + width - 1) / width;
  }

  Sample Window(std::int64_t i) const {
    const auto width = static_cast<std::size_t>(encoder.window_tokens());
    const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(i) * width);
    return encoder.Window(rest.first(std::min(width, rest.size())));
  }

  // Record i, of any length. Errors name the place.
  EncodedRecord Encode(std::int64_t i) const {
    const OrderedJson record = records->Read(i);
    try {
      return encoder.Encode(record);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", Where(i), error.what()));
    }
  }

  std::string Where(std::int64_t i) const {
    return records ? records->Where(i) : fmt::format("{}: window {}", name, i + 1);
  }

  std::string name;
  std::optional<RecordFile> records;  // none: a raw text
  std::vector<std::int32_t> tokens;   // of a raw text
  RecordEncoder encoder;
};

// One record, encoded on some thread.
struct Dataset::Scan {
  std::exception_ptr error;
  EncodedRecord encoded;
};

Dataset Dataset::Open(const DataOptions& options, const Tokenizer& tokenizer,
                      const ChatRenderer* chat, Context* context) {
  if (options.sources.empty()) ThrowInvalidInput("no data file was named");
  if (options.max_length < 2 || options.max_length > std::numeric_limits<std::int32_t>::max()) {
    ThrowInvalidInput("max_length: expected 2 or more tokens, found {}", options.max_length);
  }
  Dataset dataset;
  dataset.report_.max_length = options.max_length;
  for (const DataSource& source : options.sources) {
    dataset.OpenSource(source, options, tokenizer, chat, context);
  }
  const DataReport& report = dataset.report_;
  if (dataset.entries_.empty()) {
    ThrowInvalidInput(
        "no sample is left: {} records are longer than max_length {} (the longest has {} tokens), "
        "{} keep no trained token when cut; raise max_length",
        report.dropped_long, options.max_length, report.longest_record, report.dropped_masked);
  }
  dataset.entries_.shrink_to_fit();
  dataset.Summarize();
  return dataset;
}

void Dataset::OpenSource(const DataSource& source, const DataOptions& options,
                         const Tokenizer& tokenizer, const ChatRenderer* chat, Context* context) {
  const DataFile file(source.path);
  FileReport file_report;
  file_report.path = file.name();
  file_report.weight = source.weight;
  const std::size_t first = entries_.size();
  const bool is_raw =
      source.format == RowFormat::kRaw ||
      (source.format == RowFormat::kAuto && DetectContainer(file) == Container::kPlainText);
  Container container = Container::kPlainText;
  try {
    sources_.push_back(is_raw ? Source::OfText(file, options, tokenizer)
                              : Source::OfRecords(file, source.format, options, tokenizer, chat));
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(file.name())) throw;
    throw Error(error.code(), fmt::format("{}: {}", file.name(), error.what()));
  }
  const Source& opened = *sources_.back();
  if (is_raw) {
    AddWindows(opened);
  } else {
    container = opened.records->container();
    AddRecords(opened, options.over_long, context);
  }
  file_report.container = ContainerName(container);
  file_report.format = RowFormatName(opened.encoder.format());
  file_report.records = opened.size();
  file_report.samples = static_cast<std::int64_t>(entries_.size() - first);
  report_.files.push_back(std::move(file_report));
}

void Dataset::AddWindows(const Source& source) {
  for (std::int64_t w = 0; w < source.size(); ++w) {
    const Sample sample = source.Window(w);
    const auto length = static_cast<std::int64_t>(sample.ids.size());
    if (CountSupervised(sample) == 0) {
      report_.dropped_tail += length;
      continue;
    }
    report_.longest_record = std::max(report_.longest_record, length);
    AddSample(sample, w);
  }
}

void Dataset::AddRecords(const Source& source, OverLong over_long, Context* context) {
  std::vector<Scan> scans;
  for (std::int64_t begin = 0; begin < source.size(); begin += kBlock) {
    const std::int64_t count = std::min(kBlock, source.size() - begin);
    scans.assign(static_cast<std::size_t>(count), {});
    ForEach(context, count, [&](std::int64_t i) {
      Scan& scan = scans[static_cast<std::size_t>(i)];
      try {
        scan.encoded = source.Encode(begin + i);
      } catch (...) {
        scan.error = std::current_exception();
      }
    });
    for (std::int64_t i = 0; i < count; ++i) {
      Scan& scan = scans[static_cast<std::size_t>(i)];
      if (scan.error) std::rethrow_exception(scan.error);
      AddRecord(source, begin + i, over_long, scan.encoded);
    }
  }
}

void Dataset::AddRecord(const Source& source, std::int64_t record, OverLong over_long,
                        EncodedRecord& encoded) {
  Sample& sample = encoded.sample;
  const auto length = static_cast<std::int64_t>(sample.ids.size());
  report_.longest_record = std::max(report_.longest_record, length);
  if (length > report_.max_length) {
    if (over_long == OverLong::kError) {
      ThrowInvalidInput("{}: the sample has {} tokens and max_length is {}", source.Where(record),
                        length, report_.max_length);
    }
    if (over_long == OverLong::kDrop) {
      ++report_.dropped_long;
      return;
    }
    Cut(sample, report_.max_length);
    if (CountSupervised(sample) == 0) {
      ++report_.dropped_masked;
      return;
    }
    ++report_.truncated;
    report_.truncated_tokens += length - report_.max_length;
  }
  const SampleNotes& notes = encoded.notes;
  report_.split_boundaries += notes.split_boundary;
  report_.empty_completions += notes.empty_completion;
  report_.without_eos += notes.without_eos;
  report_.unlisted_stops += notes.unlisted_stop;
  report_.without_bos += notes.without_bos;
  report_.foreign_labels += notes.foreign_labels;
  AddSample(sample, record);
}

void Dataset::AddSample(const Sample& sample, std::int64_t record) {
  entries_.push_back({.source = static_cast<std::uint32_t>(sources_.size() - 1),
                      .record = static_cast<std::uint32_t>(record),
                      .length = static_cast<std::int32_t>(sample.ids.size()),
                      .supervised = static_cast<std::int32_t>(CountSupervised(sample)),
                      .hash = HashSample(sample)});
}

void Dataset::Summarize() {
  std::vector<std::int32_t> lengths;
  std::vector<std::uint64_t> hashes;
  lengths.reserve(entries_.size());
  hashes.reserve(entries_.size());
  report_.samples = size();
  report_.tokens = report_.supervised = 0;
  for (FileReport& file : report_.files) file.samples = 0;
  for (const Entry& entry : entries_) {
    report_.tokens += entry.length;
    report_.supervised += entry.supervised;
    ++report_.files[entry.source].samples;
    lengths.push_back(entry.length);
    hashes.push_back(entry.hash);
  }
  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  report_.shortest = lengths.empty() ? 0 : *shortest;
  report_.longest = lengths.empty() ? 0 : *longest;
  CountLengths(lengths, kHistogramBuckets, report_);
  std::sort(hashes.begin(), hashes.end());
  const auto unique = std::unique(hashes.begin(), hashes.end());
  report_.duplicates = hashes.end() - unique;
}

Sample Dataset::Get(std::int64_t i) const {
  const Entry& entry = entries_[static_cast<std::size_t>(i)];
  const Source& source = *sources_[entry.source];
  if (!source.records) return source.Window(entry.record);
  Sample sample = source.Encode(entry.record).sample;
  if (std::ssize(sample.ids) > entry.length) Cut(sample, entry.length);
  return sample;
}

std::string Dataset::Where(std::int64_t i) const {
  const Entry& entry = entries_[static_cast<std::size_t>(i)];
  return sources_[entry.source]->Where(entry.record);
}

std::vector<OrderPart> Dataset::parts() const {
  std::vector<OrderPart> parts;
  for (const FileReport& file : report_.files) parts.push_back({file.samples, file.weight});
  return parts;
}

std::uint64_t Dataset::fingerprint() const {
  std::uint64_t hash = MixBits(entries_.size());
  for (const Entry& entry : entries_) hash = MixBits(hash ^ entry.hash);
  return hash;
}

Dataset Dataset::Subset(std::span<const std::uint32_t> indices) const {
  QLORA_DCHECK(std::is_sorted(indices.begin(), indices.end()));
  Dataset subset;
  subset.sources_ = sources_;
  subset.report_ = report_;
  subset.entries_.reserve(indices.size());
  for (const std::uint32_t index : indices) subset.entries_.push_back(entries_[index]);
  subset.Summarize();
  return subset;
}

std::int64_t Dataset::CountShared(const Dataset& other) const {
  std::unordered_set<std::uint64_t> hashes;
  for (const Entry& entry : other.entries_) hashes.insert(entry.hash);
  return std::count_if(entries_.begin(), entries_.end(),
                       [&](const Entry& entry) { return hashes.contains(entry.hash); });
}

DatasetSplit SplitDataset(const Dataset& dataset, double val_set_size, std::uint64_t seed) {
  const auto size = static_cast<double>(dataset.size());
  const double wanted =
      val_set_size >= 1 ? val_set_size : std::max(1.0, std::round(val_set_size * size));
  if (!(val_set_size > 0) || wanted != std::floor(wanted) || wanted >= size) {
    ThrowInvalidInput(
        "val_set_size: expected a share below 1 or a number of samples below the {} that there "
        "are, found {}",
        dataset.size(), val_set_size);
  }
  std::vector<std::uint32_t> order =
      Permutation(dataset.size(), MakeKey(seed, RandomPlace::kShuffle, kSplitDetail));
  const auto held_out_end = order.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::sort(order.begin(), held_out_end);
  std::sort(held_out_end, order.end());
  return {.train = dataset.Subset({held_out_end, order.end()}),
          .held_out = dataset.Subset({order.begin(), held_out_end})};
}

}  // namespace qlora
