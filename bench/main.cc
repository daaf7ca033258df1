// The program `qlora-bench`: times the parts of training and generation, as ratios to the limits of
// this machine (peak of multiply-adds, bandwidth of memory) measured in the same run. A ratio to a
// limit can be compared between machines, a time cannot.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <iostream>
#include <iterator>
#include <new>
#include <string_view>

#include "base/check.h"
#include "bench/bench_blocks.h"
#include "bench/bench_decode.h"
#include "bench/bench_gemm.h"
#include "bench/bench_models.h"
#include "bench/bench_nf4.h"
#include "bench/bench_peak.h"
#include "bench/bench_step.h"
#include "bench/bench_tokenizer.h"
#include "command/command_line.h"
#include "command/common.h"
#include "command/errors.h"
#include "command/help.h"
#include "hub/hub_cache.h"
#include "model/base_record.h"
#include "model/shared_options.h"
#include "terminal/text_wrap.h"

namespace qlora {
namespace {

class Measurements {
 public:
  VerbText text() const {
    return {
        .name = "bench",
        .summary = "measure this program against the limits of this machine",
        .explanation =
            "`step` times one QLoRA training step of a random model, by default in the shape of "
            "TinyLlama-1.1B, and compares it with the peak of multiply-adds. `models` times a "
            "step of ten well-known models, each in a process of its own, and prints a table in "
            "Markdown. `peak` times the multiply-adds of each instruction set. `decode` times "
            "reading a prompt and generating text, compared with peak and bandwidth. `nf4-matmul` "
            "times products with 4-bit weights, forward and backward, compared with dense products "
            "of oneDNN (where libdnnl.so.2 is installed) or the lower of peak and bandwidth. `nf4` "
            "times quantizing and dequantizing, compared with the bandwidth of memory. `tokenizer` "
            "times encoding and decoding text. `blocks` rounds random weights to the types of "
            "GGUF, and compares the errors with those of llama.cpp. Limits are measured in the "
            "same run. On a machine with other work, --clock cpu --threads 1 counts processor "
            "time. The table is wider than 80 columns; --json prints the same figures.",
        .examples = {"qlora-bench step", "qlora-bench step --max_length 2048 --num_hidden_layers 4",
                     "qlora-bench step --weight_formats nf4,Q4_K",
                     "qlora-bench models --weight_formats nf4,Q4_K --num_hidden_layers 4",
                     "qlora-bench peak --clock cpu --threads 1",
                     "qlora-bench nf4-matmul --shapes 4096x4096 --rows 1,16,512",
                     "qlora-bench nf4 --json",
                     "qlora-bench tokenizer --model ./my-model --text_file book.txt"},
        .positionals = {"what"},
        .required = {"what"},
        .is_program = true,
    };
  }

  void Declare(OptionTable& table) {
    // CheckNumbers looks at the options of all measurements.
    table_ = &table;
    table.Section("Measurement");
    table.Choice("what", &what_,
                 {"step", "models", "peak", "decode", "nf4-matmul", "nf4", "tokenizer", "blocks"},
                 "measurement to make");
    table.Choice("clock", &clock_, {"wall", "cpu"},
                 "cpu: processor time of the one thread, which other work on the machine hardly "
                 "moves");
    model_.Declare(table);
    step_.Declare(table);
    models_.Declare(table);
    decode_.Declare(table);
    gemm_.Declare(table);
    tokenizer_.Declare(table);
    run_.Declare(table);
  }

  void Run(const Console& console) {
    if (what_.empty()) ThrowInvalidInput("--what is missing (measurement to make)");
    CheckNumbers();
    CheckInt8(console);
    const int threads = run_.ThreadCount();
    const bench::Clock clock = clock_ == "cpu" ? bench::Clock::kCpu : bench::Clock::kWall;
    if (clock == bench::Clock::kCpu && threads != 1) {
      ThrowInvalidInput(
          "clock: cpu is the time of one thread, which says nothing about several; give "
          "--threads 1, too");
    }
    // One set of options for the shape of the model, which four measurements share.
    step_.model = model_;
    decode_.model = model_;
    if (what_ == "models") {
      models_.step = step_;
      return bench::BenchModels(threads, clock, models_, run_.json, console.out);
    }
    Context context(threads);
    const std::vector<bench::BenchRow> rows = Measure(context, clock);
    // After all measurements: a line in between would disturb the next one.
    console.out << (run_.json ? bench::ToJson(rows, clock) : bench::ToText(rows, clock)) << "\n";
  }

