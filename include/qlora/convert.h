// Checkpoints from one format to another: quantize and export.
#ifndef QLORA_CONVERT_H_
#define QLORA_CONVERT_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/nf4_compat.h"
#include "qlora/options.h"
#include "qlora/quantization.h"

namespace qlora {

struct QuantizeCheckpointOptions {
  std::string model_name_or_path;  // a Hugging Face directory with 16- or 32-bit weights
  std::string output_dir;
  bool overwrite_output_dir = false;
  QuantizationFields quantization;
  // A text (any format that `train` reads): the scale search then weighs the error of each column
  // of a weight by the mean square of the activations that meet it in the 16-bit model.
  std::string calibration_data;
  std::int64_t calibration_tokens = 65536;  // at most this many are read
  std::string bnb_rule = "cpu";             // which of bitsandbytes' two encoders to equal at ties
  bool dequantize = false;                  // the inverse: 4-bit checkpoint -> 16-bit checkpoint
  std::string device = "auto";              // cpu, cuda
  std::map<std::string, std::string>
      extra_files;  // name -> text, written in the folder of the weights

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
};

using ProgressFn = std::function<void(std::int64_t done, std::int64_t total)>;

// Streams tensor by tensor: peak memory is about one tensor. Nothing appears in output_dir unless
// all of it does.
QuantizeReport QuantizeCheckpoint(Context& context, const QuantizeCheckpointOptions& options,
                                  const ProgressFn& progress = {});

struct ExportOptions {
  std::string model_name_or_path;
  std::string adapter;  // empty: the base alone (not for gguf-adapter)
  std::string output;   // a file for GGUF, a directory otherwise
  bool overwrite = false;
  std::string format = "gguf";  // gguf, gguf-adapter, hf
  std::string outtype = "f16";  // f32, f16, bf16, q8_0; hf: f32, f16, bf16
  // The base that the adapter is merged into: nf4, original, or auto: the form that the adapter was
  // trained on; original without an adapter.
  std::string merge_base = "auto";
  bool verify = false;          // compare logits of the source and of the written file
  std::string device = "auto";  // cpu, cuda
  // Called once the result is in place, before it is verified.
  std::function<void()> on_written;

  void Declare(OptionTable& table);
};

struct ExportReport {
  std::vector<std::string> files;
  std::size_t bytes = 0;
  std::string merge_base;  // what was merged into, or "" without a merge
  // verify: over a few prompts, between the model as trained and the written file.
  double mean_logprob_difference = 0;
  double max_logprob_difference = 0;
  bool verified = false;
  double seconds = 0;
};

ExportReport Export(Context& context, const ExportOptions& options,
                    const ProgressFn& progress = {});

// A 4-bit matrix and its name in a file.
struct NamedMatrix {
  std::string name;
  compat::Matrix matrix;
};

// Writes matrices, decoded, to one GGUF file without a model's keys, for programs that read tensors
// by name; `Export` writes models. outtype: as in ExportOptions. A file at `path` is replaced.
// Errors: InvalidInput for names that GGUF cannot hold, values beyond outtype; Runtime.
void ExportGguf(std::span<const NamedMatrix> tensors, const std::filesystem::path& path,
                const std::string& outtype = "f16");

}  // namespace qlora

#endif  // QLORA_CONVERT_H_
