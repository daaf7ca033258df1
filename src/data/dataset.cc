#include "data/dataset.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

constexpr std::int64_t kHistogramBuckets = 16;  // lines of the report

// Returns 0 for a file that opening will refuse.
std::int64_t SizeOf(const DataSource& source) {
  struct stat status = {};
  const int found = source.descriptor < 0 ? stat(source.path.c_str(), &status)
                                          : fstat(source.descriptor, &status);
  return found == 0 && S_ISREG(status.st_mode) ? std::int64_t{status.st_size} : 0;
}

}  // namespace

Dataset Dataset::Open(const DataOptions& options, const Tokenizer& tokenizer,
                      const ChatTemplate* chat, Context* context, const ProgressFn& progress) {
  if (options.sources.empty()) ThrowInvalidInput("no data file was named");
  // A single token predicts nothing. Lengths of entries are 32 bits.
  if (options.max_length < 2 || options.max_length > std::numeric_limits<std::int32_t>::max()) {
    ThrowInvalidInput("max_length: expected 2 or more tokens, found {}", options.max_length);
  }
  Dataset dataset;
  dataset.report_.max_length = options.max_length;
  dataset.report_.notes = options.notes;
  dataset.report_.named_held_out = options.named_held_out;
  const std::int64_t total = std::accumulate(
      options.sources.begin(), options.sources.end(), std::int64_t{0},
      [](std::int64_t sum, const DataSource& source) { return sum + SizeOf(source); });
  std::int64_t before = 0;
  // One file after the other: a file is read from end to end, on all threads.
  for (const DataSource& source : options.sources) {
    const std::int64_t size = SizeOf(source);
    const auto report = [&](double share) {
      const double done = share * static_cast<double>(size);
      if (progress) progress(before + static_cast<std::int64_t>(done), total);
    };
    dataset.Add(SampleIndex::Open(source, options, tokenizer, chat, context, report),
                source.weight);
    before += size;
  }
  if (progress) progress(total, total);
  if (dataset.size() == 0) dataset.ThrowEmpty(options.max_length_is_context());
  dataset.CheckAsked(options.decision);
  dataset.Summarize();
  return dataset;
}

void Dataset::CheckAsked(const DecisionOptions& options) const {
  std::set<DecisionForm> forms;
  for (const auto& source : sources_) {
    if (source->layout().kind != PromptLayout::Kind::kDecision) continue;
    for (const SampleEntry& entry : source->entries()) {
      // The first record mostly reads them all.
      if (!FindIdle(options.given, forms)) return;
      const auto form = DetectDecisionForm(*source->ReadRecord(entry), options.fields);
      if (form) forms.insert(*form);
    }
  }
  CheckRead(options.given, forms, report_.files.front().path);
}

void Dataset::Add(std::shared_ptr<const SampleIndex> source, double weight) {
  const std::int64_t samples = std::ssize(source->entries());
  report_.files.push_back({.path = source->name(),
                           .container = std::string(FileFormatName(source->file_format())),
                           .format = std::string(RecordFormatName(source->layout().format)),
                           .fields = source->fields(),
                           .weight = weight,
                           .records = source->records(),
                           .found = source->found(),
                           .samples = samples});
  AddCounts(source->counts(), report_);
  // first_ = [0, n0, n0 + n1, ...]: At() finds the file of a sample by bisection.
  first_.push_back(first_.back() + samples);
  sources_.push_back(std::move(source));
}

