#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "data/index_array.h"
#include "data/record_encoder.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

constexpr std::int64_t kBlock = 4096;  // records that are encoded before the results are collected
constexpr std::int64_t kHistogramBuckets = 16;
constexpr std::uint64_t kSplitDetail =
    (std::uint64_t{1} << 48) - 1;  // no epoch of EpochOrder has it

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
  sample.ids.resize(length);
  sample.labels.resize(length);
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
  // A raw text, all of it encoded.
  Source(const FileBytes& file, const DataOptions& options, const Tokenizer& tokenizer);
  // Records; every one of them is checked.
  Source(RecordFile file, RecordFormat format, const DataOptions& options, const Tokenizer& tokenizer,
         const ChatRenderer* chat, Context* context);

  std::int64_t size() const;  // records or windows
  Sample Window(std::int64_t i) const;
  EncodedRecord Encode(std::int64_t i) const;  // record i, of any length; errors name the place
  std::string Where(std::int64_t i) const;

  void AddRecords(OverLong over_long, Context* context);
  void AddRecord(std::int64_t i, OverLong over_long, EncodedRecord& encoded);
  void AddSample(const Sample& sample, std::int64_t record, std::int64_t uncut_length);

  std::string name;
  std::optional<RecordFile> records;  // none: a raw text
  std::vector<std::int32_t> tokens;   // of a raw text
  RecordEncoder encoder;
  std::int64_t max_length;
  IndexArray<Entry> samples;
  DataReport counts;  // only what CountsToJson takes
};

Dataset::Source::Source(const FileBytes& file, const DataOptions& options,
                        const Tokenizer& tokenizer)
    : name(file.name()),
      encoder(RecordFormat::kRaw, options, tokenizer, nullptr),
      max_length(options.max_length) {
  std::string text = file.Read(0, file.size());
  file.CheckUtf8(0, text);
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  tokens = encoder.EncodeRaw(text);
  if (tokens.empty()) ThrowInvalidInput("{}: the data file is empty", name);
  for (std::int64_t w = 0; w < size(); ++w) {
    const Sample sample = Window(w);
    const std::int64_t length = std::ssize(sample.ids);
    if (CountSupervised(sample) == 0) {
      counts.dropped_tail += length;
    } else {
      AddSample(sample, w, length);
    }
  }
  samples.Finish();
}

Dataset::Source::Source(RecordFile file, RecordFormat format, const DataOptions& options,
                        const Tokenizer& tokenizer, const ChatRenderer* chat, Context* context)
    : name(file.file().name()),
      records(std::move(file)),
      encoder(format, options, tokenizer, chat),
      max_length(options.max_length) {
  const std::string file_name = std::filesystem::path(name).filename().string();
  const IndexPlace place =
      options.index_folder.empty()
          ? IndexPlace()
          : IndexPlace::In(options.index_folder, file_name, records->key() + encoder.key() + "\n");
  if (auto found = IndexArray<Entry>::Find(place)) {
    samples = std::move(*found);
    AddCounts(OrderedJson::parse(samples.text()), counts);
    return;
  }
  samples = IndexArray<Entry>(place);
  AddRecords(options.over_long, context);
  samples.Finish(CountsToJson(counts).dump());
}

std::int64_t Dataset::Source::size() const {
  if (records) return records->size();
  const std::int64_t width = encoder.window_tokens();
  return (std::ssize(tokens) + width - 1) / width;
}

Sample Dataset::Source::Window(std::int64_t i) const {
  const auto width = static_cast<std::size_t>(encoder.window_tokens());
  const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(i) * width);
  return encoder.Window(rest.first(std::min(width, rest.size())));
}

EncodedRecord Dataset::Source::Encode(std::int64_t i) const {
  const OrderedJson record = records->Read(i);
  try {
    return encoder.Encode(record);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", Where(i), error.what()));
  }
}

std::string Dataset::Source::Where(std::int64_t i) const {
  return records ? records->Where(i) : fmt::format("{}: window {}", name, i + 1);
}

