#include "qlora/model.h"

namespace qlora {

void QuantizationFields::Declare(OptionTable& table) {
  table.Choice("bnb_4bit_quant_type", &bnb_4bit_quant_type, {"nf4", "fp4"}, "4-bit codebook",
               {"quant_type"});
  table.Add("bnb_4bit_use_double_quant", &bnb_4bit_use_double_quant,
            "quantize the scales too (4.13 instead of 4.5 bits per weight)",
            {"use_double_quant", "double_quantization", "use_bnb_nested_quant"});
  table.Add("bnb_4bit_blocksize", &bnb_4bit_blocksize, "weights that share a scale",
            {"blocksize", "block_size"});
  table.Add("scale_search", &scale_search,
            "pick each scale for the least squared error (same format, less error)");
}

void ModelOptions::Declare(OptionTable& table) {
  table.Section("Model");
  table.AddPath("model_name_or_path", &model_name_or_path,
                "Hugging Face directory, or org/name in the local cache", {"base_model", "model"});
  table.AddPath("adapter", &adapter, "PEFT adapter directory to apply",
                {"adapter_name_or_path", "lora_model_dir"});
  table.Choice("load_in_4bit", &load_in_4bit, {"auto", "true", "false"},
               "hold the linears of the blocks in 4 bits; auto: as when the adapter was trained");
  quantization.Declare(table);
  table.Choice("compute_dtype", &compute_dtype, {"auto", "float32", "bfloat16"},
               "operands of matrix products; auto: bfloat16 where that is fastest",
               {"bnb_4bit_compute_dtype"});
  chat.Declare(table);
}

void GenerateOptions::Declare(OptionTable& table) {
  table.Section("Generation");
  table.Add("max_new_tokens", &max_new_tokens, "tokens to write at most");
  table.Add(
      "do_sample", &do_sample,
      "draw tokens at random, as does giving temperature, top_k, top_p or min_p; false: always "
      "the most likely one");
  table.Add("temperature", &temperature, "below 1: more likely text; above 1: more varied text");
  table.Add("top_k", &top_k, "draw among the k most likely tokens; 0: all");
  table.Add("top_p", &top_p, "draw among the likeliest tokens that make up this probability");
  table.Add("min_p", &min_p,
            "draw among tokens at least this many times as likely as the likeliest; 0: all");
  table.Add("repetition_penalty", &repetition_penalty,
            "above 1: tokens that stand in the prompt or the answer get less likely");
  table.Add("seed", &seed, "of the draws");
}

void EvalOptions::Declare(OptionTable& table) {
  table.Section("Data");
  table.AddPath("dataset", &dataset, "files to read, comma-separated", {"datasets", "data"});
  reading.Declare(table);
  table.Add("per_token", &per_token, "report the log-probability of every counted token");
}

}  // namespace qlora
