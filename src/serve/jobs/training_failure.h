// Why a training has failed, as the error of its job says it.
#ifndef QLORA_SERVE_JOBS_TRAINING_FAILURE_H_
#define QLORA_SERVE_JOBS_TRAINING_FAILURE_H_

#include <string>

#include "serve/jobs/job.h"
#include "serve/jobs/trainer.h"
#include "serve/jobs/training_config.h"

namespace qlora {

// The error of `qlora train --json`: its first line, or "".
std::string ErrorOf(const TrainingEnd& end);

// The reason in words of the API, with a code for whoever can do something about it:
//
//   invalid_training_file, invalid_validation_file   the error names the file: the client
//   insufficient_memory, disk_error                  the server, which is too small
//   training_failed                                  the log of the job says more
//
// The error's advice is for users of the program, and so left out, but of a file. The names are
// those that the client gave to the files.
JobError FailureOf(const TrainingEnd& end, const Job& job, const TrainingFiles& files,
                   const std::string& training_name, const std::string& validation_name);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_TRAINING_FAILURE_H_
