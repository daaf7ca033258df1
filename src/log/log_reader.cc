#include "log/log_reader.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

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
constexpr std::size_t kReadBytes = std::size_t{1} << 18;

// Calls take(line) with each line and its line feed, which the last one lacks if the run is just
// writing it. A file that is missing has no lines. Errors: InvalidInput for anything that is no
// log: the folder may be a stranger's, and a link in it may lead to a pipe or a device.
void ForEachLine(const fs::path& path, const std::function<void(std::string_view line)>& take) {
  if (!Exists(path)) return;
  const std::unique_ptr<std::FILE, CloseStream> file(fdopen(OpenRegularFile(path), "r"));
  if (file == nullptr) throw std::bad_alloc();
  std::string chunk(kReadBytes, '\0');
  std::string line;
  std::int64_t bytes = 0;
  while (const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    bytes += static_cast<std::int64_t>(count);
    for (std::string_view rest(chunk.data(), count); !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
      line += rest.substr(0, end);
      rest.remove_prefix(end);
      if (line.size() > kMaxLineBytes || bytes > kMaxLogBytes) {
        ThrowInvalidInput("{}: expected the log of a training run, found {}", path.string(),
                          bytes > kMaxLogBytes
                              ? fmt::format("more than {} bytes", kMaxLogBytes)
                              : fmt::format("a line of more than {} bytes", kMaxLineBytes));
      }
      if (line.ends_with('\n')) take(std::exchange(line, ""));
    }
  }
  if (!line.empty()) take(line);
}

// Calls `take` with each line that is a JSON object and its number. Returns the number of damaged
// lines, without the last one, which may be incomplete while the run is still training.
std::int64_t ForEachObject(const fs::path& path,
                           const std::function<void(std::int64_t number, const Json& line)>& take) {
  std::int64_t number = 0;
  std::int64_t damaged = 0;
  ForEachLine(path, [&](std::string_view text) {
    Json line;
    if (!TryParseJson(text, line) && line.is_object()) {
      take(number, line);
    } else if (text.ends_with('\n')) {
      ++damaged;
    }
    ++number;
  });
  return damaged;
}

// Counts the complete lines, which end in a line feed.
std::int64_t CountLines(const fs::path& path) {
  std::int64_t lines = 0;
  ForEachLine(path, [&](std::string_view line) { lines += line.ends_with('\n'); });
  return lines;
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
  std::int64_t damaged = ForEachObject(log, [&](std::int64_t number, const Json& line) {
    tokens += TokensOf(line);
    if (number % every == 0 || number == lines - 1) AddToColumns(line, steps);
  });
  if (damaged > 0 && damaged == lines) {
    ThrowInvalidInput("{}: no line is a JSON object; expected the log of a training run",
                      log.string());
  }
  Json evals = Json::object();
  damaged += ForEachObject(LogPath(dir, kEvalLog),
                           [&](std::int64_t, const Json& line) { AddToColumns(line, evals); });
  Json samples = Json::array();
  damaged += ForEachObject(LogPath(dir, kSampleLog),
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
