#include "train/model_card.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "io/json.h"
#include "model/gguf_source.h"

namespace qlora {
namespace {

// Tells cards of this program from those of people, which stay.
constexpr std::string_view kMark = "<!-- written by qlora -->";

}  // namespace

void WriteModelCard(const TrainPlan& plan, const TrainPosition& at) {
  const TrainOptions& options = plan.options;
  const std::filesystem::path path = std::filesystem::path(options.output_dir) / "README.md";
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) &&
      ReadTextFile(path).find(kMark) == std::string::npos) {
    return;
  }
  // A text of JSON is one of YAML, whatever characters the path has.
  const std::string name = BaseNameOf(options.model_name_or_path);
  const std::string base = FormatJson(Json(name));
  std::string text = fmt::format(
      "---\nbase_model: {}\nlibrary_name: peft\npipeline_tag: text-generation\ntags:\n- lora\n- "
      "{}\n- {}\n---\n{}\n\n",
      base, options.load_in_4bit ? "qlora" : "qlora.cpp",
      FormatJson(Json("base_model:adapter:" + name)), kMark);
  text += fmt::format(
      "# {}\n\nA LoRA adapter of {}, trained with qlora.cpp.\n\n| | |\n|---|---|\n",
      std::filesystem::absolute(options.output_dir).lexically_normal().filename().string(),
      options.model_name_or_path);
  const auto row = [&](const char* key, const auto& value) {
    text += fmt::format("| {} | {} |\n", key, value);
  };
  row("rank", options.lora_r);
  row("alpha", options.lora_alpha);
  row("learning rate", options.learning_rate);
  row("steps", at.step);
  row("trained tokens", at.tokens);
  if (const double loss = at.mean_loss(); std::isfinite(loss)) {
    row("mean training loss", fmt::format("{:.4f}", loss));
  }
  if (at.best.step >= 0) row("step of the best evaluation", at.best.step);
  WriteTextFile(path, text);
}

}  // namespace qlora
