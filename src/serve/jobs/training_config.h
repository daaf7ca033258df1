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

// The name of a path in records of a folder, and for a process that runs in the folder: relative
// to it for what is inside, so that the folder may be moved, or spelled in another way.
std::string NameWithin(const std::filesystem::path& folder, const std::filesystem::path& path);

// As NameWithin names them in the folder of runs, where trainings run.
struct TrainingFiles {
  std::string training;
  std::string validation;  // "": none
  std::string run;         // the folder of the run
};

// The name of the base for a process that runs in another folder than this one.
std::string BaseOfTraining(const ModelOptions& base);

// base: how the server holds the base, which is the form that its adapters are trained on.
// max_length: longer examples are cut.
OrderedJson TrainingConfig(const Job& job, const ModelOptions& base, const TrainingFiles& files,
                           std::int64_t max_length);

// The template of an adapter that was trained on prompts and answers as plain texts: in their form
// such an adapter is asked, though `train` reads the template for other programs alone. "" for all
// other adapters, whose templates `train` takes by itself.
std::filesystem::path TextTemplateOf(const std::filesystem::path& adapter);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_TRAINING_CONFIG_H_
