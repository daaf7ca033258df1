// `qlora export`: an adapter or a merged model in another program's format. Standard output gets
// the path of the output alone; the bases, the adapter and the difference of the result are
// reported on standard error, or in the object of --json.
#include "qlora/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "checkpoint/run_info.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "hub/hub_adapter.h"
#include "hub/hub_cache.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "io/peft/adapter_source.h"
#include "qlora/context.h"
#include "qlora/options.h"
#include "terminal/interrupt.h"
#include "terminal/progress.h"
#include "training/generate_command.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

// A prompt of the data that the first adapter was trained on, where its folder holds the run.
PromptExample ExampleOf(const std::vector<std::string>& adapters) {
  if (adapters.empty()) return {};
  try {
    return RecordedExample(ResolveAdapterDir(ParseAdapterSource(adapters.front()).path));
  } catch (const Error&) {  // the export is done; a damaged record of the run is no part of it
    return {};
  }
}

OrderedJson JsonOf(const ExportReport& report) {
  OrderedJson json = {{"files", report.files},           {"bytes", report.bytes},
                      {"format", report.format},         {"outtype", report.outtype},
                      {"merge_base", report.merge_base}, {"verified", report.verified},
                      {"seconds", report.seconds}};
  // The keys are absent without a verification: 0 would read like a perfect result.
  if (report.verified) {
    json["mean_logprob_difference"] = report.mean_logprob_difference;
    json["max_logprob_difference"] = report.max_logprob_difference;
    json["mean_kl_divergence"] = report.verification.mean_kl_divergence;
    json["max_kl_divergence"] = report.verification.max_kl_divergence;
    json["top1_agreement"] = report.verification.top1_agreement;
    json["source_perplexity"] = report.verification.source_perplexity;
    json["perplexity"] = report.verification.perplexity;
  }
  if (report.kept_change) {
    json["kept_change"] = *report.kept_change;
    for (const KeptShare& tensor : report.kept_by_tensor) {
      json["kept_by_tensor"][tensor.tensor] = tensor.share;
    }
  }
  if (!report.notes.empty()) json["notes"] = report.notes;
  return json;
}

class ExportVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "export",
        .summary = "write a GGUF for llama.cpp, a merged checkpoint, or an adapter alone",
        .explanation =
            "--format gguf writes one file for llama.cpp, with the adapter merged in; hf writes a "
            "Hugging Face directory with the adapter merged in, also of a GGUF file. gguf-adapter, "
            "peft-adapter and "
            "mlx-adapter write the adapter alone for llama.cpp, PEFT and mlx-lm, whichever of them "
            "it is from; gguf-adapter is the default for an adapter of a GGUF file. Several "
            "adapters, --adapter a:0.7 --adapter b:0.3, become their weighted sum. The adapter is "
            "merged into what it was "
            "trained on unless --merge_base says otherwise. --verify, "
            "the default below 1 GB, reads the result back as any model and compares what it "
            "computes with the source, on --verify_text or a built-in text: the exit code is 1 "
            "where they differ by more than the type explains. The figures are in a file beside "
            "the "
            "result, NAME.export_report.json, or export_report.json in a folder.",
        .examples = {"qlora export ./my-model my-model.gguf --adapter my-adapter --verify",
                     "qlora export ./my-model my-adapter.gguf --adapter my-adapter --format "
                     "gguf-adapter",
                     "qlora export my-model.gguf ./my-model --format hf --outtype bf16",
                     "qlora export ./my-model both --adapter a:0.7 --adapter b:0.3 --format "
                     "peft-adapter"},
        .positionals = {"model_name_or_path", "output"},
        .required = {"model_name_or_path", "output"},
        .writes = true,
    };
  }

  void Declare(OptionTable& table) override {
    options_.Declare(table);
    run_.Declare(table);
    table_ = &table;
  }

  int Run(const Console& console) override {
    options_.Complete(*table_);
    // An adapter that is merged into another model gives a file that loads and talks nonsense.
    NoteOtherBase(options_.model_name_or_path, options_.adapter, console);
    Context context(run_.ThreadCount());
    ExportReport report;
    bool written = false;
    // Tells the two halves apart: before, a signal leaves nothing; afterwards the file is complete.
    options_.on_written = [&] { written = true; };
    try {
      RunWithProgress(console, "exporting", [&](const ProgressFn& progress) {
        report = Export(context, options_, progress);
      });
    } catch (const Interrupted&) {
      // Main then reports that nothing was changed.
      if (!written) throw;
      throw Interrupted{
          fmt::format("{} is complete, but was not verified", ShellQuote(options_.output))};
    }
    for (const std::string& note : report.notes) Say(console, "note: " + note);
    if (run_.json) {
      PrintJson(console.out, JsonOf(report));
    } else {
      SayWritten(report, console);
    }
    return 0;
  }

 private:
  void SayWritten(const ExportReport& report, const Console& console) const {
    console.out << options_.output << '\n';
    Say(console, fmt::format("{} written in {:.1f} s", FormatBytes(report.bytes), report.seconds));
    if (!report.merge_base.empty()) {
      Say(console, fmt::format("adapter merged into the {} weights",
                               report.merge_base == "nf4"      ? "dequantized 4-bit"
                               : report.merge_base == "blocks" ? "file's dequantized"
                                                               : "original"));
    }
    if (options_.format == "auto" && report.format == "gguf-adapter") {
      Say(console, fmt::format("the adapter alone, for llama.cpp beside {} (--lora); --format gguf "
                               "merges it in",
                               options_.model_name_or_path));
    }
    if (report.kept_change) {
      const auto least = std::ranges::min_element(report.kept_by_tensor, {}, &KeptShare::share);
      Say(console, fmt::format("rounding keeps {:.1f} % of the adapter's change, {:.1f} % in {}",
                               100 * *report.kept_change, 100 * least->share, least->tensor));
    }
    if (options_.format == "hf") {
      // The usual next step is to look at the result.
      Say(console, options_.adapter.empty()
                       ? "qlora quantizes this checkpoint to 4 bits when loading it; use "
                         "--load_in_4bit false to load it unchanged"
                       : "qlora loads this checkpoint unchanged; use --load_in_4bit true to "
                         "quantize it to 4 bits");
    }
    if (report.verified) SayVerified(report.verification, report.outtype, console);
    if (options_.format == "hf") {
      console.err << "to try it: "
                  << GenerateCommand(options_.output, "", ExampleOf(options_.adapter)) << '\n';
    }
    if (report.format.starts_with("gguf")) {
      console.err << "to run it: " << RunCommand(report) << '\n';
    }
  }

  // With Ollama where there is a Modelfile, otherwise with llama.cpp.
  std::string RunCommand(const ExportReport& report) const {
    namespace fs = std::filesystem;
    if (options_.modelfile) {
      const std::string name = ShellQuote(LowerCase(fs::path(options_.output).stem().string()));
      return fmt::format("ollama create {} -f {} && ollama run {}", name,
                         ShellQuote(report.files.back()), name);
    }
    if (report.format == "gguf") return "llama-cli -m " + ShellQuote(options_.output);
    // The adapter of a checkpoint goes with a GGUF file of it.
    const auto base = FindGguf(ResolveModelDir(options_.model_name_or_path));
    std::string command =
        fmt::format("llama-cli -m {} --lora {}", base ? ShellQuote(base->string()) : "MODEL.gguf",
                    ShellQuote(options_.output));
    if (!report.chat_template.empty()) {
      // --jinja comes first: without it, older versions take known templates alone.
      command += " --jinja --chat-template-file " + ShellQuote(report.chat_template);
    }
    return command;
  }

  void SayVerified(const VerifyReport& report, const std::string& outtype,
                   const Console& console) const {
    Say(console,
        fmt::format("verified: as close as {} allows; log-probabilities differ from the source by "
                    "{:.2e} on average, {:.2e} at most",
                    outtype, report.mean_logprob_difference, report.max_logprob_difference));
    Say(console, fmt::format("KL divergence {:.2e} on average, {:.2e} at most; the most probable "
                             "token is the same in {:.1f} % of the places",
                             report.mean_kl_divergence, report.max_kl_divergence,
                             100 * report.top1_agreement));
    if (report.text_tokens == 0) return;
    const bool is_own = !options_.verify_text.empty();
    Say(console, fmt::format("perplexity {:.4g} of the source, {:.4g} of the output, on {} of {}",
                             report.source_perplexity, report.perplexity,
                             Counted(report.text_tokens, "token"),
                             is_own ? options_.verify_text : "a built-in text"));
    // Of a text that reads like those of training it is below 100.
    constexpr double kStrange = 1000;
    if (is_own || report.source_perplexity < kStrange) return;
    Say(console,
        "(a text of another kind than the model's, so high for both; --verify-text FILE takes "
        "yours)");
  }

  ExportOptions options_;
  OptionTable* table_ = nullptr;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeExportVerb() { return std::make_unique<ExportVerb>(); }

}  // namespace qlora
