// Which columns of a weight matter: the activations that meet them on a text.
#ifndef QLORA_CONVERT_CALIBRATION_H_
#define QLORA_CONVERT_CALIBRATION_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/config.h"
#include "qlora/context.h"

namespace qlora {

struct Calibration {
  // Name of a linear's weight in the checkpoint -> mean square of each input channel (I).
  std::map<std::string, std::vector<float>> mean_squares;
  std::int64_t tokens = 0;  // over which the means were taken
};

// Runs the model as the checkpoint holds it over the first samples of `data` (any format of the
// trainer but conversations), at most `max_tokens` of them. The weights are mapped, not copied.
// backend: one of kF32, so that no rounding of products enters the statistics. progress: of tokens,
// after each pass; what it throws ends the calibration.
// Errors: InvalidInput when model or data cannot be read.
Calibration Calibrate(Context& context, Backend& backend, const std::filesystem::path& model_dir,
                      const DecoderConfig& config, const std::string& data, std::int64_t max_tokens,
                      const ProgressFn& progress);

}  // namespace qlora

#endif  // QLORA_CONVERT_CALIBRATION_H_