 private:
  std::vector<bench::BenchRow> Measure(Context& context, bench::Clock clock) {
    if (what_ == "tokenizer") return MeasureTokenizer(context, clock);
    if (what_ == "blocks") return bench::BenchBlocks(context, clock);
    if (what_ == "nf4") return bench::BenchNf4(context, clock);
    if (what_ == "peak") return bench::BenchPeak(context, clock);
    if (what_ == "step") return bench::BenchStep(context, clock, step_);
    if (what_ == "decode") return bench::BenchDecode(context, clock, decode_);
    gemm_.lora_r = model_.lora_r;
    gemm_.compute_dtype = model_.compute_dtype;
    gemm_.weight_formats = model_.weight_formats;
    return bench::BenchNf4Matmul(context, clock, gemm_);
  }

  // Refuses int8_backward where it has no effect, as `qlora train` does, and says where
  // compute_dtype int8 has none.
  void CheckInt8(const Console& console) const {
    const bool is_of_step = what_ == "step" && model_.compute_dtype == "int8";
    const bool is_of_models =
        what_ == "models" && std::ranges::count(models_.compute_dtypes, "int8") > 0;
    if (model_.int8_backward && !is_of_step && !is_of_models) {
      ThrowInvalidInput(
          "int8_backward would have no effect: it is an option of step and models with "
          "compute_dtype int8; leave it out");
    }
    if (what_ != "step" && what_ != "decode") return;
    const std::vector<std::string> formats = model_.Formats();
    if (std::ranges::count(formats, "bf16") < std::ssize(formats)) return;
    const Precision precision = ParsePrecision(model_.compute_dtype, *BackendFactory::Of("cpu"));
    const std::string note = NoteIdleInt8(precision, WeightSizes());
    if (!note.empty()) Say(console, "note: " + note);
  }

  // Every number of a measurement is a count.
  void CheckNumbers() const {
    for (const Option& option : table_->options()) {
      const auto* number = std::get_if<std::int64_t*>(&option.value);
      if (number == nullptr) continue;
      // These may be 0: as many threads as there are cores, as many layers as the shape has, no
      // adapter.
      constexpr std::string_view kMayBeNone[] = {"threads", "num_hidden_layers", "adapters"};
      if (**number == 0 && std::ranges::find(kMayBeNone, option.name) != std::end(kMayBeNone)) {
        continue;
      }
      if (**number < 1 || **number > kMostCount) {
        ThrowInvalidInput("{} expects a number from 1 to {}, found {}", option.name, kMostCount,
                          **number);
      }
    }
  }

  std::vector<bench::BenchRow> MeasureTokenizer(Context& context, bench::Clock clock) const {
    const std::string& model = tokenizer_.model_name_or_path;
    if (model.empty() || tokenizer_.text_file.empty()) {
      ThrowInvalidInput("tokenizer needs --model, a folder with tokenizer.json, and --text_file");
    }
    return bench::BenchTokenizer(context, clock, ResolveTokenizerDir(model), tokenizer_.text_file);
  }

  // Beyond it, products of three counts no longer fit 64 bits.
  static constexpr std::int64_t kMostCount = 1 << 24;

  const OptionTable* table_ = nullptr;
  std::string what_;
  std::string clock_ = "wall";
  bench::ModelBenchOptions model_;
  bench::StepBenchOptions step_;
  bench::ModelsBenchOptions models_;
  bench::DecodeBenchOptions decode_;
  bench::BenchGemmOptions gemm_;
  bench::TokenizerBenchOptions tokenizer_;
  RunFields run_;
};

int Dispatch(const std::vector<std::string>& arguments, const Console& console) {
  Measurements bench;
  OptionTable table;
  bench.Declare(table);
  std::vector<std::string> notes;
  const bool helps = ParseCommandLine(arguments, bench.text(), table, notes);
  for (const std::string& note : notes) Say(console, "note: " + note);
  if (helps) {
    console.out << VerbHelp(bench.text(), table, TextColumns(console.out_style));
  } else {
    bench.Run(console);
  }
  return FlushOutput(console, 0);
}

// Returns the exit code.
int RunProgram(const std::vector<std::string>& arguments, const Console& console) {
  const auto report = [&](ErrorCode code, const std::string& message) {
    const bool is_input = code == ErrorCode::kInvalidInput;
    PrintFailure(console, static_cast<int>(code), message,
                 is_input ? "See: qlora-bench --help" : "", AsksForJson(arguments));
    return static_cast<int>(code);
  };
  try {
    return Dispatch(arguments, console);
  } catch (const Error& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ErrorCode::kOutOfMemory, "memory ran out");
  } catch (const std::exception& error) {
    return report(ErrorCode::kRuntime, error.what());
  }
}

}  // namespace
}  // namespace qlora

int main(int argc, char** argv) {
  // A reader that goes away is a failed write.
  std::signal(SIGPIPE, SIG_IGN);
  std::ios::sync_with_stdio(false);
  return qlora::RunProgram(
      {argv + 1, argv + argc},
      {std::cout, std::cerr, qlora::StyleOf(STDERR_FILENO), qlora::StyleOf(STDOUT_FILENO)});
}
