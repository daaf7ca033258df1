// `qlora quantize`: a checkpoint in 4 bits, tensor by tensor, and a report of the errors. In JSON,
// a table puts the size into relation: the same form for the published LLaMA models.
#include "qlora/quantize.h"

#include <fmt/format.h>

#include "command/common.h"
#include "io/json.h"
#include "qlora/context.h"
#include "qlora/options.h"
#include "terminal/memory_table.h"
#include "terminal/progress.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

OrderedJson ToJson(const ModelMemory& memory) {
  return {{"linear_bytes", memory.linear_bytes},
          {"total_bytes", memory.total_bytes},
          {"ratio_to_fp16", memory.ratio()}};
}

void PrintReport(std::ostream& out, const QuantizeReport& report) {
  out << fmt::format("{:<16} {:>8} {:>14} {:>12} {:>10} {:>12}\n", "tensors of", "count", "values",
                     "rmse", "relative", "max error");
  // A row for each kind of linear: down_proj usually has the largest errors.
  for (const QuantizeError& kind : report.kinds) {
    out << fmt::format("{:<16} {:>8} {:>14} {:>12.4e} {:>10.5f} {:>12.4e}\n", kind.kind,
                       kind.tensors, kind.values, kind.rmse, kind.relative_rmse, kind.max_error);
  }
  out << fmt::format(
      "quantized weights  {} at {:.4f} bits per weight\nother weights      {}\n"
      "in 16 bits         {}, {:.2f} times as much\nin 32 bits         {}, {:.2f} times as much\n",
      FormatBytes(report.quantized_bytes), report.bits_per_weight, FormatBytes(report.other_bytes),
      FormatBytes(report.fp16_bytes), report.ratio_to_fp16, FormatBytes(report.fp32_bytes),
      report.ratio_to_fp32);
  // Fewer than asked for, where the text is short.
  if (report.calibration_tokens > 0) {
    out << fmt::format("calibrated on      {} tokens\n", report.calibration_tokens);
  }
  out << fmt::format("{:.1f} s, peak memory {}\n", report.seconds,
                     FormatBytes(report.peak_memory_bytes));
}

OrderedJson ToJson(const QuantizeReport& report, std::int64_t block_size) {
  OrderedJson kinds = OrderedJson::array();
  for (const QuantizeError& kind : report.kinds) {
    kinds.push_back({{"kind", kind.kind},
                     {"tensors", kind.tensors},
                     {"values", kind.values},
                     {"rmse", kind.rmse},
                     {"relative_rmse", kind.relative_rmse},
                     {"max_error", kind.max_error}});
  }
  OrderedJson table = OrderedJson::array();
  for (const auto& [single, twice] : MemoryTable(block_size)) {
    table.push_back({{"model", single.name},
                     {"parameters", single.parameters},
                     {"linear_parameters", single.linear_parameters},
                     {"fp16_bytes", single.fp16_bytes},
                     {"fp32_bytes", single.fp32_bytes},
                     {"single_quant", ToJson(single)},
                     {"double_quant", ToJson(twice)}});
  }
  return {{"kinds", std::move(kinds)},
          {"quantized_values", report.quantized_values},
          {"quantized_bytes", report.quantized_bytes},
          {"other_bytes", report.other_bytes},
          {"bits_per_weight", report.bits_per_weight},
          {"fp16_bytes", report.fp16_bytes},
          {"fp32_bytes", report.fp32_bytes},
          {"ratio_to_fp16", report.ratio_to_fp16},
          {"ratio_to_fp32", report.ratio_to_fp32},
          {"calibration_tokens", report.calibration_tokens},
          {"memory_table", std::move(table)},
          {"seconds", report.seconds},
          {"peak_memory_bytes", report.peak_memory_bytes}};
}

class QuantizeVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "quantize",
        .summary = "write a 4-bit checkpoint that bitsandbytes and transformers read",
        .explanation =
            "Quantizes the linear layers of the transformer blocks to NF4 (or FP4), tensor by "
            "tensor, so that memory holds about one tensor at a time, and prints size and error "
            "for each kind of tensor. With calibration_data the 16-bit model reads a text first, "
            "which weights errors by how much they change the outputs of the layers. Of a GGUF "
            "file "
            "it makes the whole checkpoint; blocks are rounded a second time. Optional for "
            "training: `train` quantizes while it loads, but starts faster from a quantized "
            "checkpoint.",
        .examples = {"qlora quantize ./my-model ./my-model-nf4",
                     "qlora quantize ./my-model ./my-model-nf4 --calibration-data text.txt",
                     "qlora quantize my-model.gguf ./my-model-nf4",
                     "qlora quantize ./my-model-nf4 ./my-model-16bit --dequantize"},
        .positionals = {"model_name_or_path", "output_dir"},
        .required = {"model_name_or_path", "output_dir"},
        .writes = true,
    };
  }

  void Declare(OptionTable& table) override {
    options_.Declare(table);
    run_.Declare(table);
  }

  int Run(const Console& console) override {
    Context context(run_.ThreadCount());
    // Filled in by the job, which only reports progress.
    QuantizeReport report;
    RunWithProgress(console, "quantizing", [&](const ProgressFn& progress) {
      report = QuantizeCheckpoint(context, options_, progress);
    });
    for (const std::string& note : report.notes) Say(console, "note: " + note);
    if (run_.json) {
      PrintJson(console.out, ToJson(report, options_.quantization.bnb_4bit_blocksize));
    } else {
      PrintReport(console.out, report);
    }
    // No kind was measured, because no weight was quantized here.
    if (report.kinds.empty() && !options_.dequantize) {
      console.err << "note: the linears were in 4 bits already and were copied as they are\n";
    }
    // Last: whoever looks at the end of the output finds the folder.
    console.err << fmt::format("written to {}\n", options_.output_dir);
    return 0;
  }

 private:
  QuantizeCheckpointOptions options_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeQuantizeVerb() { return std::make_unique<QuantizeVerb>(); }

}  // namespace qlora
