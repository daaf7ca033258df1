// All jobs, each with its events: in a folder and in memory.
//
//   JOB_ID.json           what the job is and how far it is; written whole
//   JOB_ID.events.jsonl   job_events.h
//   JOB_ID.config.json, JOB_ID.output.json, JOB_ID.log   of its training process
#ifndef QLORA_SERVE_JOBS_JOB_STORE_H_
#define QLORA_SERVE_JOBS_JOB_STORE_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "serve/jobs/job.h"
#include "serve/jobs/job_events.h"

namespace qlora {

struct JobEntry {
  Job job;
  JobEvents events;
};

// For one thread at a time.
class JobStore {
 public:
  // Makes the folder, and takes the jobs that it holds. Errors: Runtime.
  explicit JobStore(std::filesystem::path folder);

  // Gives the job an id and a number, and keeps it. Errors: Runtime.
  JobEntry& Add(Job job);
  // Errors: ApiError 404.
  JobEntry& Get(const std::string& id);
  // In the order of their numbers.
  std::vector<JobEntry*> All();
  // Errors: Runtime.
  void Save(const Job& job);
  // A file of the job: "JOB_ID.log" for ".log".
  std::filesystem::path PathOf(const Job& job, const char* ending) const;

  // For people: jobs that are there and cannot be read.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void Load(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<std::string> notes_;
  std::map<std::string, JobEntry> jobs_;
  std::int64_t next_ = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_STORE_H_
