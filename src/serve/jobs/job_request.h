// What a client asks for: the body of POST /v1/fine_tuning/jobs.
#ifndef QLORA_SERVE_JOBS_JOB_REQUEST_H_
#define QLORA_SERVE_JOBS_JOB_REQUEST_H_

#include <cstdint>
#include <map>
#include <string>

#include "io/json_fwd.h"
#include "serve/jobs/training_file_check.h"

namespace qlora {

// With a number for every "auto".
struct JobRequest {
  std::string model = {};
  std::string training_file = {};
  std::string validation_file = {};  // "": none
  TrainingMethod method = TrainingMethod::kSupervised;
  std::int64_t n_epochs = 0;
  std::int64_t batch_size = 0;  // examples of an optimizer step
  double learning_rate_multiplier = 1;
  double beta = 0;  // of dpo
  std::string suffix = {};
  std::int64_t seed = 0;
  std::map<std::string, std::string> metadata = {};
};

// Reads the body; `auto` and what is absent become the defaults of `train`, and the seed is drawn.
// Errors: ApiError 400 that names the field.
JobRequest ReadJobRequest(const OrderedJson& body);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_REQUEST_H_