void Dataset::Source::AddRecords(OverLong over_long, Context* context) {
  struct Scan {
    std::exception_ptr error;
    EncodedRecord encoded;
  };
  std::vector<Scan> scans;
  for (std::int64_t begin = 0; begin < size(); begin += kBlock) {
    const std::int64_t count = std::min(kBlock, size() - begin);
    scans.assign(count, {});
    ForEach(context, count, [&](std::int64_t i) {
      Scan& scan = scans[i];
      try {
        scan.encoded = Encode(begin + i);
      } catch (...) {
        scan.error = std::current_exception();
      }
    });
    for (std::int64_t i = 0; i < count; ++i) {
      Scan& scan = scans[i];
      if (scan.error) std::rethrow_exception(scan.error);
      AddRecord(begin + i, over_long, scan.encoded);
    }
  }
}

void Dataset::Source::AddRecord(std::int64_t i, OverLong over_long, EncodedRecord& encoded) {
  Sample& sample = encoded.sample;
  const std::int64_t length = std::ssize(sample.ids);
  counts.longest_record = std::max(counts.longest_record, length);
  if (length > max_length) {
    if (over_long == OverLong::kError) {
      ThrowInvalidInput("{}: the sample has {} tokens and max_length is {}", Where(i), length,
                        max_length);
    }
    if (over_long == OverLong::kDrop) {
      ++counts.dropped_long;
      return;
    }
    Cut(sample, max_length);
    if (CountSupervised(sample) == 0) {
      ++counts.dropped_masked;
      return;
    }
    ++counts.truncated;
    counts.truncated_tokens += length - max_length;
  }
  const SampleNotes& notes = encoded.notes;
  counts.split_boundaries += notes.split_boundary;
  counts.empty_completions += notes.empty_completion;
  counts.without_eos += notes.without_eos;
  counts.unlisted_stops += notes.unlisted_stop;
  counts.without_bos += notes.without_bos;
  counts.foreign_labels += notes.foreign_labels;
  AddSample(sample, i, length);
}

void Dataset::Source::AddSample(const Sample& sample, std::int64_t record,
                                std::int64_t uncut_length) {
  counts.longest_record = std::max(counts.longest_record, uncut_length);
  samples.Add({.hash = HashSample(sample),
               .record = static_cast<std::uint32_t>(record),
               .length = static_cast<std::int32_t>(sample.ids.size()),
               .supervised = static_cast<std::int32_t>(CountSupervised(sample)),
               .uncut_length = static_cast<std::int32_t>(uncut_length)});
}

Dataset Dataset::Open(const DataOptions& options, const Tokenizer& tokenizer,
                      const ChatRenderer* chat, Context* context) {
  if (options.sources.empty()) ThrowInvalidInput("no data file was named");
  if (options.max_length < 2 || options.max_length > std::numeric_limits<std::int32_t>::max()) {
    ThrowInvalidInput("max_length: expected 2 or more tokens, found {}", options.max_length);
  }
  Dataset dataset;
  dataset.report_.max_length = options.max_length;
  for (const DataSource& source : options.sources) {
    const FileBytes file(source.path);
    const bool is_raw =
        source.format == RecordFormat::kRaw ||
        (source.format == RecordFormat::kAuto && DetectContainer(file) == Container::kPlainText);
    try {
      if (is_raw) {
        dataset.Add(std::make_shared<const Source>(file, options, tokenizer), source.weight);
      } else {
        RecordFile records(file, options.index_folder);
        const RecordFormat format = source.format == RecordFormat::kAuto
                                     ? DetectRecordFormat(records.Read(0), options)
                                     : source.format;
        dataset.Add(std::make_shared<const Source>(std::move(records), format, options, tokenizer,
                                                   chat, context),
                    source.weight);
      }
    } catch (const Error& error) {
      if (std::string_view(error.what()).starts_with(file.name())) throw;
      throw Error(error.code(), fmt::format("{}: {}", file.name(), error.what()));
    }
  }
  const DataReport& report = dataset.report_;
  if (dataset.size() == 0) {
    ThrowInvalidInput(
        "no sample is left: {} records are longer than max_length {} (the longest has {} tokens), "
        "{} keep no trained token when cut; raise max_length",
        report.dropped_long, options.max_length, report.longest_record, report.dropped_masked);
  }
  dataset.Summarize();
  return dataset;
}