// Names for each reason the number of samples that it took, and gives a hint for the reason that no
// option mends.
void Dataset::ThrowEmpty(bool max_length_is_context) const {
  std::string reasons;
  const auto add = [&reasons](std::int64_t count, const std::string& reason) {
    if (count > 0) reasons += fmt::format("{}{} {}", reasons.empty() ? "" : "; ", count, reason);
  };
  add(report_.dropped_long,
      max_length_is_context
          ? fmt::format("are longer than the context of the model, {} tokens (the longest has {} "
                        "tokens): cut them with over_long truncate, or set a larger max_length, "
                        "beyond which models were not trained",
                        report_.max_length, report_.longest_record)
          : fmt::format("are longer than max_length {} (the longest has {} tokens): raise "
                        "max_length, or cut them with over_long truncate",
                        report_.max_length, report_.longest_record));
  if (report_.dropped_bad > 0) {
    add(report_.dropped_bad,
        fmt::format("cannot be read, the first: {}", report_.bad_reasons.front()));
  }
  add(report_.dropped_identical, "are pairs of two equal answers");
  add(report_.dropped_equal_cut,
      "are pairs of answers that are equal when cut to max_length: raise max_length");
  add(report_.dropped_masked, "keep no trained token when cut to max_length: raise max_length");
  if (report_.dropped_untrained > 0) {
    const std::string& first = report_.first_places.at("dropped_untrained");
    add(report_.dropped_untrained,
        AsksQuestions(report_)
            ? fmt::format("have no answer to a question of question_types, the first at {} (null "
                          "and the label -1 say that nobody knows)",
                          first)
            : fmt::format("have no token that is trained on, the first at {} (all tokens are "
                          "masked, or none comes before them)",
                          first));
    for (const std::string& finding : WarnOfFindings(report_)) reasons += "; " + finding;
    for (const DataFinding& one : report_.not_read) {
      reasons += fmt::format("; the field '{}' is not read", Printable(one.what));
    }
  }
  add(report_.dropped_tail, "tokens of text are too few to train on");
  ThrowInvalidInput("{}: no sample is left of {}: {}", report_.files.front().path,
                    DescribeFound(report_.files), reasons);
}

std::int64_t Dataset::size() const { return subset_ ? std::ssize(*subset_) : first_.back(); }

//   sample i  ->  subset_[i]  ->  file s with first_[s] <= n < first_[s + 1]  ->  entry n -
//   first_[s]
Dataset::Place Dataset::At(std::int64_t i) const {
  const std::int64_t n = subset_ ? (*subset_)[i] : i;
  const auto after = std::upper_bound(first_.begin(), first_.end(), n);
  const std::int64_t source = after - first_.begin() - 1;
  return {source, sources_[source]->entries()[n - first_[source]]};
}

// Counts the samples that are in the set, which may be a subset. The counts of opening stay.
void Dataset::Summarize() {
  std::vector<std::int32_t> lengths;
  std::vector<std::uint64_t> hashes;
  lengths.reserve(size());
  hashes.reserve(size());
  report_.samples = size();
  report_.tokens = report_.supervised = 0;
  report_.longest = 0;
  report_.unfolding = 1;
  for (FileReport& file : report_.files) file.samples = 0;
  for (std::int64_t i = 0; i < size(); ++i) {
    const auto [source, entry] = At(i);
    report_.tokens += entry.length;
    report_.supervised += entry.supervised;
    ++report_.files[source].samples;
    lengths.push_back(entry.length);
    hashes.push_back(entry.hash);
    report_.longest = std::max(report_.longest, entry.longest);
    report_.unfolding = std::max(
        report_.unfolding, static_cast<double>(entry.unfolded) / static_cast<double>(entry.length));
  }
  // Equal hashes count as equal samples: among 10^6 that differ, two collide with probability 3e-8.
  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  report_.shortest = lengths.empty() ? 0 : *shortest;
  report_.largest = lengths.empty() ? 0 : *longest;
  CountLengths(lengths, kHistogramBuckets, report_);
  // Sorting 8 bytes a sample takes a fraction of the memory of a hash set.
  std::sort(hashes.begin(), hashes.end());
  std::vector<std::uint64_t> repeated;
  report_.duplicates = 0;
  for (std::size_t i = 1; i < hashes.size(); ++i) {
    if (hashes[i] != hashes[i - 1]) continue;
    ++report_.duplicates;
    if (repeated.empty() || repeated.back() != hashes[i]) repeated.push_back(hashes[i]);
  }
  report_.first_places.erase("duplicates");
  if (!repeated.empty()) report_.first_places["duplicates"] = Where(FirstDuplicate(repeated));
}

std::int64_t Dataset::FirstDuplicate(std::span<const std::uint64_t> repeated) const {
  std::vector<bool> seen(repeated.size());
  for (std::int64_t i = 0;; ++i) {
    const std::uint64_t hash = At(i).entry.hash;
    const auto place = std::ranges::lower_bound(repeated, hash) - repeated.begin();
    if (place == std::ssize(repeated) || repeated[place] != hash) continue;
    if (seen[place]) return i;
    seen[place] = true;
  }
}

Sample Dataset::Get(std::int64_t i, std::int64_t visit) const {
  const auto [source, entry] = At(i);
  return sources_[source]->Read(entry, is_held_out_ ? kNoVisit : visit);
}

