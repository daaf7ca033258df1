#include "convert/verify_report.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// A folder may hold several exported files, each with a report of its own.
fs::path ReportOf(const ExportOptions& options) {
  constexpr const char* kReport = "export_report.json";
  const fs::path output = fs::absolute(options.output);
  if (fs::is_directory(output)) return output / kReport;
  return output.parent_path() / fmt::format("{}.{}", output.filename().string(), kReport);
}

bool IsReport(const fs::path& file) {
  try {
    const Json json = ReadJsonFile(file);
    return json.is_object() && json.contains("verified") && json.contains("output");
  } catch (const Error&) {  // not JSON: somebody else's
    return false;
  }
}

OrderedJson ToJson(const ExportOptions& options, const ExportReport& report) {
  const VerifyReport& v = report.verification;
  OrderedJson json = {{"output", options.output},
                      {"model_name_or_path", options.model_name_or_path},
                      {"adapter", fmt::format("{}", fmt::join(options.adapter, ","))},
                      {"format", options.format},
                      {"outtype", report.outtype},
                      {"merge_base", report.merge_base},
                      {"verified", report.verified},
                      {"mean_logprob_difference", v.mean_logprob_difference},
                      {"max_mean_logprob_difference", v.max_mean_difference},
                      {"max_logprob_difference", v.max_logprob_difference},
                      {"mean_kl_divergence", v.mean_kl_divergence},
                      {"max_mean_kl_divergence", v.max_mean_kl},
                      {"max_kl_divergence", v.max_kl_divergence},
                      {"top1_agreement", v.top1_agreement},
                      {"text", options.verify_text.empty() ? "built-in" : options.verify_text},
                      {"text_tokens", v.text_tokens},
                      {"source_perplexity", v.source_perplexity},
                      {"perplexity", v.perplexity},
                      {"same_tokens", v.other_tokens_at < 0}};
  if (!report.notes.empty()) json["notes"] = report.notes;
  return json;
}

}  // namespace

std::int64_t FirstOtherToken(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const auto [at, other] = std::ranges::mismatch(a, b);
  return at == a.end() && other == b.end() ? -1 : at - a.begin();
}

std::string DescribeFailure(const VerifyReport& report, const std::string& outtype) {
  if (report.other_tokens_at >= 0) {
    return fmt::format(
        "its tokenizer makes other tokens of the text than the source's, from token "
        "{} on",
        report.other_tokens_at);
  }
  // Negated, so that NaN fails.
  if (!(report.mean_logprob_difference <= report.max_mean_difference)) {
    return fmt::format(
        "its log-probabilities differ from those of the source by {:.2e} on average, where at most "
        "{:.0e} is expected of {}",
        report.mean_logprob_difference, report.max_mean_difference, outtype);
  }
  return fmt::format(
      "its predictions differ from those of the source by a KL divergence of {:.2e} on average, "
      "where at most {:.0e} is expected of {}",
      report.mean_kl_divergence, report.max_mean_kl, outtype);
}

void RemoveVerifyReport(const ExportOptions& options) {
  const fs::path file = ReportOf(options);
  std::error_code ignored;
  if (fs::exists(file, ignored) && IsReport(file)) fs::remove(file, ignored);
}

void WriteVerifyReport(const ExportOptions& options, ExportReport& report) {
  const fs::path file = ReportOf(options);
  std::error_code ignored;
  if (fs::exists(file, ignored) && !IsReport(file)) {
    report.notes.push_back(
        fmt::format("{} is another file and stays; the report of the "
                    "verification was not written",
                    file.string()));
    return;
  }
  try {
    WriteTextFile(file, FormatJson(ToJson(options, report), 2) + "\n");
  } catch (const Error& error) {  // a full disk; the output is there, and compared
    report.notes.push_back(
        fmt::format("the report of the verification was not written: {}", error.what()));
  }
}

}  // namespace qlora
