// All jobs, each with its events: in a folder and in memory.
//
//   JOB_ID.json           what the job is and how far it is; written whole
//   JOB_ID.events.jsonl   job_events.h
//   JOB_ID.config.json, JOB_ID.output.json, JOB_ID.log   of its training process
#ifndef QLORA_SERVE_JOBS_JOB_STORE_H_
#define QLORA_SERVE_JOBS_JOB_STORE_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "serve/jobs/job.h"
#include "serve/jobs/job_events.h"

namespace qlora {

struct JobEntry {
  Job job;
  JobEvents events;
};

// For one thread at a time: the one that holds Lock().
class JobStore {
 public:
  // Makes the folder, and takes the jobs that it holds. log: a line for people, from any thread.
  // Errors: Runtime.
  JobStore(std::filesystem::path folder, std::function<void(const std::string& line)> log);

  std::unique_lock<std::mutex> Lock() { return std::unique_lock(mutex_); }

  // Gives the job an id and a number, and keeps it. Errors: Runtime.
  JobEntry& Add(Job job);
  // Errors: ApiError 404.
  JobEntry& Get(const std::string& id);
  // In the order of their numbers.
  std::vector<JobEntry*> All();
  // Errors: Runtime.
  void Save(const Job& job);
  // Saves the job in another state, of which an event tells. Errors: Runtime, for a job that has
  // the state all the same.
  void SetStatus(JobEntry& entry, JobStatus status, std::string_view message);
  // Adds an event. Like the log, events are no part of what a job needs.
  void Say(JobEntry& entry, std::string_view level, std::string_view message);
  // A file of the job: "JOB_ID.log" for ".log".
  std::filesystem::path PathOf(const Job& job, const char* ending) const;

  // A line of the log. Without Lock(), too.
  void Log(const Job& job, std::string_view text) const;
  // Writes what a full disk may refuse, without harm to the job. False, with a line in the log, for
  // work that throws.
  bool Try(const Job& job, const std::function<void()>& work) const;

 private:
  const std::filesystem::path folder_;
  const std::function<void(const std::string&)> log_;
  std::mutex mutex_;
  std::map<std::string, JobEntry> jobs_;
  std::int64_t next_ = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_STORE_H_