std::optional<OrderedJson> Dataset::ReadRecord(std::int64_t i) const {
  const auto [source, entry] = At(i);
  return sources_[source]->ReadRecord(entry);
}

std::string Dataset::StateOf(std::int64_t i) const {
  const auto [source, entry] = At(i);
  return sources_[source]->StateOf(entry);
}

std::int64_t Dataset::RecordOf(std::int64_t i) const {
  const auto [source, entry] = At(i);
  std::int64_t before = 0;
  for (std::int64_t f = 0; f < source; ++f) before += sources_[f]->records();
  return before + entry.record;
}

const PromptLayout& Dataset::LayoutOf(std::int64_t i) const {
  return sources_[At(i).source]->layout();
}

// Files are compared by the samples that are in the set, which may be a subset.
const PromptLayout& Dataset::layout() const {
  std::int64_t most = 0;
  for (std::int64_t f = 1; f < std::ssize(report_.files); ++f) {
    if (report_.files[f].samples > report_.files[most].samples) most = f;
  }
  return sources_[most]->layout();
}

bool Dataset::has_one_layout() const {
  const PromptLayout& first = layout();
  return std::all_of(sources_.begin(), sources_.end(),
                     [&](const auto& source) { return HaveSameTexts(source->layout(), first); });
}

std::string Dataset::Where(std::int64_t i) const {
  const auto [source, entry] = At(i);
  return sources_[source]->Where(entry.record);
}

std::vector<OrderPart> Dataset::parts() const {
  std::vector<OrderPart> parts;
  for (const FileReport& file : report_.files) {
    parts.push_back({file.samples, file.weight, file.path});
  }
  return parts;
}

// The order counts, so the hashes are chained, not added up.
std::uint64_t Dataset::fingerprint() const {
  std::uint64_t hash = MixBits(static_cast<std::uint64_t>(size()));
  for (std::int64_t i = 0; i < size(); ++i) hash = MixBits(hash ^ At(i).entry.hash);
  return hash;
}

Dataset Dataset::HeldOut() const {
  Dataset held_out = *this;
  held_out.is_held_out_ = true;
  return held_out;
}

// Knows of no other file: a data set has as many parts as files.
Dataset Dataset::OfFile(std::int64_t f) const {
  Dataset part;
  part.sources_ = {sources_[f]};
  part.first_ = {0, first_[f + 1] - first_[f]};
  part.is_held_out_ = is_held_out_;
  if (subset_) {
    const auto begin = std::lower_bound(subset_->begin(), subset_->end(), first_[f]);
    const auto end = std::lower_bound(begin, subset_->end(), first_[f + 1]);
    part.subset_.emplace(begin, end);
    for (std::uint32_t& index : *part.subset_) index -= static_cast<std::uint32_t>(first_[f]);
  }
  part.report_.max_length = report_.max_length;
  part.report_.files = {report_.files[f]};
  part.Summarize();
  return part;
}

Dataset Dataset::Subset(std::span<const std::uint32_t> indices) const {
  QLORA_DCHECK(std::is_sorted(indices.begin(), indices.end()));
  Dataset subset = *this;
  subset.subset_.emplace(indices.begin(), indices.end());
  if (subset_) {  // a subset of a subset: numbers count through all files
    // Flattened at once, so that At() follows one list however often subsets were taken.
    for (std::uint32_t& index : *subset.subset_) index = (*subset_)[index];
  }
  subset.Summarize();
  return subset;
}

std::vector<std::uint32_t> Dataset::FirstsOfRecords() const {
  std::vector<std::uint32_t> firsts;
  std::optional<std::pair<std::int64_t, std::uint32_t>> last;  // the file and the record
  for (std::int64_t i = 0; i < size(); ++i) {
    const auto [source, entry] = At(i);
    const std::pair place = {source, entry.record};
    if (last != place) firsts.push_back(static_cast<std::uint32_t>(i));
    last = place;
  }
  return firsts;
}

std::int64_t Dataset::CountShared(const Dataset& other) const {
  std::unordered_set<std::uint64_t> hashes;
  for (std::int64_t i = 0; i < other.size(); ++i) hashes.insert(other.At(i).entry.text);
  std::int64_t shared = 0;
  for (std::int64_t i = 0; i < size(); ++i) shared += hashes.contains(At(i).entry.text);
  return shared;
}

}  // namespace qlora
