#include "serve/jobs/job_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/jobs/new_id.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxRecordBytes = std::int64_t{4} << 20;
constexpr const char* kRecord = ".json";
constexpr const char* kEvents = ".events.jsonl";

}  // namespace

JobStore::JobStore(fs::path folder) : folder_(std::move(folder)) {
  MakeDirectories(folder_);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const fs::path& path = entry.path();
    if (path.extension() != kRecord || !IsId(path.stem().string(), kJobPrefix)) continue;
    try {
      Load(path);
    } catch (const Error& error) {
      notes_.push_back(fmt::format("{}; the job is left out", error.what()));
    }
  }
}

void JobStore::Load(const fs::path& path) {
  const std::string where = path.string();
  Job job = ReadRecord(ParseJson(ReadTextFile(path, kMaxRecordBytes), where), path.stem().string(),
                       where);
  next_ = std::max(next_, job.number + 1);
  JobEvents events(PathOf(job, kEvents), job.id);
  const std::string id = job.id;
  jobs_.emplace(id, JobEntry{std::move(job), std::move(events)});
}

JobEntry& JobStore::Add(Job job) {
  job.id = NewId(kJobPrefix);
  job.number = next_++;
  JobEvents events(PathOf(job, kEvents), job.id);
  events.Say("info", "Created fine-tuning job: " + job.id);
  Save(job);
  const std::string id = job.id;
  return jobs_.emplace(id, JobEntry{std::move(job), std::move(events)}).first->second;
}

JobEntry& JobStore::Get(const std::string& id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) {
    throw ApiError(404, "there is no job of this id; GET /v1/fine_tuning/jobs lists them");
  }
  return found->second;
}

std::vector<JobEntry*> JobStore::All() {
  std::vector<JobEntry*> all;
  for (auto& [id, entry] : jobs_) all.push_back(&entry);
  std::ranges::sort(all, {}, [](const JobEntry* entry) { return entry->job.number; });
  return all;
}

void JobStore::Save(const Job& job) {
  WriteTextFile(PathOf(job, kRecord), FormatJson(ToRecord(job), 2) + "\n");
}

fs::path JobStore::PathOf(const Job& job, const char* ending) const {
  return folder_ / (job.id + ending);
}

}  // namespace qlora
