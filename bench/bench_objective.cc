#include "bench/bench_objective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "objective/decision.h"
#include "objective/preference.h"
#include "objective/supervised.h"

namespace qlora::bench {
namespace {

constexpr std::int64_t kQuestions = 3;
constexpr std::int32_t kOptions = 4;

// The prompt, then both answers, which begin with the last token of the prompt.
void MakePair(Sample& sample) {
  const std::int64_t length = std::ssize(sample.ids);
  const std::int64_t prompt = length / 2;
  sample.branches = {prompt, prompt + (length - prompt) / 2};
  std::fill_n(sample.labels.begin(), prompt, kIgnoreLabel);
  for (const std::int64_t begin : sample.branches) {
    sample.ids[begin] = sample.ids[prompt - 1];
    sample.labels[begin] = kIgnoreLabel;
  }
}

// The state, then the questions, whose last token is followed by a letter.
void MakeQuestions(Sample& sample) {
  const std::int64_t length = std::ssize(sample.ids);
  const std::int64_t question = length / 2 / kQuestions;
  const std::int64_t state = length - kQuestions * question;
  std::ranges::fill(sample.labels, kIgnoreLabel);
  for (std::int64_t q = 0; q < kQuestions; ++q) {
    const std::int64_t begin = state + q * question;
    sample.branches.push_back(begin);
    Choice choice;
    choice.row = begin + question - 1;
    for (std::int32_t option = 0; option < kOptions; ++option) {
      choice.labels.push_back(option);
      choice.targets.push_back(option == 0 ? 1 : 0);
    }
    sample.choices.push_back(std::move(choice));
  }
}

// Writes each branch behind a prefix of its own.
void Separate(Sample& sample) {
  const Sample shared = std::exchange(sample, {});
  const std::int64_t prefix = shared.branches.front();
  for (std::size_t b = 0; b < shared.branches.size(); ++b) {
    const std::int64_t begin = shared.branches[b];
    const std::int64_t end =
        b + 1 < shared.branches.size() ? shared.branches[b + 1] : std::ssize(shared.ids);
    const std::int64_t moved = std::ssize(sample.ids) + prefix - begin;
    sample.branches.push_back(std::ssize(sample.ids));
    for (const auto member : {&Sample::ids, &Sample::labels}) {
      const std::vector<std::int32_t>& from = shared.*member;
      std::vector<std::int32_t>& to = sample.*member;
      to.insert(to.end(), from.begin(), from.begin() + prefix);
      to.insert(to.end(), from.begin() + begin, from.begin() + end);
    }
    for (const Choice& choice : shared.choices) {
      if (choice.row < begin || choice.row >= end) continue;
      sample.choices.push_back(choice);
      sample.choices.back().row += moved;
    }
  }
}

}  // namespace

std::vector<std::string> ObjectiveNames() { return {"supervised", "preference", "decision"}; }

BenchObjective BenchObjectiveOf(const std::string& name, const DecoderConfig& config,
                                std::int64_t samples, std::int64_t length, bool share_prefix) {
  const std::vector<std::string> names = ObjectiveNames();
  if (std::ranges::find(names, name) == names.end()) {
    ThrowInvalidInput("objectives: expected some of {}, found '{}'", fmt::join(names, ", "), name);
  }
  constexpr std::int64_t kShortest = 12;
  if (name != "supervised" && (length < kShortest || config.vocab_size < kOptions)) {
    ThrowInvalidInput(
        "objectives: {} needs max_length of at least {} and a vocabulary of at least {}", name,
        kShortest, kOptions);
  }
  std::vector<Sample> all(samples);
  std::uint64_t draw = 0;
  for (Sample& sample : all) {
    for (std::int64_t t = 0; t < length; ++t) {
      sample.ids.push_back(static_cast<std::int32_t>(RandomBelow(
          MakeKey(3, RandomPlace::kTest), draw++, static_cast<std::uint64_t>(config.vocab_size))));
    }
    sample.labels = sample.ids;
    if (name == "preference") MakePair(sample);
    if (name == "decision") MakeQuestions(sample);
    if (!share_prefix && !sample.branches.empty()) Separate(sample);
  }
  BenchObjective made{.name = name, .objective = nullptr, .batch = MakeBatch(all), .totals = {}};
  made.totals = {
      .supervised = made.batch.supervised(), .rows = made.batch.rows(), .samples = samples};
  for (const Sample& sample : all) made.totals.chosen += CountOfFirst(sample);
  if (name == "supervised") made.objective = std::make_shared<Supervised>();
  if (name == "decision") made.objective = std::make_shared<DecisionObjective>();
  if (name == "preference") {
    made.objective = std::make_shared<PreferenceObjective>(PreferenceLossOptions());
    made.batch.reference.resize(made.batch.sequences());
  }
  return made;
}

std::int64_t MeanLength(const Batch& batch) {
  double keys = 0;
  for (const std::int32_t position : batch.positions) keys += 2.0 * position + 1;
  return std::llround(keys / static_cast<double>(batch.rows()));
}

}  // namespace qlora::bench
