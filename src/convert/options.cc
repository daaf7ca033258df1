#include "qlora/convert.h"

namespace qlora {

void QuantizeCheckpointOptions::Declare(OptionTable& table) {
  table.Section("Quantization");
  table.AddPath("model_name_or_path", &model_name_or_path,
                "Hugging Face directory, or org/name in the local cache", {"base_model", "model"});
  table.AddPath("output_dir", &output_dir, "directory of the new checkpoint", {"output"});
  table.Add("overwrite_output_dir", &overwrite_output_dir, "replace what output_dir holds",
            {"overwrite"});
  quantization.Declare(table);
  table.AddPath(
      "calibration_data", &calibration_data,
      "text whose activations weigh the columns in the scale search, which it switches on");
  table.Add("calibration_tokens", &calibration_tokens,
            "tokens of calibration_data to read at most");
  table.Choice("bnb_rule", &bnb_rule, {"cpu", "cuda"},
               "which of bitsandbytes' encoders to equal where they differ (ties)");
  table.Add("dequantize", &dequantize, "the inverse: a 4-bit checkpoint becomes a 16-bit one");
}

void ExportOptions::Declare(OptionTable& table) {
  table.Section("Export");
  table.AddPath("model_name_or_path", &model_name_or_path,
                "Hugging Face directory, or org/name in the local cache", {"base_model", "model"});
  table.AddPath("adapter", &adapter, "PEFT adapter directory",
                {"adapter_name_or_path", "lora_model_dir"});
  table.AddPath("output", &output, "file to write (gguf, gguf-adapter) or directory (hf)",
                {"outfile", "output_dir"});
  table.Add("overwrite", &overwrite, "replace what is there", {"overwrite_output_dir"});
  table.Choice("format", &format, {"gguf", "gguf-adapter", "hf"}, "what to write");
  table.Choice("outtype", &outtype, {"f32", "f16", "bf16", "q8_0"}, "type of the weights").hint =
      "for Q4_K_M and other types, export f16 and run llama-quantize on the file";
  table.Choice("merge_base", &merge_base, {"auto", "nf4", "original"},
               "merge the adapter into the 4-bit weights it was trained on, or the 16-bit ones");
  table.Add("verify", &verify, "read the file back and compare log-probabilities");
}

}  // namespace qlora
