#include "data/training_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "data/epoch_order.h"
#include "decision/decision_wire.h"

namespace qlora {
namespace {

// The shuffle of no epoch has these keys.
constexpr std::uint64_t kSplitDetail = (std::uint64_t{1} << 48) - 1;
constexpr std::uint64_t kCalibrationDetail = kSplitDetail - 1;

// The numbers of records that are held out together, in the order of the files. The turns of one
// conversation, where each is a sample, are one record: a turn that is held out begins with the
// text of those before it. Questions about one state would tell of each other.
std::vector<std::vector<std::uint32_t>> HeldTogether(const Dataset& dataset,
                                                     const std::vector<std::uint32_t>& firsts) {
  std::vector<std::vector<std::uint32_t>> groups;
  std::unordered_map<std::string, std::size_t> places;  // of states
  for (std::uint32_t r = 0; r < firsts.size(); ++r) {
    const std::string state = dataset.StateOf(firsts[r]);
    if (state.empty()) {
      groups.push_back({r});
      continue;
    }
    const auto [place, is_new] = places.emplace(state, groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(r);
  }
  return groups;
}

}  // namespace

TrainingData SplitDataset(const Dataset& dataset, double size, std::uint64_t seed, SplitUse use) {
  const std::vector<std::uint32_t> firsts = dataset.FirstsOfRecords();
  const std::int64_t records = std::ssize(firsts);
  const auto all = static_cast<double>(records);
  // At least one record: otherwise a small fraction of a small set would silently hold nothing out.
  const double wanted = size >= 1 ? size : std::max(1.0, std::round(size * all));
  if (!(size > 0) || wanted != std::floor(wanted) || wanted >= all) {
    ThrowInvalidInput(
        "{}: expected a fraction below 1 or a number of records below {}, the size of the data "
        "set, found {}",
        use == SplitUse::kEvaluation ? "val_set_size" : "calibration_size", records, size);
  }
  const std::vector<std::vector<std::uint32_t>> groups = HeldTogether(dataset, firsts);
  const std::uint64_t detail = use == SplitUse::kEvaluation ? kSplitDetail : kCalibrationDetail;
  std::vector<bool> is_held_out(static_cast<std::size_t>(records));
  std::int64_t held_out = 0;
  for (const std::uint32_t g :
       Permutation(std::ssize(groups), MakeKey(seed, RandomPlace::kShuffle, detail))) {
    if (held_out >= static_cast<std::int64_t>(wanted)) break;
    for (const std::uint32_t record : groups[g]) is_held_out[record] = true;
    held_out += std::ssize(groups[g]);
  }
  if (held_out >= records) {
    ThrowInvalidInput(
        "{}: records about one state stay together, and all records would be held out; give "
        "another size or seed, records about other states, or a file of its own as {}",
        use == SplitUse::kEvaluation ? "val_set_size" : "calibration_size",
        use == SplitUse::kEvaluation ? "eval_dataset" : "calibration_dataset");
  }
  // Both parts in the order of the files: reading goes forward through each file, and shuffling is
  // the business of the epochs.
  const auto samples_of = [&](bool of_held_out) {
    std::vector<std::uint32_t> samples;
    for (std::int64_t r = 0; r < records; ++r) {
      if (is_held_out[r] != of_held_out) continue;
      const std::int64_t behind = r + 1 < records ? firsts[r + 1] : dataset.size();
      for (std::int64_t i = firsts[r]; i < behind; ++i) {
        samples.push_back(static_cast<std::uint32_t>(i));
      }
    }
    return samples;
  };
  return {.train = dataset.Subset(samples_of(false)),
          .held_out = dataset.Subset(samples_of(true)).HeldOut()};
}

namespace {

// What is held out is a part of the records that are trained on, and asks with all options: more
// tokens than were counted, or more options than there are labels.
void CheckHeldOutOptions(const DataFields& fields) {
  if (fields.reading.decision.max_options == kMaxOptions) return;
  if (fields.val_set_size == 0 && fields.calibration_size == 0) return;
  ThrowInvalidInput(
      "max_options: records that {} holds out are asked with all options; hold out files of their "
      "own by eval_dataset or calibration_dataset, or leave max_options out",
      fields.val_set_size > 0 ? "val_set_size" : "calibration_size");
}

void CheckCalibration(const DataFields& fields, const Dataset& train) {
  if (fields.calibration_dataset.empty() && fields.calibration_size == 0) return;
  const bool decides = train.layout().kind == PromptLayout::Kind::kDecision;
  if (!decides) {
    ThrowInvalidInput(
        "calibration_dataset and calibration_size are of decisions, and the records ask no "
        "questions; leave them out");
  }
  if (!fields.calibration_dataset.empty() && fields.calibration_size > 0) {
    ThrowInvalidInput("calibration_dataset and calibration_size are both given; keep one");
  }
  for (const std::string& name : fields.calibration_dataset) {
    const DataSource source = ParseDataSource(name);
    CheckUnweighted({source}, "calibration_dataset");
    for (const FileReport& file : train.report().files) {
      std::error_code ignored;
      if (!std::filesystem::equivalent(source.path, file.path, ignored)) continue;
      ThrowInvalidInput(
          "calibration_dataset: {} is trained on; temperatures need questions that the model has "
          "not learned the answers of",
          name);
    }
  }
}

}  // namespace

// Both data sets are read with the same options, so that a loss means the same on both.
TrainingData OpenTrainingData(const DataFields& fields, const DataLimits& limits,
                              std::uint64_t seed, const Tokenizer& tokenizer,
                              const ChatTemplate* chat, Context* context,
                              const std::optional<PromptLayout>& recorded,
                              const ProgressFn& progress) {
  if (!fields.eval_dataset.empty() && fields.val_set_size > 0) {
    ThrowInvalidInput(
        "eval_dataset and val_set_size are both given; keep one: files to evaluate, or a part of "
        "dataset to hold out");
  }
  CheckHeldOutOptions(fields);
  const DataFields all = WithFoundEvaluation(fields);
  const auto open = [&](DataPurpose purpose) {
    DataOptions options = ToDataOptions(all, purpose, limits, recorded);
    options.decision.seed = seed;
    return Dataset::Open(options, tokenizer, chat, context, progress);
  };
  // The split draws among the samples that were kept, so that its size is exact.
  TrainingData data{open(DataPurpose::kTraining), std::nullopt};
  CheckCalibration(fields, data.train);
  if (!all.eval_dataset.empty()) {
    for (const std::string& path : all.eval_dataset) {
      CheckUnweighted({ParseDataSource(path)}, "eval_dataset");
    }
    data.held_out = open(DataPurpose::kEvaluation);
  } else if (fields.val_set_size > 0) {
    data = SplitDataset(data.train, fields.val_set_size, seed);
  }
  if (fields.calibration_size > 0) {
    TrainingData parts =
        SplitDataset(data.train, fields.calibration_size, seed, SplitUse::kCalibration);
    data.train = std::move(parts.train);
    data.calibration = std::move(parts.held_out);
  } else if (!fields.calibration_dataset.empty()) {
    DataFields calibration = all;
    calibration.eval_dataset = fields.calibration_dataset;
    DataOptions options = ToDataOptions(calibration, DataPurpose::kEvaluation, limits, recorded);
    data.calibration = Dataset::Open(options, tokenizer, chat, context, progress);
  }
  return data;
}

}  // namespace qlora
