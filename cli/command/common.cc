#include "command/common.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "command/errors.h"
#include "io/json.h"
#include "terminal/text_wrap.h"

namespace qlora {

void RunFields::Declare(OptionTable& table) {
  table.Section("Run");
  DeclareThreads(table);
  DeclareJson(table);
}

void RunFields::DeclareThreads(OptionTable& table) {
  table.Add("threads", &threads, "number of threads; 0: OMP_NUM_THREADS, or one per usable core");
}

void RunFields::DeclareJson(OptionTable& table) {
  table.Add("json", &json, "print the result as one JSON object on standard output");
}

int RunFields::ThreadCount() const { return qlora::ThreadCount(threads); }

int ThreadCount(std::int64_t threads) {
  constexpr std::int64_t kMost = 4096;  // beyond any machine
  // A number of threads that no machine has would exhaust the process before it computes.
  if (threads < 0 || threads > kMost) {
    ThrowInvalidInput("threads: expected 0 to {}, found {}", kMost, threads);
  }
  const char* set = std::getenv("OMP_NUM_THREADS");
  if (threads == 0 && set != nullptr) {
    const std::string_view text = set;
    // torchrun sets 1 where nobody has chosen.
    if (text == "1" && std::getenv("TORCHELASTIC_RUN_ID") != nullptr) return 0;
    threads = ParseNumber<std::int64_t>(text).value_or(0);
    // OMP_NUM_THREADS may be a list ("4,2") for nested regions, or nonsense of another program: the
    // default, not an error, because the user has not written it for this command.
    if (threads < 0 || threads > kMost) threads = 0;
  }
  return static_cast<int>(threads);
}

void Say(const Console& console, std::string_view text) {
  // Printable: names and texts of files may hold escape sequences.
  console.err << Fitted(console.style, Printable(Shortened(text))) << std::endl;
}

std::string Shown(const Console& console, std::string_view text) {
  return console.out_style.live ? Printable(text) : std::string(text);
}

std::string Dump(const OrderedJson& value) { return FormatJson(value); }

OrderedJson FailureToJson(int exit_code, std::string_view message) {
  return {{"ok", false}, {"exit_code", exit_code}, {"error", message}};
}

void PrintJson(std::ostream& out, const OrderedJson& object) { out << Dump(object) << '\n'; }

void PrintSuccess(const Console& console, const OrderedJson& result) {
  OrderedJson success = {{"ok", true}};
  success.update(result);
  PrintJson(console.out, success);
}

void ThrowWithJson(const Console& console, const Error& error, const OrderedJson& result) {
  OrderedJson failure = FailureToJson(static_cast<int>(error.code()), error.what());
  failure.update(result);
  PrintJson(console.out, failure);
  throw ReportedError(error.code(), error.what());
}

std::string ReadInput(const std::string& path) {
  if (path != "-") return ReadTextFile(path);
  std::string text;
  std::string piece(std::size_t{1} << 16, '\0');
  while (std::cin.read(piece.data(), std::ssize(piece)) || std::cin.gcount() > 0) {
    text.append(piece, 0, static_cast<std::size_t>(std::cin.gcount()));
    if (std::ssize(text) > kMaxTextFileBytes) {
      ThrowInvalidInput("standard input: expected a text of at most {} bytes", kMaxTextFileBytes);
    }
  }
  return text;
}

void OutputFile::Declare(OptionTable& table, std::string name, std::string alias) {
  table.AddPath(std::move(name), &path, "file to write instead of standard output",
                {std::move(alias)});
  table.Add("overwrite", &overwrite, "replace the file when it exists");
}

void OutputFile::Check() const {
  if (path.empty() || overwrite) return;
  std::error_code ignored;
  // A link to nothing also has the name. kCreate would fail in the end; this check fails before the
  // work.
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return;
  ThrowInvalidInput("{} exists; give --overwrite to replace it, or choose another name", path);
}

void OutputFile::Write(const Console& console, std::string_view text) const {
  if (path.empty()) {
    console.out << text;
    return;
  }
  Check();
  WriteTextFile(path, text, overwrite ? OpenMode::kReplace : OpenMode::kCreate);
}

std::string SingleQuoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string ShellQuote(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  return SingleQuoted(text);
}

}  // namespace qlora
