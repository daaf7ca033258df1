#include "log/log_reader.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "io/json.h"
#include "log/log_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxLineBytes = std::size_t{1} << 24;

// Calls take with each line, of which the last is not whole if the run is just writing it. A file
// that is missing has no lines. Errors: InvalidInput for anything that is no log: the folder may be
// a stranger's, and a link in it may lead to a pipe or a device.
void ForEachLogLine(const fs::path& path,
                    const std::function<void(std::string_view line, bool whole)>& take) {
  if (!Exists(path)) return;
  std::int64_t bytes = 0;
  ForEachLine(path, 0, kMaxLineBytes, [&](std::string_view line, bool whole) {
    bytes += std::ssize(line) + whole;
    if (line.size() + whole > kMaxLineBytes || bytes > kMaxLogBytes) {
      ThrowInvalidInput("{}: expected the log of a training run, found {}", path.string(),
                        bytes > kMaxLogBytes
                            ? fmt::format("more than {} bytes", kMaxLogBytes)
                            : fmt::format("a line of more than {} bytes", kMaxLineBytes));
    }
    take(line, whole);
  });
}

// Calls `take` with each line that is a JSON object and its number. Returns the number of damaged
// lines, without the last one, which may be incomplete while the run is still training.
std::int64_t ForEachObject(const fs::path& path,
                           const std::function<void(std::int64_t number, const Json& line)>& take) {
  std::int64_t number = 0;
  std::int64_t damaged = 0;
  ForEachLogLine(path, [&](std::string_view text, bool whole) {
    Json line;
    if (!TryParseJson(text, line) && line.is_object()) {
      take(number, line);
    } else {
      damaged += whole;
    }
    ++number;
  });
  return damaged;
}

// Counts the whole lines.
std::int64_t CountLines(const fs::path& path) {
  std::int64_t lines = 0;
  ForEachLogLine(path, [&](std::string_view, bool whole) { lines += whole; });
  return lines;
}

// The smallest n with which every n-th of `count` stays within the limit.
std::int64_t EveryOf(std::int64_t count, std::int64_t limit) {
  return std::max<std::int64_t>(1, (count + limit - 1) / limit);
}

// Appends the values of one line to the columns of their names. Arrays are no columns: those of
// many ranks would fill the page.
void AddToColumns(const Json& line, Json& columns) {
  for (const auto& [key, value] : line.items()) {
    if (!value.is_array()) columns[key].push_back(value);
  }
}

// The number of that name in an object; 0 where there is none.
double NumberIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_number() ? 0 : found->get<double>();
}

// The ranks of a step; empty for those of one process.
Json RanksOf(const Json& line) {
  const auto ranks = line.find("ranks");
  return ranks == line.end() || !ranks->is_array() ? Json::array() : *ranks;
}

// Means over those of `steps` that have as many ranks as the last: a resumed run may have others
// than before.
Json MeansOfRanks(const std::vector<Json>& steps) {
  Json means = Json::array();
  if (steps.empty()) return means;
  for (std::size_t rank = 0; rank < steps.back().size(); ++rank) {
    Json mean = Json::object();
    for (const char* name : {"computing", "waiting", "memory"}) {
      double sum = 0;
      std::int64_t count = 0;
      for (const Json& ranks : steps) {
        if (ranks.size() != steps.back().size()) continue;
        sum += NumberIn(ranks[rank], name);
        ++count;
      }
      mean[name] = sum / static_cast<double>(count);
    }
    means.push_back(std::move(mean));
  }
  return means;
}

// The tokens of a step; 0 for a number that no step has, because a sum of such numbers could
// overflow.
std::int64_t TokensOf(const Json& line) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const auto found = line.find("tokens");
  if (found == line.end() || !found->is_number_integer()) return 0;
  const auto tokens = found->get<std::int64_t>();
  return tokens >= 0 && tokens <= kMost ? tokens : 0;
}

// Counts the rounds of samples: lines of one step that follow each other.
class RoundCounter {
 public:
  // Returns the number of the round of the next line, from 0.
  std::int64_t Next(const Json& line) {
    const auto step = line.find("step");
    const Json now = step == line.end() ? Json() : *step;
    const bool is_new = round_ < 0 || now != step_;
    round_ += is_new;
    in_round_ = is_new ? 0 : in_round_ + 1;
    step_ = now;
    return round_;
  }
  // The place of that line in its round.
  std::int64_t in_round() const { return in_round_; }
  std::int64_t rounds() const { return round_ + 1; }

 private:
  Json step_;
  std::int64_t round_ = -1;
  std::int64_t in_round_ = 0;
};

