// Adapters and merged models for other programs: GGUF and Hugging Face checkpoints.
#ifndef QLORA_EXPORT_H_
#define QLORA_EXPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/options.h"

namespace qlora {

struct ExportOptions {
  std::string model_name_or_path;
  std::string adapter;  // empty: the base alone (not for gguf-adapter)
  std::string output;   // a file for GGUF, a directory otherwise
  bool overwrite = false;
  std::string format = "gguf";  // gguf, gguf-adapter, hf
  // The kind of a GGUF file by llama.cpp's names, in any case: f16, q8_0, q4_k_m ...; auto: as the
  // model is stored. hf: f32, f16, bf16; gguf-adapter: these and q8_0.
  std::string outtype = "f16";
  // For types of blocks: an importance matrix of llama.cpp (.gguf, .dat), or a text or data to make
  // one from.
  std::string imatrix;
  std::int64_t imatrix_tokens = 65536;  // of the text, at most
  std::string write_imatrix;            // a GGUF file for the importance matrix
  bool modelfile = false;               // also a Modelfile for Ollama in the folder of a GGUF model
  bool force = false;                   // also where rounding to blocks undoes much of the adapter
  // The base that the adapter is merged into: nf4, original, or auto: the form that the adapter was
  // trained on; original without an adapter.
  std::string merge_base = "auto";
  bool verify = false;          // compare logits of the source and of the written file
  std::string device = "auto";  // cpu, cuda
  // Called once the result is in place, before it is verified.
  std::function<void()> on_written;

  void Declare(OptionTable& table);
};

// How much of the adapter's change of a tensor is left after its rounding to blocks: 1 all, 0
// nothing.
struct KeptShare {
  std::string tensor;
  double share = 1;
};

struct ExportReport {
  std::vector<std::string> files;
  std::size_t bytes = 0;
  std::string merge_base;  // the base of the merge, or "" without a merge
  // verify: over a few prompts, between the model as trained and the written file.
  double mean_logprob_difference = 0;
  double max_logprob_difference = 0;
  bool verified = false;
  // Of an adapter that was merged into a file of blocks: in all, and by tensor.
  std::optional<double> kept_change = {};
  std::vector<KeptShare> kept_by_tensor = {};
  double seconds = 0;
  std::vector<std::string> notes = {};  // as Model::notes, and what the file lacks or has otherwise
};

ExportReport Export(Context& context, const ExportOptions& options,
                    const ProgressFn& progress = {});

}  // namespace qlora

#endif  // QLORA_EXPORT_H_
