// Options of `quantize` and `export`. Quantization has the names of training, so that one YAML file
// serves both; export has those of llama.cpp's converter (outfile, outtype).
#include "model/options.h"

#include "qlora/convert.h"

namespace qlora {

void QuantizeCheckpointOptions::Declare(OptionTable& table) {
  table.Section("Quantization");
  DeclareModelPath(table, &model_name_or_path);
  table.AddPath("output_dir", &output_dir, "directory of the new checkpoint", {"output"});
  table.Add("overwrite_output_dir", &overwrite_output_dir, "replace the checkpoint in output_dir",
            {"overwrite"});
  // The options of load_in_4bit, under the same names as in training.
  quantization.Declare(table);
  table.AddPath("calibration_data", &calibration_data,
                "text file; enables scale_search, weighted by activations on this text");
  table.Add("calibration_tokens", &calibration_tokens,
            "maximum number of tokens to read from calibration_data");
  table.Choice(
      "bnb_rule", &bnb_rule, {"cpu", "cuda"},
      "tie-breaking rule: that of bitsandbytes on this device, where two values are equally near");
  table.Add("dequantize", &dequantize, "convert a 4-bit checkpoint back into a 16-bit one");
  DeclareDevice(table, &device);
}

void ExportOptions::Declare(OptionTable& table) {
  table.Section("Export");
  DeclareModelPath(table, &model_name_or_path);
  table.AddPath("adapter", &adapter, "PEFT adapter directory to merge, or to convert",
                // The names of LLaMA-Factory and Axolotl, so that their files can be given as they
                // are.
                {"adapter_name_or_path", "lora_model_dir"});
  table.AddPath("output", &output, "file to write (gguf, gguf-adapter) or directory (hf)",
                {"outfile", "output_dir"});
  table.Add("overwrite", &overwrite, "replace an existing output", {"overwrite_output_dir"});
  table.Choice(
      "format", &format, {"gguf", "gguf-adapter", "hf"},
      "gguf: one file for llama.cpp; gguf-adapter: the adapter alone; hf: a merged checkpoint");
  table
      .Choice("outtype", &outtype, {"f32", "f16", "bf16", "q8_0"},
              "element type of the weights in the GGUF file")
      // Types that are asked for often, but written by llama.cpp's own tool: the error says how.
      .hint = "for Q4_K_M and other types, export f16 and run llama-quantize on the file";
  table.Choice(
      "merge_base", &merge_base, {"auto", "nf4", "original"},
      "weights that the adapter is merged into: nf4: the dequantized 4-bit weights; original: the "
      "16-bit weights; auto: those that it was trained on");
  table.Add("verify", &verify,
            "read the output back and compare its log-probabilities with those of the source");
  DeclareDevice(table, &device);
}

}  // namespace qlora
