// Fine-tuning jobs of a server: they wait, run one after another, and become models that it serves.
//
//   page.h, record_files.h  lists in pages; ids, and what is kept as a file for each
//   file_store.h            uploaded files, and results
//   training_file_check.h   the first bad line of a file, before a job begins
//   job_request.h, job.h    the body that asks for a job; what a job is
//   job_store.h             all jobs, as files, too; job_events.h: what happened
//   job_runner.h            from the queue to the end
//   training_config.h       a job as options of `qlora train`; trainer.h: as a process of its own
//   run_progress.h          what that has written so far; training_failure.h: why it failed
//   job_models.h            what jobs have made, and who makes room
//
// The folder: files/, jobs/, and for each run a folder JOB_ID, as `qlora report` reads it. Whatever
// ends the server, the next one on the folder goes on with its jobs, at their last checkpoints.
#ifndef QLORA_SERVE_JOBS_FINE_TUNING_H_
#define QLORA_SERVE_JOBS_FINE_TUNING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "io/json_fwd.h"
#include "serve/http_server.h"
#include "serve/jobs/file_store.h"
#include "serve/jobs/job_models.h"
#include "serve/jobs/job_runner.h"
#include "serve/jobs/job_store.h"
#include "serve/jobs/page.h"
#include "serve/jobs/trainer.h"
#include "serve/served_models.h"

namespace qlora {

// What clients ask of files and jobs. May be used by several threads. Errors: ApiError 404 for an
// id that there is not, 400 for what a job does not allow in its state, and as of FileStore.
class FineTuning {
 public:
  // Takes what the folder holds, which nobody else may use: models of finished jobs are loaded,
  // jobs that ran go on. What was made for another base waits for a server with that. log: a line
  // for people, from any thread.
  FineTuning(FineTuningOptions options, ServedModels& models, Trainer trainer,
             std::function<void(const std::string& line)> log);

  // As of JobRunner, for a server that ends: its jobs go on when the next one starts.
  void BeginStop() { runner_.BeginStop(); }

  // Where the body of a request goes, if it is an upload.
  std::optional<HttpBody> BodyOf(const HttpRequest& head) const;
  FileStore& files() { return files_; }
  std::int64_t file_limit() const { return options_.file_bytes; }
  // Errors: ApiError 400 for a file of a job that is not done.
  void RemoveFile(const std::string& id);

  // body: of POST /v1/fine_tuning/jobs. Errors: ApiError 400 that names the field or the line.
  OrderedJson Create(const OrderedJson& body);
  OrderedJson Get(const std::string& id);
  // metadata: pairs that a job must have; has_none: jobs without any.
  OrderedJson List(const PageQuery& query, const std::map<std::string, std::string>& metadata,
                   bool has_none = false);
  OrderedJson Events(const std::string& id, const PageQuery& query);
  OrderedJson Checkpoints(const std::string& id, const PageQuery& query);
  OrderedJson Cancel(const std::string& id) { return Change(id, &JobRunner::Cancel); }
  OrderedJson Pause(const std::string& id) { return Change(id, &JobRunner::Pause); }
  OrderedJson Resume(const std::string& id) { return Change(id, &JobRunner::Resume); }

  // The model of a job, or of its checkpoint. Errors: as of JobModels.
  void RemoveModel(const std::string& name);

 private:
  OrderedJson Change(const std::string& id, decltype(&JobRunner::Cancel) change);

  const FineTuningOptions options_;
  ServedModels& served_;
  FileStore files_;
  JobStore jobs_;
  JobModels models_;
  JobRunner runner_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_FINE_TUNING_H_
