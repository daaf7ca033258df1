// Names come from transformers (GenerationConfig, BitsAndBytesConfig) and PEFT, aliases from TRL,
// Axolotl and LLaMA-Factory, so that their users need not learn new ones.
#include "qlora/model_options.h"

#include "model/shared_options.h"

namespace qlora {

// --help shows the options of a table in this order.
void ModelOptions::Declare(OptionTable& table) {
  table.Section("Model");
  DeclareModelPath(table, &model_name_or_path);
  DeclareAdapters(table, &adapter, &adapter_rank, "to apply");
  table.Choice("load_in_4bit", &load_in_4bit, {"auto", "true", "false"},
               "load the linear layers in 4 bits; auto: as the adapter was trained, else true");
  quantization.Declare(table);
  DeclareComputeType(table, &compute_dtype);
  DeclareDevice(table, &device);
  chat.Declare(table);
}

void GenerateOptions::Declare(OptionTable& table) {
  table.Section("Generation");
  table.Add("max_new_tokens", &max_new_tokens, "maximum number of tokens to generate");
  table.Add(
      "do_sample", &do_sample,
      "sample tokens at random; implied by temperature, top_k, top_p and min_p; false: always take "
      "the most likely token");
  table.Add(
      "temperature", &temperature,
      "divides the logits before sampling; below 1: more likely text; above 1: more varied text");
  table.Add("top_k", &top_k, "sample among the k most likely tokens; 0: among all");
  table.Add(
      "top_p", &top_p,
      "sample among the most likely tokens whose probabilities add up to top_p; 1: among all");
  table.Add(
      "min_p", &min_p,
      "sample among tokens at least min_p times as likely as the most likely token; 0: among all");
  table.Add("repetition_penalty", &repetition_penalty,
            "above 1: makes tokens of the prompt and of the answer less likely; 1: no penalty");
  table.Add("seed", &seed, "random seed of the sampling");
  table.Add("stop", &stop,
            "text that ends the answer and is not shown; $'\\n' is a line break in most shells");
}

void EvalOptions::Declare(OptionTable& table) {
  table.Section("Data");
  table.AddPath("dataset", &dataset, "files to evaluate, separated by commas",
                {"datasets", "data"});
  reading.Declare(table);
  reading.decision.Declare(table);
  table.Add("raw", &raw, "use the base model's prompt layout instead of the adapter's");
  table.Add("per_token", &per_token, "report the log-probability of every evaluated token");
}

}  // namespace qlora