// The number of the first line with the smallest loss; -1 where none has a loss.
std::int64_t FindBestEvaluation(const fs::path& log) {
  std::int64_t best = -1;
  double best_loss = 0;
  ForEachObject(log, [&](std::int64_t number, const Json& line) {
    const auto loss = line.find("eval_loss");
    if (loss == line.end() || !loss->is_number()) return;  // NaN is null
    if (best >= 0 && loss->get<double>() >= best_loss) return;
    best = number;
    best_loss = loss->get<double>();
  });
  return best;
}

struct Samples {
  Json lines = Json::array();
  std::int64_t left_out = 0;
  std::int64_t damaged = 0;
};

// Reads the texts that the page shows. A run may have any number of prompts and of rounds, and the
// page is made in the memory of the trainer.
Samples ReadSamples(const fs::path& log) {
  Samples samples;
  RoundCounter all;
  // Of the texts of the last round, which show what the run has led to: earlier rounds leave them
  // up to half of all bytes. The first round is read first.
  std::int64_t last_bytes = 0;
  ForEachObject(log, [&](std::int64_t, const Json& line) {
    all.Next(line);
    if (all.in_round() == 0) last_bytes = 0;
    if (all.in_round() >= kMaxRoundSamples) return;
    const std::int64_t size = std::ssize(FormatJson(line));
    if (last_bytes + size <= kMaxSampleBytes / 2) last_bytes += size;
  });
  const std::int64_t every = EveryOf(all.rounds(), kMaxSampleRounds);
  RoundCounter round;
  std::int64_t bytes = 0;
  samples.damaged = ForEachObject(log, [&](std::int64_t, const Json& line) {
    const std::int64_t number = round.Next(line);
    const bool is_last = number == all.rounds() - 1;
    const bool shown = number % every == 0 || is_last;
    const std::int64_t size = std::ssize(FormatJson(line));
    const std::int64_t most = kMaxSampleBytes - (is_last ? 0 : last_bytes);
    if (!shown || round.in_round() >= kMaxRoundSamples || bytes + size > most) {
      ++samples.left_out;
      return;
    }
    bytes += size;
    samples.lines.push_back(line);
  });
  return samples;
}

// Reads the JSON object of a file of the run; an empty object when the file is missing.
Json ObjectIn(const fs::path& file) {
  if (!fs::exists(file)) return Json::object();
  Json object = ReadJsonFile(file);
  if (!object.is_object()) {
    ThrowInvalidInput("{}: expected a JSON object, found {}", file.string(), object.type_name());
  }
  return object;
}

// The values that readers take from run_info.json, each with the parts that they rely on.
Json FormsOfInfo() {
  const Json data = {{"samples", 0},
                     {"tokens", 0},
                     {"trained_tokens", 0},
                     {"shortest", 0},
                     {"longest", 0},
                     {"max_length", 0},
                     {"files", Json::array({Json{{"path", ""}}})},
                     {"histogram", {{"bucket_width", 0}, {"counts", Json::array({0})}}}};
  return {{"total_steps", 0}, {"memory", {{"peak", 0}}}, {"data", data}, {"eval_data", data}};
}

// True for a value of the kind of `form`, with all parts of it. The folder may be a stranger's.
bool HasForm(const Json& value, const Json& form) {
  if (form.is_object()) {
    for (const auto& [key, part] : form.items()) {
      if (!value.is_object() || !value.contains(key) || !HasForm(value[key], part)) return false;
    }
    return true;
  }
  if (form.is_array()) {
    return value.is_array() && std::all_of(value.begin(), value.end(), [&](const Json& item) {
             return HasForm(item, form.front());
           });
  }
  return form.is_number() ? value.is_number() : value.type() == form.type();
}

// The rows of a table that name a task and a figure.
void AddTable(const std::string& name, const Json& rows, Json& tables) {
  Json kept = Json::array();
  for (const Json& row : rows) {
    if (HasForm(row, {{"task", ""}, {"figure", ""}})) kept.push_back(row);
  }
  if (!kept.empty()) tables.push_back({{"name", name}, {"rows", std::move(kept)}});
}

// The part of that name of an object; an empty object where there is none.
Json ObjectOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_object() ? Json::object() : *found;
}

