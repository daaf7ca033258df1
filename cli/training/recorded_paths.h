// The paths in the record of a run. The folder of a run may be a stranger's, so that its record may
// not choose where `qlora resume` writes, nor which file of the user is copied into the folder:
//
//   logging_dir, dataset_prepared_path   in the folder of the run, links resolved, or given again
//   chat_template                        the same; else the copy that the run left in its folder
//   model, adapter, data                 anywhere: they are read
#ifndef QLORA_CLI_TRAINING_RECORDED_PATHS_H_
#define QLORA_CLI_TRAINING_RECORDED_PATHS_H_

#include <filesystem>
#include <string>
#include <vector>

#include "qlora/options.h"
#include "qlora/train_options.h"

namespace qlora {

class RecordedPaths {
 public:
  // dir: the folder of the run; output_dir: the same as the run records it. Errors: InvalidInput
  // for a damaged run_info.json.
  RecordedPaths(std::filesystem::path dir, const std::string& output_dir);

  // Makes the value of a recorded path lead from the current folder: it was relative to the folder
  // in which the run was started, or lay in the folder of the run, which was moved since.
  void Take(Option& option);

  // Compares the folder of TensorBoard, which was not given, after all options were taken.
  void CheckLogs(const TrainOptions& options);

  // Errors: InvalidInput when a path is outside of the folder of the run and has to be given again.
  void CheckInside() const;

 private:
  std::string Found(const std::string& option, const std::string& text) const;
  void Confine(const Option& option, std::string& text);
  bool IsInside(const std::filesystem::path& path) const;
  std::filesystem::path TemplateCopy() const;

  std::filesystem::path dir_;
  std::filesystem::path output_dir_;
  std::filesystem::path start_;            // from which relative paths lead
  std::vector<std::string> outside_ = {};  // "--logging_dir /var/log"
};

// Returns the command that resumes the run of these options, with the paths that a record may not
// choose.
std::string ResumeCommand(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_RECORDED_PATHS_H_
