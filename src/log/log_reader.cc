#include "log/log_reader.h"

#include <algorithm>
#include <fstream>
#include <functional>

#include "base/check.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "io/json.h"
#include "log/log_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Calls `take` with each line that is a JSON object and its number. Returns the number of damaged
// lines, without the last one, which may be incomplete while the run is still training.
std::int64_t ForEachLine(const fs::path& path,
                         const std::function<void(std::int64_t number, const Json& line)>& take) {
  std::ifstream in(path);
  std::int64_t number = 0;
  std::int64_t damaged = 0;
  for (std::string text; std::getline(in, text); ++number) {
    Json line;
    if (!TryParseJson(text, line) && line.is_object()) {
      take(number, line);
    } else if (!in.eof()) {  // the end of the file comes before the end of an incomplete line
      ++damaged;
    }
  }
  return damaged;
}

// Counts the complete lines, which end in a line feed.
std::int64_t CountLines(const fs::path& path) {
  std::ifstream in(path);
  return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
}

// Appends the values of one line to the columns of their names.
void AddToColumns(const Json& line, Json& columns) {
  for (const auto& [key, value] : line.items()) columns[key].push_back(value);
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

// Reads the JSON object of a file of the run; an empty object when the file is missing.
Json ObjectIn(const fs::path& file) {
  if (!fs::exists(file)) return Json::object();
  Json object = ReadJsonFile(file);
  if (!object.is_object()) {
    ThrowInvalidInput("{}: expected a JSON object, found {}", file.string(), object.type_name());
  }
  return object;
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
  const std::int64_t every =
      std::max<std::int64_t>(1, (lines + kMaxRecordedSteps - 1) / kMaxRecordedSteps);
  Json steps = Json::object();
  std::int64_t tokens = 0;
  std::int64_t damaged = ForEachLine(log, [&](std::int64_t number, const Json& line) {
    tokens += TokensOf(line);
    if (number % every == 0 || number == lines - 1) AddToColumns(line, steps);
  });
  if (damaged > 0 && damaged == lines) {
    ThrowInvalidInput("{}: no line is a JSON object; expected the log of a training run",
                      log.string());
  }
  Json evals = Json::object();
  damaged += ForEachLine(LogPath(dir, kEvalLog),
                         [&](std::int64_t, const Json& line) { AddToColumns(line, evals); });
  Json samples = Json::array();
  damaged += ForEachLine(LogPath(dir, kSampleLog),
                         [&](std::int64_t, const Json& line) { samples.push_back(line); });

  const fs::path absolute = fs::weakly_canonical(dir);
  Json record = {{"name", absolute.filename().string()},
                 {"steps", std::move(steps)},
                 {"every", every},
                 {"tokens", tokens},
                 {"evals", std::move(evals)},
                 {"samples", std::move(samples)},
                 {"total_steps", lines},
                 {"damaged_lines", damaged}};
  record["options"] = ObjectIn(dir / kTrainConfig);
  Json info = ObjectIn(dir / kRunInfo);
  // The adapter of a finished run stays in the folder while the run is trained further.
  record["finished"] =
      info.contains(kStartFolder) ? info.contains(kFinishedStep) : HoldsAdapter(dir);
  info.erase(kStartFolder);  // a path of this machine is not for readers of a page
  record.update(info);
  return FormatJson(record);
}

}  // namespace qlora
