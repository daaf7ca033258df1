#include <fmt/format.h>

#include "common.h"
#include "interrupt.h"
#include "qlora/convert.h"
#include "verbs.h"

namespace qlora {
namespace {

void PrintReport(std::ostream& out, const QuantizeReport& report) {
  out << fmt::format("{:<16} {:>8} {:>14} {:>12} {:>10} {:>12}\n", "tensors of", "count", "values",
                     "rmse", "relative", "max error");
  for (const QuantizeError& kind : report.kinds) {
    out << fmt::format("{:<16} {:>8} {:>14} {:>12.4e} {:>10.5f} {:>12.4e}\n", kind.kind,
                       kind.tensors, kind.values, kind.rmse, kind.relative_rmse, kind.max_error);
  }
  out << fmt::format(
      "quantized weights  {} at {:.4f} bits per weight\nother weights      {}\n"
      "in 16 bits         {}\nin 32 bits         {}\n"
      "{:.1f} s, peak memory {}\n",
      FormatBytes(report.quantized_bytes), report.bits_per_weight, FormatBytes(report.other_bytes),
      FormatBytes(report.fp16_bytes), FormatBytes(report.fp32_bytes), report.seconds,
      FormatBytes(report.peak_memory_bytes));
}

Json ToJson(const QuantizeReport& report) {
  Json kinds = Json::array();
  for (const QuantizeError& kind : report.kinds) {
    kinds.push_back({{"kind", kind.kind},
                     {"tensors", kind.tensors},
                     {"values", kind.values},
                     {"rmse", kind.rmse},
                     {"relative_rmse", kind.relative_rmse},
                     {"max_error", kind.max_error}});
  }
  return {{"kinds", std::move(kinds)},
          {"quantized_values", report.quantized_values},
          {"quantized_bytes", report.quantized_bytes},
          {"other_bytes", report.other_bytes},
          {"bits_per_weight", report.bits_per_weight},
          {"fp16_bytes", report.fp16_bytes},
          {"fp32_bytes", report.fp32_bytes},
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
            "Quantizes the linears of the blocks to NF4 (or FP4), tensor by tensor, so that memory "
            "holds about one tensor at a time, and prints size and error for each kind of tensor. "
            "Training needs no such step, as `train` quantizes while it loads, but starts faster "
            "from a quantized checkpoint.",
        .examples = {"qlora quantize ./my-model ./my-model-nf4",
                     "qlora quantize ./my-model-nf4 ./my-model-16bit --dequantize"},
        .positionals = {"model_name_or_path", "output_dir"},
        .required = {"model_name_or_path", "output_dir"},
    };
  }

  void Declare(OptionTable& table) override {
    options_.Declare(table);
    table.Section("Run");
    run_.DeclareThreads(table);
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    Context context(run_.ThreadCount());
    QuantizeReport report;
    {
      InterruptGuard guard;
      StatusLine line(console.err, console.style);
      report = QuantizeCheckpoint(context, options_, [&](std::int64_t done, std::int64_t total) {
        guard.ThrowIfRequested();
        ShowProgress(line, "quantizing", done, total);
      });
    }
    if (run_.json) {
      PrintJson(console.out, ToJson(report));
    } else {
      PrintReport(console.out, report);
    }
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
