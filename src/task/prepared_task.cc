#include "task/prepared_task.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "task/decision_task.h"

namespace qlora {
namespace {

// Reads "test=arc.parquet".
TaskSplit ParseSplit(const std::string& entry) {
  const std::size_t equals = entry.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == entry.size()) {
    ThrowInvalidInput("task_data: expected SPLIT=FILE, found '{}'", entry);
  }
  return {entry.substr(0, equals), {ExpandHome(entry.substr(equals + 1))}};
}

// Replaces the files of splits. A split that is named several times has several files.
void TakeData(const std::vector<std::string>& data, TaskFile& task) {
  std::vector<TaskSplit> given;
  for (const std::string& entry : data) {
    TaskSplit split = ParseSplit(entry);
    const auto same = std::ranges::find_if(
        given, [&](const TaskSplit& other) { return other.name == split.name; });
    if (same == given.end()) {
      given.push_back(std::move(split));
    } else {
      same->files.push_back(split.files.front());
    }
  }
  for (TaskSplit& split : given) {
    std::erase_if(task.splits, [&](const TaskSplit& old) { return old.name == split.name; });
    task.splits.push_back(std::move(split));
  }
}

bool IsDecidedByText(const TaskItem& item) {
  return std::ranges::all_of(item.document.instructions,
                             [](const Instruction& one) { return IsCheckOfText(one.id); });
}

void CheckRanges(const TaskOptions& options) {
  if (options.num_fewshot < -1) {
    ThrowInvalidInput("num_fewshot: expected a number from 0 on, or -1, found {}",
                      options.num_fewshot);
  }
  if (options.limit < 0) {
    ThrowInvalidInput("limit: expected a number from 0 on, found {}", options.limit);
  }
}

}  // namespace

PreparedTask PrepareTask(const std::string& path, const TaskOptions& options) {
  CheckRanges(options);
  PreparedTask task;
  task.file = ReadTaskFile(FindTaskFile("", path));
  TakeData(options.task_data, task.file);
  if (task.file.kind == TaskKind::kDecision) {
    CheckDecisions(task.file, options);
    return task;
  }
  task.shots = options.num_fewshot < 0 ? task.file.num_fewshot : options.num_fewshot;
  task.items = MakeItems(task.file, task.shots, options.fewshot_seed, options.limit);
  const std::int64_t all = std::ssize(task.items);
  std::erase_if(task.items, [](const TaskItem& item) { return !IsDecidedByText(item); });
  task.left_out = all - std::ssize(task.items);
  if (task.items.empty()) {
    ThrowInvalidInput("{}: the text alone decides the instructions of none of its {} records", path,
                      all);
  }
  return task;
}

void CheckTasks(const TaskOptions& options) {
  std::set<std::string> names;
  std::set<std::string> splits;
  for (const std::string& path : options.task) {
    const TaskFile task = PrepareTask(path, options).file;
    if (!names.insert(task.name).second) {
      ThrowInvalidInput("task: two definitions are named '{}'", task.name);
    }
    for (const std::string& split : {task.test_split, task.fewshot_split}) splits.insert(split);
  }
  for (const std::string& entry : options.task_data) {
    const std::string name = ParseSplit(entry).name;
    if (splits.contains(name)) continue;
    ThrowInvalidInput("task_data: no task reads a split '{}'", name);
  }
}

}  // namespace qlora
