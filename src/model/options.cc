// Options of quantization, of a model that is loaded, and of what it then does. Names are those of
// transformers (GenerationConfig, BitsAndBytesConfig) and PEFT; aliases are those of TRL, Axolotl
// and LLaMA-Factory, so that their users need not learn new ones.
#include "model/options.h"

#include "backend/backend.h"
#include "qlora/model.h"

namespace qlora {

void DeclareModelPath(OptionTable& table, std::string* model_name_or_path) {
  table.AddPath("model_name_or_path", model_name_or_path,
                "Hugging Face directory, or org/name in the local cache", {"base_model", "model"});
}

void DeclareDevice(OptionTable& table, std::string* device) {
  table.Choice("device", device, DeviceNames(),
               "compute device; auto: cpu, because cuda is not verified on a GPU yet");
}

void DeclareComputeType(OptionTable& table, std::string* compute_dtype) {
  table.Choice("compute_dtype", compute_dtype, {"auto", "float32", "bfloat16"},
               "element type of matrix products; auto: bfloat16 where that is fastest",
               {"bnb_4bit_compute_dtype"});
}

// Shared by training, generation and conversion.
void QuantizationFields::Declare(OptionTable& table) {
  table.Choice("bnb_4bit_quant_type", &bnb_4bit_quant_type, {"nf4", "fp4"}, "4-bit codebook",
               {"quant_type"});
  table.Add("bnb_4bit_use_double_quant", &bnb_4bit_use_double_quant,
            "double quantization: quantize the scales too (4.13 instead of 4.5 bits per weight)",
            {"use_double_quant", "double_quantization", "use_bnb_nested_quant"});
  table.Add("bnb_4bit_blocksize", &bnb_4bit_blocksize, "number of weights that share a scale",
            {"blocksize", "block_size"});
  table.Add("scale_search", &scale_search,
            "choose each scale for the least squared error of its block (same format, less error)");
}

// The order within a table is that of --help.
void ModelOptions::Declare(OptionTable& table) {
  table.Section("Model");
  DeclareModelPath(table, &model_name_or_path);
  table.AddPath("adapter", &adapter, "PEFT adapter directory to apply",
                {"adapter_name_or_path", "lora_model_dir"});
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
  table.Add("raw", &raw, "use the base model's prompt layout instead of the adapter's");
  table.Add("per_token", &per_token, "report the log-probability of every evaluated token");
}

}  // namespace qlora
