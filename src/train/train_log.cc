#include "train/train_log.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "base/file.h"
#include "train/tensorboard.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

const char* NameOf(LogKind kind) {
  switch (kind) {
    case LogKind::kStep:
      return kStepLog;
    case LogKind::kEval:
      return kEvalLog;
    case LogKind::kSample:
      return kSampleLog;
  }
  return "";
}

// A file to which whole lines are added.
class LineFile {
 public:
  // keep: whether a line of an existing file stays; none: the file is written anew.
  LineFile(fs::path path, const std::function<bool(const std::string&)>& keep)
      : path_(std::move(path)) {
    if (keep && fs::exists(path_)) {
      std::istringstream lines(ReadTextFile(path_));
      std::string kept;
      for (std::string line; std::getline(lines, line);) {
        if (keep(line)) kept += line + "\n";
      }
      WriteTextFile(path_, kept);
      empty_ = kept.empty();
    }
    file_.reset(std::fopen(path_.c_str(), keep ? "a" : "w"));
    if (file_ == nullptr) Fail();
  }

  bool empty() const { return empty_; }
  void Write(const std::string& line) {
    if (std::fputs((line + "\n").c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0) Fail();
    empty_ = false;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  [[noreturn]] void Fail() const {
    ThrowRuntime("cannot write {}: {}", path_.string(), std::strerror(errno));
  }

  fs::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  bool empty_ = true;
};

// One LineFile for each kind of entry, made when the first comes or when one lies there.
class LineFiles {
 public:
  // The step of a line, or nothing for one that stays in any case.
  using StepOf = std::optional<std::int64_t> (*)(const std::string& line);

  LineFiles(fs::path dir, std::string extension, const KeptSteps& kept, StepOf step_of)
      : dir_(std::move(dir)), extension_(std::move(extension)), kept_(kept), step_of_(step_of) {
    for (const LogKind kind : {LogKind::kStep, LogKind::kEval, LogKind::kSample}) {
      if (kind == LogKind::kStep || fs::exists(PathOf(kind))) Of(kind);
    }
  }

  LineFile& Of(LogKind kind) {
    std::optional<LineFile>& file = files_[static_cast<std::size_t>(kind)];
    if (file) return *file;
    if (kept_.steps == 0) return file.emplace(PathOf(kind), nullptr);
    return file.emplace(PathOf(kind), [&](const std::string& line) {
      const std::optional<std::int64_t> step = step_of_(line);
      return !step || *step <= kept_.Of(kind);
    });
  }

 private:
  fs::path PathOf(LogKind kind) const { return dir_ / (NameOf(kind) + extension_); }

  fs::path dir_;
  std::string extension_;
  KeptSteps kept_;
  StepOf step_of_;
  std::optional<LineFile> files_[3];
};

class JsonLines : public LogSink {
 public:
  JsonLines(const fs::path& dir, const KeptSteps& kept) : files_(dir, ".jsonl", kept, StepOf) {}

  void Write(LogKind kind, const LogFields& fields) override {
    Json line = Json::object();
    for (const auto& [name, value] : fields) line[name] = value;
    files_.Of(kind).Write(line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

 private:
  // A line that was half written when the run ended goes.
  static std::optional<std::int64_t> StepOf(const std::string& line) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return std::numeric_limits<std::int64_t>::max();
    return json.value("step", std::int64_t{0});
  }

  LineFiles files_;
};

// Comma-separated with a line of names first; a NaN is written as nan. Samples are texts of many
// lines and stay in JSON.
class Csv : public LogSink {
 public:
  Csv(const fs::path& dir, const KeptSteps& kept) : files_(dir, ".csv", kept, StepOf) {}

  void Write(LogKind kind, const LogFields& fields) override {
    if (kind == LogKind::kSample) return;
    std::string names;
    std::string values;
    for (const auto& [name, value] : fields) {
      const char* comma = names.empty() ? "" : ",";
      const bool odd = value.is_number_float() && !std::isfinite(value.get<double>());
      names += fmt::format("{}{}", comma, name);
      values += comma + (odd ? fmt::format("{}", value.get<double>()) : value.dump());
    }
    LineFile& file = files_.Of(kind);
    if (file.empty()) file.Write(names);
    file.Write(values);
  }

 private:
  static std::optional<std::int64_t> StepOf(const std::string& line) {
    if (line.rfind("step", 0) == 0) return {};  // the names
    return std::strtoll(line.c_str(), nullptr, 10);
  }

  LineFiles files_;
};

}  // namespace

TrainLog::TrainLog(const TrainOptions& options, const KeptSteps& kept) {
  const LogTargets targets = ParseReportTo(options.report_to);
  sinks_.push_back(std::make_unique<JsonLines>(options.output_dir, kept));
  if (targets.csv) sinks_.push_back(std::make_unique<Csv>(options.output_dir, kept));
  if (targets.tensorboard) {
    sinks_.push_back(std::make_unique<TensorboardLog>(LoggingDir(options), kept.steps));
  }
}

void TrainLog::Write(LogKind kind, const LogFields& fields) {
  for (const std::unique_ptr<LogSink>& sink : sinks_) sink->Write(kind, fields);
}

void TrainLog::Write(const StepReport& r) {
  Write(LogKind::kStep, {{"step", r.step},
                         {"epoch", r.epoch},
                         {"loss", r.loss},
                         {"grad_norm", r.grad_norm},
                         {"learning_rate", r.learning_rate},
                         {"token_accuracy", r.token_accuracy},
                         {"tokens", r.tokens},
                         {"tokens_per_second", r.tokens_per_second},
                         {"memory", r.memory_bytes},
                         {"elapsed", r.elapsed_seconds},
                         {"skipped", r.skipped},
                         {"spike", r.spike}});
}

void TrainLog::Write(std::int64_t step, const EvalReport& r) {
  Write(LogKind::kEval, {{"step", step},
                         {"eval_loss", r.loss},
                         {"eval_perplexity", r.perplexity},
                         {"eval_token_accuracy", r.token_accuracy},
                         {"eval_best", r.best},
                         {"eval_tokens", r.tokens},
                         {"eval_runtime", r.seconds}});
}

void TrainLog::Write(const SampleReport& r) {
  Write(LogKind::kSample, {{"step", r.step}, {"prompt", r.prompt}, {"text", r.text}});
}

LogTargets ParseReportTo(const std::vector<std::string>& report_to) {
  LogTargets targets;
  for (const std::string& name : report_to) {
    const bool all = name == "all";
    if (!all && name != "none" && name != "jsonl" && name != "csv" && name != "tensorboard") {
      ThrowInvalidInput(
          "report_to: expected jsonl (always written), csv, tensorboard, all or none, found '{}'; "
          "nothing is sent to services",
          name);
    }
    targets.csv = targets.csv || all || name == "csv";
    targets.tensorboard = targets.tensorboard || all || name == "tensorboard";
  }
  return targets;
}

fs::path LoggingDir(const TrainOptions& options) {
  return options.logging_dir.empty() ? fs::path(options.output_dir) / "runs"
                                     : fs::path(options.logging_dir);
}

}  // namespace qlora
