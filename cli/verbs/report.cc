// `qlora report`: one HTML file about runs, made of their logs. A run that is in progress is read
// as far as the run has come.
#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "command/common.h"
#include "io/json.h"
#include "report/report_page.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

class ReportVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "report",
        .summary = "make one HTML page about training runs: curves, memory, data, texts",
        .explanation =
            "Reads what `train` wrote to its output_dir and makes one page that needs no network "
            "and no other file: loss and evaluation, token accuracy, learning rate, gradient norm, "
            "speed and memory against the plan, the data, and texts before and after training. "
            "Give several runs, separated by commas, to compare them. Works while a run is in "
            "progress; "
            "`train --dashboard PORT` shows the same page live.",
        .examples = {"qlora report my-adapter --out report.html",
                     "qlora report first-run,second-run --out compare.html"},
        .positionals = {"runs"},
        .required = {"runs"},
        .writes = true,
        .takes_folders = true,
    };
  }

  void Declare(OptionTable& table) override {
    table.AddPath("runs", &runs_, "output_dir of each run, separated by commas", {"run"});
    table.AddPath("out", &out_, "HTML file to write", {"output"});
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    std::error_code ignored;
    if (out_ == "-") ThrowInvalidInput("out: the page is a file; name one, such as report.html");
    const bool exists = std::filesystem::is_regular_file(out_, ignored);
    // The default name is report.html: another page of that name must not be replaced by mistake.
    if (exists && !IsReportPage(ReadTextFile(out_))) {
      ThrowInvalidInput("{} exists and was not written by `qlora report`; give --out another name",
                        out_);
    }
    // Opened before the logs are read: a folder that cannot be written to is found first.
    AtomicFile page(out_, exists ? OpenMode::kReplace : OpenMode::kCreate);
    // Not live: an unreadable run is an error.
    const std::string data = ReportData(runs_, false);
    page.Write(ReportPage(data));
    page.Commit();
    const Json record = ParseJson(data, "report");
    OrderedJson runs = OrderedJson::array();
    for (const Json& run : record.at("runs")) {
      runs.push_back({{"name", run.at("name")}, {"damaged_lines", run.at("damaged_lines")}});
      // A crash or a full disk may cut a line of a log; the others still tell the run.
      if (run.at("damaged_lines") == 0) continue;
      Say(console, fmt::format("warning: {}: lines of the logs that are damaged and left out: {}",
                               run.at("name").get<std::string>(),
                               run.at("damaged_lines").get<std::int64_t>()));
    }
    if (run_.json) {
      PrintSuccess(console, {{"file", out_}, {"runs", std::move(runs)}});
      return 0;
    }
    console.err << fmt::format("written: {}\nto see it, open it in a browser\n", ShellQuote(out_));
    return 0;
  }

 private:
  std::vector<std::string> runs_;
  std::string out_ = "report.html";
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeReportVerb() { return std::make_unique<ReportVerb>(); }

}  // namespace qlora
