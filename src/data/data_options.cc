#include "data/data_options.h"

#include <array>
#include <charconv>
#include <system_error>

#include "base/check.h"

namespace qlora {
namespace {

struct FormatName {
  std::string_view name;
  RowFormat format;
};
// The first name of a format is the one that is shown.
constexpr std::array<FormatName, 16> kFormats = {{
    {"auto", RowFormat::kAuto},
    {"raw", RowFormat::kRaw},
    {"txt", RowFormat::kRaw},
    {"text", RowFormat::kText},
    {"prompt_completion", RowFormat::kPromptCompletion},
    {"prompt-completion", RowFormat::kPromptCompletion},
    {"completion", RowFormat::kPromptCompletion},
    {"alpaca", RowFormat::kInstruction},
    {"instruction", RowFormat::kInstruction},
    {"template", RowFormat::kTemplate},
    {"sharegpt", RowFormat::kShareGpt},
    {"messages", RowFormat::kMessages},
    {"chat", RowFormat::kMessages},
    {"openai", RowFormat::kMessages},
    {"input_ids", RowFormat::kInputIds},
    {"tokenized", RowFormat::kInputIds},
}};

}  // namespace

std::string_view RowFormatName(RowFormat format) {
  for (const FormatName& known : kFormats) {
    if (known.format == format) return known.name;
  }
  return "";
}

RowFormat ParseRowFormat(std::string_view name) {
  for (const FormatName& known : kFormats) {
    if (known.name == name) return known.format;
  }
  ThrowInvalidInput(
      "unknown data format '{}'; known are auto, raw, text, prompt_completion, alpaca, template, "
      "sharegpt, messages and input_ids",
      name);
}

OverLong ParseOverLong(std::string_view name) {
  if (name == "drop") return OverLong::kDrop;
  if (name == "truncate") return OverLong::kTruncate;
  if (name == "error") return OverLong::kError;
  ThrowInvalidInput("over-long samples: expected drop, truncate or error, found '{}'", name);
}

DataSource ParseDataSource(std::string_view text, RowFormat format) {
  DataSource source{.path = text, .format = format, .weight = 1};
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon != std::string_view::npos && !std::filesystem::exists(source.path, ignored)) {
    const std::string_view number = text.substr(colon + 1);
    double weight = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
    if (error == std::errc() && end == number.data() + number.size()) {
      source.weight = weight;
      source.path = text.substr(0, colon);
    }
  }
  if (source.path.empty()) ThrowInvalidInput("the name of a data file is empty");
  return source;
}

}  // namespace qlora
