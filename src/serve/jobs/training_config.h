// The options of `qlora train` for a job.
#ifndef QLORA_SERVE_JOBS_TRAINING_CONFIG_H_
#define QLORA_SERVE_JOBS_TRAINING_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <string>

#include "io/json_fwd.h"
#include "qlora/model_options.h"
#include "serve/jobs/job.h"

namespace qlora {

struct TrainingFiles {
  std::filesystem::path training;
  std::filesystem::path validation;  // empty: none
  std::filesystem::path run;         // the folder of the run
};

// base: how the server holds the base, which is the form that its adapters are trained on.
OrderedJson TrainingConfig(const Job& job, const ModelOptions& base, const TrainingFiles& files);

// Returns the first line of a failed run's error, with the names that the client gave in place of
// those of files here.
std::string ClientMessage(std::string message, const TrainingFiles& files,
                          const std::string& training_name, const std::string& validation_name);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_TRAINING_CONFIG_H_