// Figures of tasks before and after training, as the gate and `eval --task --json` have them: the
// latter of models side by side, or of one.
Json TablesOfTasks(const fs::path& dir) {
  Json tables = Json::array();
  const Json gate = ObjectIn(dir / kGateFile);
  if (const auto rows = gate.find("tasks"); rows != gate.end()) AddTable("gate", *rows, tables);
  Json file = Json::object();
  try {
    file = ObjectIn(dir / kTaskResults);
  } catch (const Error&) {
    // The user's redirection, which another command may still be writing.
  }
  const Json results = ObjectOf(file, "results");
  const Json compared = ObjectOf(file, "compared");
  std::string last;  // beside which all others stand
  for (const auto& [model, tasks] : results.items()) {
    if (!compared.contains(model)) last = model;
  }
  for (const auto& [model, tasks] : compared.items()) {
    Json rows = Json::array();
    for (const auto& [task, figures] : tasks.items()) {
      for (Json row : figures) {
        if (row.is_object()) row["task"] = task;
        rows.push_back(std::move(row));
      }
    }
    AddTable(model + " beside " + last, rows, tables);
  }
  if (!compared.empty()) return tables;
  Json rows = Json::array();
  for (const auto& [task, figures] : results.items()) {
    for (const auto& [name, value] : figures.items()) {
      const bool is_figure = value.is_number_float() && name.find("_stderr") == name.npos;
      if (is_figure) rows.push_back({{"task", task}, {"figure", name}, {"with", value}});
    }
  }
  AddTable("eval", rows, tables);
  return tables;
}

fs::path LogPath(const fs::path& dir, const char* name) {
  return dir / (std::string(name) + ".jsonl");
}

}  // namespace

std::string ReadRunLogs(const fs::path& dir) {
  const fs::path log = LogPath(dir, kStepLog);
  if (!fs::exists(log)) {
    ThrowInvalidInput("{}: no run there ({} is missing); give the output_dir of a training run",
                      dir.string(), log.filename().string());
  }
  const std::int64_t lines = CountLines(log);
  // Every n-th line with the smallest n that stays within the limit, and the last line, which shows
  // where the run is now. Tokens are summed over all lines, so every line is parsed.
  const std::int64_t every = EveryOf(lines, kMaxRecordedSteps);
  Json steps = Json::object();
  std::int64_t tokens = 0;
  std::vector<Json> newest_ranks;
  std::int64_t damaged = ForEachObject(log, [&](std::int64_t number, const Json& line) {
    tokens += TokensOf(line);
    if (number >= lines - kRankSteps) newest_ranks.push_back(RanksOf(line));
    if (number % every == 0 || number == lines - 1) AddToColumns(line, steps);
  });
  if (damaged > 0 && damaged == lines) {
    ThrowInvalidInput("{}: no line is a JSON object; expected the log of a training run",
                      log.string());
  }
  const fs::path eval_log = LogPath(dir, kEvalLog);
  const std::int64_t eval_lines = CountLines(eval_log);
  const std::int64_t every_eval = EveryOf(eval_lines, kMaxRecordedSteps);
  const std::int64_t best_eval = FindBestEvaluation(eval_log);
  Json evals = Json::object();
  damaged += ForEachObject(eval_log, [&](std::int64_t number, const Json& line) {
    const bool shown = number % every_eval == 0 || number == eval_lines - 1 || number == best_eval;
    if (shown) AddToColumns(line, evals);
  });
  Samples samples = ReadSamples(LogPath(dir, kSampleLog));
  damaged += samples.damaged;

  const fs::path absolute = fs::weakly_canonical(dir);
  Json record = {{"name", absolute.filename().string()},
                 {"steps", std::move(steps)},
                 {"every", every},
                 {"tokens", tokens},
                 {"ranks", MeansOfRanks(newest_ranks)},
                 {"evals", std::move(evals)},
                 {"every_eval", every_eval},
                 {"samples", std::move(samples.lines)},
                 {"samples_left_out", samples.left_out},
                 {"total_steps", lines},
                 {"damaged_lines", damaged}};
  record["options"] = ObjectIn(dir / kTrainConfig);
  record["tasks"] = TablesOfTasks(dir);
  const Json info = ObjectIn(dir / kRunInfo);
  // The adapter of a finished run stays in the folder while the run is trained further.
  record["finished"] =
      info.contains(kStartFolder) ? info.contains(kFinishedStep) : HoldsAdapter(dir);
  const Json forms = FormsOfInfo();
  for (const auto& [key, form] : forms.items()) {
    const auto value = info.find(key);
    if (value != info.end() && HasForm(*value, form)) record[key] = *value;
  }
  const Json decision = ObjectIn(dir / kDecisionMetrics);
  const Json metrics = {
      {"accuracy", 0.0},
      {"ece", 0.0},
      {"reliability", Json::array({Json{{"n", 0}, {"confidence", 0.0}, {"accuracy", 0.0}}})}};
  for (const auto& [key, of_key] : decision.items()) {
    for (const auto& [type, value] : of_key.items()) {
      if (HasForm(value, metrics)) record[key][type] = value;
    }
  }
  return FormatJson(record);
}

}  // namespace qlora
