#include "train/log_reader.h"

#include <algorithm>
#include <fstream>
#include <functional>

#include "base/check.h"
#include "io/json.h"
#include "train/log_files.h"
#include "train/output_dir.h"
#include "train/run_info.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Calls `take` with each line that is a JSON object and its number. The last line of a run that is
// still training may be incomplete.
void ForEachLine(const fs::path& path,
                 const std::function<void(std::int64_t number, const Json& line)>& take) {
  std::ifstream in(path);
  std::int64_t number = 0;
  for (std::string text; std::getline(in, text); ++number) {
    const Json line = Json::parse(text, nullptr, false);
    if (line.is_object()) take(number, line);
  }
}

std::int64_t CountLines(const fs::path& path) {
  std::ifstream in(path);
  return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
}

void AddToColumns(const Json& line, Json& columns) {
  for (const auto& [key, value] : line.items()) columns[key].push_back(value);
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
  const std::int64_t every =
      std::max<std::int64_t>(1, (lines + kMaxRecordedSteps - 1) / kMaxRecordedSteps);
  Json steps = Json::object();
  std::int64_t tokens = 0;
  ForEachLine(log, [&](std::int64_t number, const Json& line) {
    tokens += line.value("tokens", std::int64_t{0});
    if (number % every == 0 || number == lines - 1) AddToColumns(line, steps);
  });
  Json evals = Json::object();
  ForEachLine(LogPath(dir, kEvalLog),
              [&](std::int64_t, const Json& line) { AddToColumns(line, evals); });
  Json samples = Json::array();
  ForEachLine(LogPath(dir, kSampleLog),
              [&](std::int64_t, const Json& line) { samples.push_back(line); });

  const fs::path absolute = fs::weakly_canonical(dir);
  Json record = {{"name", absolute.filename().string()},
                 {"steps", std::move(steps)},
                 {"every", every},
                 {"tokens", tokens},
                 {"evals", std::move(evals)},
                 {"samples", std::move(samples)},
                 {"options", Json::object()},
                 {"total_steps", lines},
                 {"finished", HoldsAdapter(dir)}};
  if (fs::exists(dir / kTrainConfig)) record["options"] = ReadJsonFile(dir / kTrainConfig);
  if (fs::exists(dir / kRunInfo)) record.update(ReadJsonFile(dir / kRunInfo));
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace qlora
