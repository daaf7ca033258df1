// Checkpoints in 4 bits, made and undone.
#ifndef QLORA_QUANTIZE_H_
#define QLORA_QUANTIZE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/options.h"
#include "qlora/quantization.h"

namespace qlora {

struct QuantizeCheckpointOptions {
  std::string model_name_or_path;  // a Hugging Face directory, 16 or 32 bits, or a GGUF file
  std::string output_dir;
  bool overwrite_output_dir = false;
  QuantizationFields quantization;
  // A text (any format that `train` reads): the scale search then weighs the error of each column
  // of a weight by the mean square of the activations that meet it in the 16-bit model.
  std::string calibration_data;
  std::int64_t calibration_tokens = 65536;  // at most this many are read
  std::string bnb_rule = "cpu";             // which of bitsandbytes' two encoders to equal at ties
  // Also experts, which transformers 5 has in one parameter a layer and does not read in 4 bits.
  bool quantize_experts = false;
  bool dequantize = false;      // the inverse: 4-bit checkpoint -> 16-bit checkpoint
  std::string device = "auto";  // or "cpu", which is the same
  // Name -> text, written in the folder of the weights.
  std::map<std::string, std::string> extra_files;

  void Declare(OptionTable& table);
};

// Error of the tensors of one kind ("q_proj", "down_proj" ...).
struct QuantizeError {
  std::string kind;
  std::int64_t tensors = 0;
  std::int64_t values = 0;
  double rmse = 0;           // root mean square error
  double relative_rmse = 0;  // rmse / root mean square of the values
  double max_error = 0;
};

struct QuantizeReport {
  std::vector<QuantizeError> kinds;
  std::int64_t quantized_values = 0;
  std::size_t quantized_bytes = 0;  // QuantizedMatrix::bytes(), not the size in the file
  std::size_t other_bytes = 0;      // embeddings, head, norms, biases
  double bits_per_weight = 0;       // of the quantized linears
  std::size_t fp16_bytes = 0;       // of the whole model
  std::size_t fp32_bytes = 0;
  // How much less memory the model takes than with all weights in 16 or 32 bits.
  double ratio_to_fp16 = 0;
  double ratio_to_fp32 = 0;
  std::int64_t calibration_tokens = 0;  // that were read for the scale search
  double seconds = 0;
  std::size_t peak_memory_bytes = 0;
  std::vector<std::string> notes = {};  // remarks about the checkpoint
};

// Streams tensor by tensor: peak memory is about one tensor. Nothing appears in output_dir unless
// all of it does.
QuantizeReport QuantizeCheckpoint(Context& context, const QuantizeCheckpointOptions& options,
                                  const ProgressFn& progress = {});

}  // namespace qlora

#endif  // QLORA_QUANTIZE_H_
