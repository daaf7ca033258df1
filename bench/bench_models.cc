#include "bench/bench_models.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>

#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/printable.h"
#include "base/version.h"
#include "bench/bench_limits.h"
#include "bench/bench_row.h"
#include "bench/bench_weights.h"
#include "model/shared_options.h"
#include "qlora/context.h"
#include "qlora/machine.h"

namespace qlora::bench {
namespace {

using nlohmann::ordered_json;

struct Pipe {
  Pipe() {
    if (pipe(ends.data()) != 0) ThrowRuntime("cannot make a pipe: {}", std::strerror(errno));
  }
  ~Pipe() {
    CloseWriter();
    close(ends[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void CloseWriter() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }

  std::array<int, 2> ends = {-1, -1};  // to read, to write
};

std::string ReadToEnd(int file) {
  std::string text;
  std::array<char, 4096> part;
  for (;;) {
    const ssize_t count = read(file, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
}

void WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(file, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;  // the reader sees that the end is missing
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// Returns {"ok": what `measure` returns} or {"error": text}.
ordered_json Answer(const std::function<ordered_json()>& measure) {
  try {
    return {{"ok", measure()}};
  } catch (const std::bad_alloc&) {
    return {{"error", "memory ran out"}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

// Returns what `measure` returns in a process of its own. Errors: Runtime, with the message of its
// error, or with the signal that ended it.
ordered_json InProcess(const std::function<ordered_json()>& measure) {
  Pipe pipe;
  const pid_t child = fork();
  if (child < 0) ThrowRuntime("cannot start a process: {}", std::strerror(errno));
  if (child == 0) {
    WriteAll(pipe.ends[1], Answer(measure).dump());
    _exit(0);
  }
  pipe.CloseWriter();
  const std::string text = ReadToEnd(pipe.ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const ordered_json answer = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.contains("ok")) return answer["ok"];
  if (answer.is_object()) ThrowRuntime("{}", answer["error"].get<std::string>());
  if (WIFSIGNALED(status)) ThrowRuntime("the measurement was ended by signal {}", WTERMSIG(status));
  ThrowRuntime("the measurement ended without a result");
}

// The step of one model in one format and type, with at most all its layers.
StepBenchOptions StepOf(const ModelsBenchOptions& options, const std::string& model,
                        const std::string& format, const std::string& dtype) {
  StepBenchOptions step = options.step;
  step.model.shape = model;
  step.model.weight_formats = {format};
  step.model.compute_dtype = dtype;
  step.model.num_hidden_layers = 0;
  const std::int64_t all = ConfigOf(step.model, step.max_length).num_hidden_layers;
  const std::int64_t layers = options.step.model.num_hidden_layers;
  if (layers > 0 && layers < all) step.model.num_hidden_layers = layers;
  return step;
}

const BenchRow& RowOf(const std::vector<BenchRow>& rows, std::string_view unit) {
  return *std::ranges::find(rows, unit, &BenchRow::unit);
}

ordered_json Measure(int threads, Clock clock, const StepBenchOptions& step) {
  Context context(threads);
  const std::vector<BenchRow> rows = BenchStep(context, clock, step);
  const BenchRow& speed = RowOf(rows, "tokens/s");
  const BenchRow& arithmetic = RowOf(rows, "GFLOP/s");
  double tokens = speed.value;
  double memory = RowOf(rows, "GB").value * 1e9;
  const std::int64_t measured = step.model.num_hidden_layers;
  StepBenchOptions whole = step;
  whole.model.num_hidden_layers = 0;
  const std::int64_t all = ConfigOf(whole.model, whole.max_length).num_hidden_layers;
  if (measured > 0) {
    const StepNeeds part = NeedsOfStep(context, step);
    const StepNeeds full = NeedsOfStep(context, whole);
    const FlopRates peak = MeasureFlops(context, part.precision, clock);
    tokens *= SecondsOf(part.flops, peak) / SecondsOf(full.flops, peak);
    memory += full.bytes - part.bytes;
  }
  return {{"threads", context.threads()},
          {"layers", measured > 0 ? measured : all},
          {"all_layers", all},
          {"tokens_per_second", tokens},
          {"limit_share", speed.ratio},
          {"limit_gflops", arithmetic.limit},
          {"memory_bytes", static_cast<std::int64_t>(memory)}};
}

std::string RowText(const ordered_json& row) {
  const auto layers = row["layers"].get<std::int64_t>();
  const auto all = row["all_layers"].get<std::int64_t>();
  const char* about = layers < all ? "~" : "";
  const std::string part = layers < all ? fmt::format(", {} of {} layers", layers, all) : "";
  return fmt::format("| {}{} | {} | {} | {}{:.1f} | {:.0f} % | {:.0f} | {}{} |\n",
                     row["model"].get<std::string>(), part, row["weights"].get<std::string>(),
                     row["compute_dtype"].get<std::string>(), about,
                     row["tokens_per_second"].get<double>(), 100 * row["limit_share"].get<double>(),
                     row["limit_gflops"].get<double>(), about,
                     FormatBytes(row["memory_bytes"].get<std::size_t>()));
}

ordered_json Conditions(const ModelsBenchOptions& options, Clock clock) {
  const MachineReport machine = DescribeMachine();
  const StepBenchOptions& step = options.step;
  return {{"cpu", machine.cpu},
          {"simd_target", machine.simd_target},
          {"memory_total_bytes", machine.memory_total},
          {"qlora", Version()},
          {"clock", clock == Clock::kCpu ? "cpu" : "wall"},
          {"max_length", step.max_length},
          {"per_device_train_batch_size", step.per_device_train_batch_size},
          {"recompute", step.recompute},
          {"optim", step.optim},
          {"lora_r", step.model.lora_r}};
}

// threads: of the first row.
std::string HeadText(const ordered_json& c, int threads) {
  return fmt::format(
      "{} ({}), {}; {} thread{}, {} clock; qlora {}. A step of {} x {} tokens, rank {}, {}, "
      "recompute {}.\n\n"
      "| model | weights | arithmetic | tokens/s | share of the limit | limit, GFLOP/s | memory |\n"
      "|---|---|---|---|---|---|---|\n",
      c["cpu"].get<std::string>(), c["simd_target"].get<std::string>(),
      FormatBytes(c["memory_total_bytes"].get<std::size_t>()), threads, threads == 1 ? "" : "s",
      c["clock"].get<std::string>(), c["qlora"].get<std::string>(),
      c["per_device_train_batch_size"].get<std::int64_t>(), c["max_length"].get<std::int64_t>(),
      c["lora_r"].get<std::int64_t>(), c["optim"].get<std::string>(),
      c["recompute"].get<std::string>());
}

// Names that are wrong are found before minutes of measurements.
void CheckNames(const ModelsBenchOptions& options) {
  constexpr std::int64_t kAnyBlock = 256;
  for (const std::string& model : options.models) StepOf(options, model, "nf4", "float32");
  for (const std::string& format : options.step.model.Formats()) {
    if (format != "bf16") ParseBlocks(format, kAnyBlock);
  }
  for (const std::string& dtype : options.compute_dtypes) {
    ParsePrecision(dtype, *BackendFactory::Of(options.step.model.device));
  }
}

}  // namespace

void ModelsBenchOptions::Declare(OptionTable& table) {
  table.Section("models");
  table.Add("models", &models, "names of well-known models, as of plan, comma-separated");
  table.Add("compute_dtypes", &compute_dtypes, "values of compute_dtype, comma-separated");
}

void BenchModels(int threads, Clock clock, const ModelsBenchOptions& options, bool json,
                 std::ostream& out) {
  CheckNames(options);
  const ordered_json conditions = Conditions(options, clock);
  ordered_json results = ordered_json::array();
  for (const std::string& model : options.models) {
    for (const std::string& format : options.step.model.Formats()) {
      for (const std::string& dtype : options.compute_dtypes) {
        const StepBenchOptions step = StepOf(options, model, format, dtype);
        ordered_json row = {{"model", model}, {"weights", format}, {"compute_dtype", dtype}};
        row.update(InProcess([&] { return Measure(threads, clock, step); }));
        // Rows appear as they are measured: all of them take many minutes.
        if (!json && results.empty()) out << HeadText(conditions, row["threads"].get<int>());
        if (!json) out << RowText(row) << std::flush;
        results.push_back(std::move(row));
      }
    }
  }
  if (json) out << ordered_json{{"machine", conditions}, {"results", results}}.dump(2) << "\n";
  const bool is_part = std::ranges::any_of(
      results, [](const ordered_json& row) { return row["layers"] != row["all_layers"]; });
  if (!json && is_part) {
    out << "\n~: the first layers were measured; tokens/s scaled by the arithmetic of all layers, "
           "memory with the bytes of the others.\n";
  }
}

}  // namespace qlora::bench
