#include "log/log_files.h"

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
#include "io/json.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// The name of a log without its extension.
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
  // keep: true for the lines of an existing file that stay; null: the file is replaced.
  LineFile(fs::path path, const std::function<bool(const std::string&)>& keep)
      : path_(std::move(path)) {
    if (keep && fs::exists(path_)) {
      std::string text = ReadTextFile(path_, kMaxLogBytes);
      text.resize(text.rfind('\n') + 1);  // a line that was cut when the run ended
      std::istringstream lines(text);
      std::string kept;
      for (std::string line; std::getline(lines, line);) {
        if (keep(line)) kept += line + "\n";
      }
      // Replaced as a whole, so that a crash here leaves the old log or the new one.
      WriteTextFile(path_, kept);
      empty_ = kept.empty();
    }
    file_ = OpenStream(path_, keep ? OpenMode::kAppend : OpenMode::kReplace);
  }

  bool empty() const { return empty_; }
  void Write(const std::string& line) {
    // A line is in the file when Write returns: readers follow the log of a run that trains.
    if (std::fputs((line + "\n").c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0) Fail();
    empty_ = false;
  }

 private:
  [[noreturn]] void Fail() const {
    ThrowRuntime("cannot write {}: {}", path_.string(), std::strerror(errno));
  }

  fs::path path_;
  Stream file_;
  bool empty_ = true;
};

// One LineFile for each kind of entry, opened for its first entry or when the file exists.
class LineFiles {
 public:
  // The step of a line, or nothing for a line that always stays.
  using StepOf = std::optional<std::int64_t> (*)(const std::string& line);

  LineFiles(fs::path dir, std::string extension, const KeptSteps& kept, StepOf step_of)
      : dir_(std::move(dir)), extension_(std::move(extension)), kept_(kept), step_of_(step_of) {
    // A log of evaluations or samples that exists is opened at once, because a new or resumed run
    // has to drop its later lines even if the run adds none.
    for (const LogKind kind : {LogKind::kStep, LogKind::kEval, LogKind::kSample}) {
      if (kind == LogKind::kStep || fs::exists(PathOf(kind))) Of(kind);
    }
  }

  LineFile& Of(LogKind kind) {
    std::optional<LineFile>& file = files_[static_cast<int>(kind)];
    if (file) return *file;
    // A new run keeps nothing, also of a run that was replaced.
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

// {"step":1,"loss":2.5, ...}: one object in a line, also for samples.
class JsonLines : public LogSink {
 public:
  JsonLines(const fs::path& dir, const KeptSteps& kept) : files_(dir, ".jsonl", kept, StepOf) {}

  void Write(LogKind kind, const LogFields& fields) override {
    Json line = Json::object();
    for (const auto& [name, value] : fields) {
      if (value.is_object()) {
        line.update(value);
      } else {
        line[name] = value;
      }
    }
    files_.Of(kind).Write(FormatJson(line));
  }

 private:
  // A line that was half written when the run ended counts as later than any step.
  static std::optional<std::int64_t> StepOf(const std::string& line) {
    Json json;
    const bool damaged = TryParseJson(line, json).has_value() || !json.is_object();
    const auto step = damaged ? json.end() : json.find("step");
    if (step == json.end() || !step->is_number_integer()) {
      return std::numeric_limits<std::int64_t>::max();
    }
    return step->get<std::int64_t>();
  }

  LineFiles files_;
};

// The line of names is written when the file is empty, so a resumed run does not repeat it.
class Csv : public LogSink {
 public:
  Csv(const fs::path& dir, const KeptSteps& kept) : files_(dir, ".csv", kept, StepOf) {}

  void Write(LogKind kind, const LogFields& fields) override {
    if (kind == LogKind::kSample) return;
    std::string names;
    std::string values;
    for (const auto& [name, value] : fields) {
      // A resumed run may evaluate other files or have other ranks, and a file has one line of
      // names.
      if (value.is_structured()) continue;
      const char* comma = names.empty() ? "" : ",";
      // JSON has no NaN and would print null; CSV readers know nan and inf.
      const bool odd = value.is_number_float() && !std::isfinite(value.get<double>());
      names += fmt::format("{}{}", comma, name);
      values += comma + (odd ? fmt::format("{}", value.get<double>()) : FormatJson(value));
    }
    LineFile& file = files_.Of(kind);
    if (file.empty()) file.Write(names);
    file.Write(values);
  }

 private:
  static std::optional<std::int64_t> StepOf(const std::string& line) {
    if (line.starts_with("step")) return {};  // the line of names
    // The step is the first column.
    return std::strtoll(line.c_str(), nullptr, 10);
  }

  LineFiles files_;
};

}  // namespace

std::unique_ptr<LogSink> OpenJsonLines(const fs::path& dir, const KeptSteps& kept) {
  return std::make_unique<JsonLines>(dir, kept);
}

std::unique_ptr<LogSink> OpenCsv(const fs::path& dir, const KeptSteps& kept) {
  return std::make_unique<Csv>(dir, kept);
}

}  // namespace qlora
