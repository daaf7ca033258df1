#include "training/generate_command.h"

#include <fmt/format.h>

#include "command/common.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// True for a text that the command line takes for nothing but a value: no option, no key=value, not
// "-".
bool IsPlainWord(const std::string& text) {
  return !text.starts_with('-') && text.find('=') == std::string::npos;
}

// True for a text that stands for others: of tokens that are no text (data of token ids).
bool HasReplacements(const std::string& text) {
  return text.find(kReplacementCharacter) != std::string::npos;
}

// Returns "--key text", with = where the text could be taken for an option.
std::string Given(const char* key, const std::string& text) {
  return fmt::format(" {}{}{}", key, IsPlainWord(text) ? " " : "=", ShellQuote(text));
}

}  // namespace

std::string GenerateCommand(const std::string& model, const std::string& adapter,
                            const PromptExample& example) {
  std::string command = fmt::format("qlora generate {}", ShellQuote(model));
  if (!example.found() || HasReplacements(example.prompt) || HasReplacements(example.record)) {
    // Data whose prompts cannot be typed on a line: the user fills in one.
    command += " \"your prompt\"";
  } else if (!example.record.empty()) {
    command += Given("--record", example.record);
  } else if (IsPlainWord(example.prompt)) {
    // The shortest form that works: the prompt as a word, otherwise behind its option.
    command += " " + ShellQuote(example.prompt);
  } else {
    command += Given("--prompt", example.prompt);
  }
  if (!example.system.empty()) command += Given("--system", example.system);
  if (example.raw) command += " --raw";
  return adapter.empty() ? command : command + Given("--adapter", adapter);
}

}  // namespace qlora
