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
  // As ModelOptions::adapter and adapter_rank; empty: the base alone (not to write an adapter).
  std::vector<std::string> adapter;
  std::int64_t adapter_rank = 0;
  std::string output;  // a file for GGUF, a directory otherwise
  bool overwrite = false;
  // A model: gguf, hf; the adapter alone: gguf-adapter, peft-adapter, mlx-adapter; auto:
  // gguf-adapter for an adapter of a GGUF file, otherwise gguf
  std::string format = "auto";
  // The kind of a GGUF file by llama.cpp's names, in any case: f16, q8_0, q4_k_m ...; auto: as the
  // model is stored. hf, peft-adapter, mlx-adapter: f32, f16, bf16; gguf-adapter: these and q8_0.
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
  // true, false, auto (models below 1 GB): read the output back as any model, and compare what it
  // computes with the source.
  std::string verify = "auto";
  std::string verify_text;  // a text file to compare on; "": a text that is built in
  // gguf, hf: the template and temperatures of a model that decides, as in DecideOptions; "": those
  // of the adapter or the model, if it has some.
  std::string decision_template;
  std::string decision_temperature;
  std::string device = "auto";  // or "cpu", which is the same
  // Called once the result is in place, before it is verified.
  std::function<void()> on_written;

  void Declare(OptionTable& table);
  // After the table was filled: adapters of PEFT and mlx-lm are float32 where no outtype is given.
  void Complete(OptionTable& table);
};

// How much of the adapter's change of a tensor is left after its rounding to blocks or bfloat16: 1
// all, 0 nothing.
struct KeptShare {
  std::string tensor;
  double share = 1;
};

// The written file against the model as trained, over a few random sequences and a text.
struct VerifyReport {
  double mean_logprob_difference = 0;  // |log p - log p'| of the tokens
  double max_logprob_difference = 0;
  double mean_kl_divergence = 0;  // KL(source || written) of the predictions
  double max_kl_divergence = 0;
  double top1_agreement = 0;  // share of predictions with one most probable token
  // Of the text; 0 where it has fewer than two tokens.
  std::int64_t text_tokens = 0;
  double source_perplexity = 0;
  double perplexity = 0;
  // The first token of the text that the tokenizer of the written file makes another of; -1: none.
  std::int64_t other_tokens_at = -1;
  // What is expected of the type of the written weights.
  double max_mean_difference = 0;
  double max_mean_kl = 0;

  bool passed() const {
    return mean_logprob_difference <= max_mean_difference && mean_kl_divergence <= max_mean_kl &&
           other_tokens_at < 0;  // false for NaN
  }
};

struct ExportReport {
  std::vector<std::string> files;
  std::size_t bytes = 0;
  std::string format;   // the written one: never auto
  std::string outtype;  // likewise; of blocks, the name of the mixture: q4_k_m
  // The base of the merge: nf4, original, or blocks, those of a GGUF file; "" without a merge.
  std::string merge_base;
  // Of gguf-adapter: the file of the chat template that llama.cpp needs beside the model, whose own
  // is another; "" where the model's does it.
  std::string chat_template = {};
  // Of the verification, whose report is also in a file: NAME.export_report.json beside the file
  // NAME, export_report.json in a folder.
  bool verified = false;
  double mean_logprob_difference = 0;
  double max_logprob_difference = 0;
  // Of an adapter that was merged into a GGUF file of blocks or bfloat16: in all, and by tensor.
  std::optional<double> kept_change = {};
  std::vector<KeptShare> kept_by_tensor = {};
  VerifyReport verification;
  double seconds = 0;
  std::vector<std::string> notes = {};  // as Model::notes, and what the file lacks or has otherwise
};

ExportReport Export(Context& context, const ExportOptions& options,
                    const ProgressFn& progress = {});

}  // namespace qlora

#endif  // QLORA_EXPORT_H_
