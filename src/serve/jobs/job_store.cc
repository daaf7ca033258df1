#include "serve/jobs/job_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/file.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/jobs/record_files.h"

namespace qlora {
namespace {

constexpr const char* kRecord = ".json";
constexpr const char* kEvents = ".events.jsonl";

}  // namespace

JobStore::JobStore(std::filesystem::path folder, std::function<void(const std::string& line)> log)
    : folder_(std::move(folder)), log_(std::move(log)) {
  ReadRecords(folder_, kJobPrefix, log_,
              [&](const Json& record, const std::string& id, const std::string& where) {
                Job job = ReadRecord(record, id, where);
                next_ = std::max(next_, job.number + 1);
                JobEvents events(PathOf(job, kEvents), id);
                jobs_.emplace(id, JobEntry{std::move(job), std::move(events)});
              });
}

JobEntry& JobStore::Add(Job job) {
  job.id = NewId(kJobPrefix);
  job.number = next_++;
  Save(job);
  JobEvents events(PathOf(job, kEvents), job.id);
  const std::string id = job.id;
  JobEntry& entry = jobs_.emplace(id, JobEntry{std::move(job), std::move(events)}).first->second;
  Say(entry, "info", "Created fine-tuning job: " + id);
  return entry;
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

void JobStore::SetStatus(JobEntry& entry, JobStatus status, std::string_view message) {
  entry.job.status = status;
  Save(entry.job);
  Say(entry, "info", message);
}

void JobStore::Say(JobEntry& entry, std::string_view level, std::string_view message) {
  Try(entry.job, [&] { entry.events.Say(level, message); });
}

std::filesystem::path JobStore::PathOf(const Job& job, const char* ending) const {
  return folder_ / (job.id + ending);
}

void JobStore::Log(const Job& job, std::string_view text) const {
  log_(fmt::format("{}: {}", job.id, text));
}

bool JobStore::Try(const Job& job, const std::function<void()>& work) const {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    Log(job, error.what());
    return false;
  }
}

}  // namespace qlora
