#include "data/data_options.h"

#include <array>
#include <charconv>
#include <system_error>

#include "base/check.h"

namespace qlora {
namespace {

struct FormatName {
  std::string_view name;
  RecordFormat format;
};
// The first name of a format is the one that is shown.
constexpr std::array<FormatName, 16> kFormats = {{
    {"auto", RecordFormat::kAuto},
    {"raw", RecordFormat::kRaw},
    {"txt", RecordFormat::kRaw},
    {"text", RecordFormat::kText},
    {"prompt_completion", RecordFormat::kPromptCompletion},
    {"prompt-completion", RecordFormat::kPromptCompletion},
    {"completion", RecordFormat::kPromptCompletion},
    {"alpaca", RecordFormat::kInstruction},
    {"instruction", RecordFormat::kInstruction},
    {"template", RecordFormat::kTemplate},
    {"sharegpt", RecordFormat::kShareGpt},
    {"messages", RecordFormat::kMessages},
    {"chat", RecordFormat::kMessages},
    {"openai", RecordFormat::kMessages},
    {"input_ids", RecordFormat::kInputIds},
    {"tokenized", RecordFormat::kInputIds},
}};

}  // namespace

std::string_view RecordFormatName(RecordFormat format) {
  for (const FormatName& known : kFormats) {
    if (known.format == format) return known.name;
  }
  return "";
}

RecordFormat ParseRecordFormat(std::string_view name) {
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

DataSource ParseDataSource(std::string_view text, RecordFormat format) {
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
