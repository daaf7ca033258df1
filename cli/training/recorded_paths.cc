#include "training/recorded_paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "command/common.h"
#include "data/data_options.h"
#include "log/run_log.h"
#include "qlora/error.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// True when `text`, an item of the option `key`, names something.
bool IsThere(const std::string& key, const std::string& text) {
  std::error_code ignored;
  constexpr auto kData =
      std::to_array<std::string_view>({"dataset", "eval_dataset", "calibration_dataset", "anchor"});
  if (std::ranges::find(kData, key) == kData.end()) return fs::exists(text, ignored);
  const DataPurpose purpose =
      key == "eval_dataset" ? DataPurpose::kEvaluation : DataPurpose::kTraining;
  try {
    // Items of data may carry a weight or be patterns, so they are read as the trainer reads them.
    return fs::exists(FindSources(text, RecordFormat::kAuto, purpose).sources.front().path,
                      ignored);
  } catch (const Error&) {  // no file matches a pattern
    return false;
  }
}

bool IsWritten(std::string_view option) {
  return option == "logging_dir" || option == "dataset_prepared_path";
}

// Returns the folder from which the relative paths of the run in `dir` lead. A folder that was
// renamed with the run and its files in it is the new one: `dir` still ends as output_dir was
// given.
fs::path StartOf(const fs::path& dir, const fs::path& output_dir) {
  const fs::path start = StartFolderOf(dir);
  fs::path given = (output_dir.lexically_normal() / "").parent_path();
  std::error_code ignored;
  const bool is_there = fs::equivalent(start / given, dir, ignored);
  if (start.empty() || given.is_absolute() || is_there) return start;
  fs::path here = (fs::absolute(dir).lexically_normal() / "").parent_path();
  for (; !given.empty(); given = given.parent_path(), here = here.parent_path()) {
    if (here.filename() != given.filename()) return start;
  }
  return here;
}

}  // namespace

RecordedPaths::RecordedPaths(fs::path dir, const std::string& output_dir)
    : dir_(std::move(dir)), output_dir_(output_dir), start_(StartOf(dir_, output_dir_)) {}

void RecordedPaths::Take(Option& option) {
  if (!option.is_path) return;
  if (auto* text = std::get_if<std::string*>(&option.value)) {
    **text = Found(option.name, **text);
    Confine(option, **text);
  } else if (auto* list = std::get_if<std::vector<std::string>*>(&option.value)) {
    for (std::string& item : **list) item = Found(option.name, item);
  }
}

// A path that is missing stays as recorded: the error then names the user's own text.
std::string RecordedPaths::Found(const std::string& option, const std::string& text) const {
  if (text.empty()) return text;
  const fs::path folder = (output_dir_.lexically_normal() / "").parent_path();
  const fs::path below = fs::path(text).lexically_normal().lexically_relative(folder);
  if (!folder.empty() && !below.empty() && *below.begin() != "..") {
    std::string here = (dir_ / below).lexically_normal().string();
    if (IsWritten(option) || IsThere(option, here)) return here;
  }
  std::error_code ignored;
  if (start_.empty() || start_ == fs::current_path(ignored) || fs::path(text).is_absolute()) {
    return text;
  }
  std::string there = (start_ / text).lexically_normal().string();
  return IsThere(option, there) ? there : text;
}

bool RecordedPaths::IsInside(const fs::path& path) const {
  return Contains(WithoutLinks(dir_), WithoutLinks(path));
}

void RecordedPaths::Confine(const Option& option, std::string& text) {
  if (text.empty()) return;
  const auto ask = [&] {
    outside_.push_back(fmt::format("--{} {}", option.name, ShellQuote(text)));
  };
  if (option.name == "dataset_prepared_path" && !IsInside(text)) ask();
  if (option.name != "chat_template") return;
  // A text that is no file is the name of a template, or a copy in a checkpoint that was removed.
  const bool was_copy = fs::path(text).filename() == kChatTemplateFile && IsInside(text);
  if (Exists(text) ? IsInside(text) : !was_copy) return;
  if (const fs::path copy = TemplateCopy(); !copy.empty()) {
    text = copy.string();
  } else {
    ask();
  }
}

// The template in the folder of the run or in its newest checkpoint; empty without one.
fs::path RecordedPaths::TemplateCopy() const {
  std::vector<fs::path> folders = ListCheckpoints(dir_);
  folders.insert(folders.begin(), dir_);
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    const fs::path copy = *folder / kChatTemplateFile;
    if (Exists(copy) && IsInside(copy)) return copy;
  }
  return {};
}

void RecordedPaths::CheckLogs(const TrainOptions& options) {
  const fs::path folder = LoggingDir(options);
  if (!ParseReportTo(options.report_to).tensorboard || IsInside(folder)) return;
  outside_.push_back(fmt::format("--logging_dir {}", ShellQuote(folder)));
}

void RecordedPaths::CheckInside() const {
  if (outside_.empty()) return;
  ThrowInvalidInput(
      "{}: the record names files outside of the folder of the run, which it may not choose: a "
      "folder can come from someone else; if they are yours, add to the command: {}",
      (dir_ / kTrainConfig).string(), fmt::join(outside_, " "));
}

std::string ResumeCommand(const TrainOptions& options) {
  const fs::path dir = WithoutLinks(options.output_dir);
  std::string command = "qlora resume " + ShellQuote(options.output_dir);
  const auto add = [&](std::string_view option, const fs::path& path) {
    if (path.empty() || Contains(dir, WithoutLinks(path))) return;
    command += fmt::format(" --{} {}", option, ShellQuote(path));
  };
  if (ParseReportTo(options.report_to).tensorboard) add("logging_dir", LoggingDir(options));
  add("dataset_prepared_path", options.data.dataset_prepared_path);
  return command;
}

}  // namespace qlora
