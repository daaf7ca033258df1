// The options of a model: how it is held, generates text and is evaluated.
#ifndef QLORA_MODEL_OPTIONS_H_
#define QLORA_MODEL_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/chat.h"
#include "qlora/data.h"
#include "qlora/options.h"
#include "qlora/preference_options.h"
#include "qlora/quantization.h"

namespace qlora {

// Which model, and in which form it is held.
struct ModelOptions {
  std::string model_name_or_path;  // a Hugging Face directory
  // Folders of PEFT or mlx-lm, GGUF adapters, or names of the hub, each as PATH or PATH:WEIGHT:
  // their weighted sum is applied. Empty: the base alone.
  std::vector<std::string> adapter;
  std::int64_t adapter_rank = 0;  // of the sum; 0: the sum of the ranks, which is exact
  // Without an adapter: the folder of one in whose template questions are asked; no option.
  std::string decides_as;
  // true: the linears of the blocks are held in 4 bits; false: as the checkpoint has them; auto: as
  // they were when the adapter was trained, 4 bits without an adapter.
  std::string load_in_4bit = "auto";
  QuantizationFields quantization;
  // bfloat16 where its products are fastest, otherwise float32; never int8
  std::string compute_dtype = "auto";
  std::string device = "auto";  // or "cpu", which is the same
  // Empty: the template, variables and date that the adapter was trained with, otherwise the
  // checkpoint's own.
  ChatFields chat;
  // For generating: copies weights into memory of this process, 4-bit ones in the order in which
  // products with few rows read them fastest, if less than half of the available memory holds the
  // model and the copies. Loading takes a little longer, every token less.
  bool copy_weights = false;

  void Declare(OptionTable& table);
};

struct GenerateOptions {
  std::int64_t max_new_tokens = 256;
  bool do_sample = false;
  double temperature = 1;
  std::int64_t top_k = 0;  // 0: off
  double top_p = 1;
  double min_p = 0;               // of the most likely token's probability; 0: off
  double repetition_penalty = 1;  // as Hugging Face defines it; 1: no penalty
  std::int64_t seed = 42;
  std::string stop;  // a text that ends the answer and is not a part of it; "": none

  void Declare(OptionTable& table);
};

struct EvalOptions {
  std::vector<std::string> dataset;  // any format that `train` reads
  ReadingFields reading;
  // Lay the records out as if the adapter had not recorded the layout of its data.
  bool raw = false;
  bool per_token = false;        // keep the log-probability of every supervised token
  bool without_adapter = false;  // evaluate the base alone
  // The answers to questions are kept as a file: other data are refused before they are evaluated.
  bool keeps_predictions = false;
  // Of records that ask questions. required_template: Jinja; another template of their prompts is
  // refused before they are asked; "": any.
  std::string required_template;
  // all: average over all cyclic orders of the options of a choice.
  std::string permutations = "none";
  std::int64_t ece_bins = 15;        // of the calibration error
  std::string decision_temperature;  // noul=1.2,choice=0.9; "": those of the model
  // Of preferences, as training has them.
  PreferenceFields preference;
  double label_smoothing_factor = 0;
  std::string reference = "base";  // without the adapter; the folder of another one; or none

  void Declare(OptionTable& table);
  // Before a model is loaded. Errors: InvalidInput for bins, temperatures and losses that do not
  // exist, and for options that the loss, or an evaluation, does not use.
  void Check() const;
};

}  // namespace qlora

#endif  // QLORA_MODEL_OPTIONS_H_
