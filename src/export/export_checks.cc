#include "export/export_checks.h"

#include "base/check.h"
#include "base/printable.h"
#include "export/gguf/export_gguf.h"
#include "export/gguf/gguf_mix.h"
#include "export/gguf/imatrix.h"

namespace qlora {
namespace {

// What keeps more of an adapter that was merged into this base.
std::string AdviceFor(const std::string& merge_base, bool is_published) {
  std::string advice;
  if (merge_base == "nf4") {
    advice = "merge into the 16-bit checkpoint instead of its 4 bits (--merge-base original), ";
  } else if (merge_base == "blocks" && !is_published) {
    advice = "merge into the 16-bit checkpoint that the file was made from, ";
  }
  return advice +
         "keep the adapter apart (--format gguf-adapter), or choose an outtype of more bits";
}

}  // namespace

void CheckExportOptions(const ExportOptions& options) {
  // A bool becomes a text of one character without a word of the compiler.
  if (options.verify != "auto" && options.verify != "true" && options.verify != "false") {
    ThrowInvalidInput("verify: expected auto, true or false, found '{}'",
                      Printable(options.verify));
  }
  const bool decides = !options.decision_template.empty() || !options.decision_temperature.empty();
  if (decides && options.format.ends_with("-adapter")) {
    ThrowInvalidInput(
        "--format {} has no place for decision_template and decision_temperature, which belong to "
        "the model; leave them out, or write --format gguf",
        options.format);
  }
  if (options.imatrix_tokens < 1) {
    ThrowInvalidInput("imatrix_tokens must be positive, found {}", options.imatrix_tokens);
  }
  if (!options.imatrix.empty() && options.format != "gguf") {
    ThrowInvalidInput("--format {} has no use for imatrix, which is for types of blocks in GGUF",
                      options.format);
  }
  const bool is_given = options.imatrix_tokens != ExportOptions().imatrix_tokens;
  if (is_given && (options.imatrix.empty() || IsImatrixFile(options.imatrix))) {
    ThrowInvalidInput(
        "imatrix_tokens has no effect without a text or data in imatrix to make the matrix from");
  }
  if (options.verify == "false" && !options.verify_text.empty()) {
    ThrowInvalidInput("verify_text has no effect with --no-verify; leave one of them out");
  }
  if (options.outtype == "auto") return;
  const GgufFileType& file = ParseOuttype(options.outtype);
  if (!file.base.is_blocks() && !options.imatrix.empty() && options.write_imatrix.empty()) {
    ThrowInvalidInput("imatrix has no effect on {}; choose a type of fewer bits", file.name);
  }
  if (!file.base.is_blocks()) return;
  const bool is_model = options.format == "gguf";
  const bool is_gguf_adapter = options.format == "gguf-adapter";
  if (!is_model && !(is_gguf_adapter && BitsOf(file) >= 8)) {
    ThrowInvalidInput("--format {} cannot be written as {}: choose f32, f16{} bf16{}",
                      options.format, file.name, is_gguf_adapter ? ", q8_0 or" : " or",
                      is_gguf_adapter ? "; --format gguf merges the adapter into the model" : "");
  }
  if (file.needs_importance && options.imatrix.empty()) {
    ThrowInvalidInput(
        "{} has too few bits for a rounding that weighs all columns alike; give --imatrix a "
        "text like those that the model shall write, or an importance matrix of llama.cpp",
        file.name);
  }
}

std::string CheckKeptChange(const std::vector<KeptChange>& kept, const ExportOptions& options,
                            std::string_view types, bool is_published, ExportReport& report) {
  if (kept.empty()) return "";
  KeptChange all;
  for (const KeptChange& tensor : kept) {
    all.wanted += tensor.wanted;
    all.achieved += tensor.achieved;
    report.kept_by_tensor.push_back({tensor.tensor, tensor.share()});
  }
  report.kept_change = all.share();
  constexpr double kWarnBelow = 0.9;
  constexpr double kRefuseBelow = 0.7;
  // Negated, so that NaN counts as too little.
  if (all.share() >= kWarnBelow) return "";
  const std::string found =
      fmt::format("rounding to {} keeps {:.0f} % of the adapter's change of the weights", types,
                  100 * all.share());
  const std::string advice = AdviceFor(report.merge_base, is_published);
  if (!(all.share() >= kRefuseBelow) && !options.force) {
    ThrowInvalidInput("{}: {}; {}; --force writes it all the same", options.output, found, advice);
  }
  return fmt::format("{}; {}", found, advice);
}

}  // namespace qlora