void Dataset::Add(std::shared_ptr<const Source> source, double weight) {
  const Container container =
      source->records ? source->records->container() : Container::kPlainText;
  report_.files.push_back({.path = source->name,
                           .container = std::string(ContainerName(container)),
                           .format = std::string(RecordFormatName(source->encoder.format())),
                           .weight = weight,
                           .records = source->size(),
                           .samples = std::ssize(source->samples.values())});
  AddCounts(CountsToJson(source->counts), report_);
  first_.push_back(first_.back() + std::ssize(source->samples.values()));
  sources_.push_back(std::move(source));
}

std::int64_t Dataset::size() const { return subset_ ? std::ssize(*subset_) : first_.back(); }

Dataset::Place Dataset::At(std::int64_t i) const {
  const std::int64_t n = subset_ ? (*subset_)[i] : i;
  const auto after = std::upper_bound(first_.begin(), first_.end(), n);
  const auto s = static_cast<std::size_t>(after - first_.begin() - 1);
  return {s, sources_[s]->samples.values()[n - first_[s]]};
}

void Dataset::Summarize() {
  std::vector<std::int32_t> lengths;
  std::vector<std::uint64_t> hashes;
  lengths.reserve(size());
  hashes.reserve(size());
  report_.samples = size();
  report_.tokens = report_.supervised = 0;
  for (FileReport& file : report_.files) file.samples = 0;
  for (std::int64_t i = 0; i < size(); ++i) {
    const auto [source, entry] = At(i);
    report_.tokens += entry.length;
    report_.supervised += entry.supervised;
    ++report_.files[source].samples;
    lengths.push_back(entry.length);
    hashes.push_back(entry.hash);
  }
  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  report_.shortest = lengths.empty() ? 0 : *shortest;
  report_.longest = lengths.empty() ? 0 : *longest;
  CountLengths(lengths, kHistogramBuckets, report_);
  std::sort(hashes.begin(), hashes.end());
  report_.duplicates = hashes.end() - std::unique(hashes.begin(), hashes.end());
}

Sample Dataset::Get(std::int64_t i) const {
  const auto [s, entry] = At(i);
  const Source& source = *sources_[s];
  if (!source.records) return source.Window(entry.record);
  Sample sample = source.Encode(entry.record).sample;
  if (std::ssize(sample.ids) > source.max_length) Cut(sample, source.max_length);
  if (HashSample(sample) != entry.hash) {
    ThrowInvalidInput(
        "{}: the sample is not the one that was checked; the index belongs to other data: remove "
        "the folder of the index and start again",
        source.Where(entry.record));
  }
  return sample;
}

std::int32_t Dataset::length(std::int64_t i) const { return At(i).entry.length; }

std::string Dataset::Where(std::int64_t i) const {
  const auto [source, entry] = At(i);
  return sources_[source]->Where(entry.record);
}

std::vector<OrderPart> Dataset::parts() const {
  std::vector<OrderPart> parts;
  for (const FileReport& file : report_.files) parts.push_back({file.samples, file.weight});
  return parts;
}

std::uint64_t Dataset::fingerprint() const {
  std::uint64_t hash = MixBits(static_cast<std::uint64_t>(size()));
  for (std::int64_t i = 0; i < size(); ++i) hash = MixBits(hash ^ At(i).entry.hash);
  return hash;
}

Dataset Dataset::Subset(std::span<const std::uint32_t> indices) const {
  QLORA_DCHECK(std::is_sorted(indices.begin(), indices.end()));
  Dataset subset = *this;
  subset.subset_.emplace(indices.begin(), indices.end());
  if (subset_) {
    for (std::uint32_t& index : *subset.subset_) index = (*subset_)[index];
  }
  subset.Summarize();
  return subset;
}

std::int64_t Dataset::CountShared(const Dataset& other) const {
  std::unordered_set<std::uint64_t> hashes;
  for (std::int64_t i = 0; i < other.size(); ++i) hashes.insert(other.At(i).entry.hash);
  std::int64_t shared = 0;
  for (std::int64_t i = 0; i < size(); ++i) shared += hashes.contains(At(i).entry.hash);
  return shared;
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
