// The options of `export` for tables of options.
#include "base/text.h"
#include "export/gguf/gguf_mix.h"
#include "model/shared_options.h"
#include "qlora/export.h"

namespace qlora {

// The names follow llama.cpp's converter (outfile, outtype).
void ExportOptions::Declare(OptionTable& table) {
  table.Section("Export");
  DeclareModelPath(table, &model_name_or_path);
  DeclareAdapters(table, &adapter, &adapter_rank, "to merge or to convert");
  table.AddPath("output", &output, "file to write (gguf, gguf-adapter) or directory (others)",
                {"outfile", "output_dir"});
  table.Add("overwrite", &overwrite, "replace an existing output", {"overwrite_output_dir"});
  table.Choice("format", &format,
               {"gguf", "hf", "gguf-adapter", "peft-adapter", "mlx-adapter", "auto"},
               "gguf: one file for llama.cpp; hf: a merged checkpoint; the adapter alone, for: "
               "gguf-adapter: llama.cpp; peft-adapter: PEFT; mlx-adapter: mlx-lm; auto: "
               "gguf-adapter for an adapter of a GGUF file, otherwise gguf");
  std::vector<std::string> outtypes;
  for (const GgufFileType& file : GgufFileTypes()) outtypes.push_back(LowerCase(file.name));
  outtypes.insert(outtypes.end(), {"mxfp4", "auto"});
  Option& type = table.Choice("outtype", &outtype, std::move(outtypes),
                              "type of the weights in the file; auto: as the model is stored; "
                              "peft-adapter, mlx-adapter: f32 where none is given");
  type.any_case = true;
  type.hint = "for IQ1, IQ2, IQ3 and other types, export f16 and run llama-quantize on the file";
  table.AddPath("imatrix", &imatrix,
                "importance of the weights for types of few bits: a file of llama.cpp (.gguf, "
                ".dat), or a text or data to compute it from");
  table.Add("imatrix_tokens", &imatrix_tokens, "tokens of that text, at most");
  table.AddPath("write_imatrix", &write_imatrix, "GGUF file for the importance matrix");
  table.Add("modelfile", &modelfile, "write a Modelfile for Ollama beside the GGUF file");
  table.Add("force", &force,
            "write the file also where rounding undoes more than 30 % of the adapter");
  table.Choice(
      "merge_base", &merge_base, {"auto", "nf4", "original"},
      "weights that the adapter is merged into: nf4: the dequantized 4-bit weights; original: the "
      "16-bit weights; auto: those that it was trained on, and for files of fewer than 8 bits the "
      "16-bit weights, where the model has them");
  table.Choice("verify", &verify, {"auto", "true", "false"},
               "read the output back and compare what it computes with the source; auto: models "
               "below 1 GB");
  table.AddPath("verify_text", &verify_text,
                "text file to compare and measure the perplexity on, instead of a built-in text");
  table.AddPath(
      "decision_template", &decision_template,
      "gguf, hf: makes the model decide with these prompts: plain, chat, or a Jinja file; "
      "default: those of the adapter");
  table.Add("decision_temperature", &decision_temperature,
            "temperatures of the answers, as noul=1.2,choice=0.9; default: those of the adapter");
  DeclareDevice(table, &device);
}

void ExportOptions::Complete(OptionTable& table) {
  if (table.Find("outtype")->set) return;
  if (format == "peft-adapter" || format == "mlx-adapter") outtype = "f32";
}

}  // namespace qlora
