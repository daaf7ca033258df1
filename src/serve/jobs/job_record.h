// A job as a file has it: jobs/JOB_ID.json.
#ifndef QLORA_SERVE_JOBS_JOB_RECORD_H_
#define QLORA_SERVE_JOBS_JOB_RECORD_H_

#include <string>

#include "io/json_fwd.h"
#include "serve/jobs/job.h"

namespace qlora {

// The whole job, and back. Errors: InvalidInput for what ToRecord cannot have written.
Json ToRecord(const Job& job);
Job ReadRecord(const Json& record, const std::string& id, const std::string& where);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_RECORD_H_
