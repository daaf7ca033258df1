#include "command/model_loading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "base/printable.h"
#include "base/text.h"
#include "command/common.h"
#include "hub/hub_cache.h"
#include "io/peft/peft_config.h"
#include "qlora/other_base.h"

namespace qlora {

namespace fs = std::filesystem;

void DeclareGenerator(ModelOptions& model, OptionTable& table) {
  // Generation is limited by reading weights: large pages and the order of kernels are worth a
  // copy.
  model.copy_weights = true;
  model.Declare(table);
  table.Add(
      "copy_weights", &model.copy_weights,
      "copy weights into this process, prepacked, if they take less than half of the available "
      "memory: faster tokens, but nothing is shared with other processes");
}

Model LoadModel(Context& context, const ModelOptions& options, const Console& console,
                const std::function<void()>& check) {
  NoteOtherBase(options.model_name_or_path, options.adapter, console);
  StatusLine line(console.err, console.style);
  Model model = Model::Load(context, options, [&](std::int64_t done, std::int64_t total) {
    if (check) check();
    ShowProgress(line, "loading", done, total);
  });
  for (const std::string& note : model.notes()) line.Print("note: " + note);
  return model;
}

void CheckIsNoAdapter(const VerbText& text, OptionTable& options) {
  const std::vector<std::string>& words = text.positionals;
  const Option* adapter = options.Find("adapter");
  // Verbs without a model, or without a place for an adapter, have no such mistake.
  if (words.empty() || words[0] != "model_name_or_path" || adapter == nullptr) return;
  const std::string given = options.Find(words[0])->ToString();
  std::string folder = given;
  // org/name of an adapter that was pulled.
  if (AsHubDataset(given) && !fs::exists(given)) {
    if (const auto snapshot = CachedSnapshot(ParseHubRepository(given)))
      folder = snapshot->string();
  }
  std::error_code ignored;
  const bool is_adapter = !folder.empty() && fs::exists(fs::path(folder) / kAdapterConfig, ignored);
  // A folder with both is a model that brings its adapter's configuration along.
  if (!is_adapter || fs::exists(fs::path(folder) / "config.json", ignored)) return;
  const std::string base = TrainedBase(folder);
  std::string command =
      fmt::format("qlora {} {}", text.name, base.empty() ? "MODEL" : ShellQuote(base));
  for (std::int64_t i = 1; i < std::ssize(words); ++i) {
    const Option& word = *options.Find(words[i]);
    command += " " + (word.set ? ShellQuote(word.ToString()) : UpperCase(words[i]));
  }
  ThrowInvalidInput("{0}: this is an adapter, not a model; write `{1} --adapter {2}`", given,
                    command, ShellQuote(given));
}

void NoteOtherBase(const std::string& model, const std::vector<std::string>& adapters,
                   const Console& console) {
  for (const std::string& note : DescribeOtherBases(model, adapters)) Say(console, "note: " + note);
}

void ShowSampling(const Model& model, OptionTable& options, const Console& console) {
  for (const char* key : {"temperature", "top_k", "top_p", "min_p"}) {
    // Whoever names a temperature wants sampling; greedy search would ignore it without a word.
    if (options.Find(key)->set && !options.Find("do_sample")->set) {
      options.Set("do_sample", "true", key);
    }
  }
  if (const std::string taken = model.TakeGenerationConfig(options); !taken.empty()) {
    Say(console, "from generation_config.json: " + taken);
  }
  const std::vector<std::string> stops = model.stop_tokens();
  if (!stops.empty()) Say(console, fmt::format("stop tokens: {}", fmt::join(stops, " ")));
}

void SayLayout(const Model& model, const Console& console) {
  SayLayout(model, model.prompt_layout(), console);
}

void SayLayout(const Model& model, std::string_view layout, const Console& console) {
  if (layout.empty()) return;
  const char* hint = model.has_turns() ? " (--raw ignores the layout)" : "";
  Say(console, fmt::format("prompt layout: {}{}", layout, hint));
}

void SayWhereCut(const GenerateReport& report, std::int64_t context, const Console& console) {
  if (report.stop_reason == StopReason::kContext) {
    Say(console, fmt::format("warning: cut after {}, at the end of the model's context of {}",
                             Counted(report.new_tokens, "token"), Counted(context, "token")));
  } else if (report.stop_reason == StopReason::kMaxNewTokens) {
    Say(console,
        fmt::format("(cut after {}, by max_new_tokens)", Counted(report.new_tokens, "token")));
  }
}

std::string FormatSpeed(const GenerateReport& report) {
  const auto rate = [](std::int64_t tokens, double seconds) {
    // An answer without tokens may have taken no time.
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  return fmt::format(
      "{} at {:.0f} tokens/s, {} at {:.1f} tokens/s", Counted(report.prompt_tokens, "prompt token"),
      rate(report.prompt_tokens, report.prefill_seconds), Counted(report.new_tokens, "new token"),
      rate(report.new_tokens, report.decode_seconds));
}

}  // namespace qlora
