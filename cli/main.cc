// The program `qlora`: picks a verb, runs it, and turns the outcome into an exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <span>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/memory_info.h"
#include "base/printable.h"
#include "base/spelling.h"
#include "base/version.h"
#include "command/command_line.h"
#include "command/common.h"
#include "command/errors.h"
#include "command/help.h"
#include "command/model_loading.h"
#include "command/verb.h"
#include "dist/launch.h"
#include "dist/together.h"
#include "foreign/foreign_option.h"
#include "io/json.h"
#include "terminal/interrupt.h"
#include "terminal/text_wrap.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

using Verbs = std::vector<std::unique_ptr<Verb>>;

bool IsHelp(const std::string& word) { return word == "help" || word == "--help" || word == "-h"; }

bool IsVersion(const std::string& word) {
  return word == "version" || word == "--version" || word == "-V" || word == "-v";
}

Verb* FindVerb(const Verbs& verbs, const std::string& name) {
  const auto found = std::find_if(verbs.begin(), verbs.end(),
                                  [&](const auto& verb) { return verb->text().name == name; });
  return found == verbs.end() ? nullptr : found->get();
}

// Reports another program's verb, a misspelt one, or an unknown one.
[[noreturn]] void ThrowUnknownVerb(const Verbs& verbs, const std::string& name) {
  if (const std::string advice = VerbAdvice(name); !advice.empty()) {
    // `qlora finetune` gets an answer, not a list.
    ThrowInvalidInput("unknown verb '{}': {}", name, advice);
  }
  std::vector<std::string> all;
  for (const std::unique_ptr<Verb>& verb : verbs) all.push_back(verb->text().name);
  const std::string nearest = Nearest(name, all);
  if (!nearest.empty()) ThrowInvalidInput("unknown verb '{}'; did you mean '{}'?", name, nearest);
  ThrowInvalidInput("unknown verb '{}'; the verbs are {}", name, fmt::join(all, ", "));
}

Verb& GetVerb(const Verbs& verbs, const std::string& name) {
  Verb* verb = FindVerb(verbs, name);
  if (verb == nullptr) ThrowUnknownVerb(verbs, name);
  return *verb;
}

void CheckRequired(const VerbText& text, OptionTable& table) {
  for (const std::string& key : text.required) {
    const Option* option = table.Find(key);
    // A shell turns `--model "$UNSET"` into "--model ''".
    if (!option->set || option->ToString().empty()) {
      // The short name that the documents use, where there is one.
      const std::string name = option->name == "model_name_or_path" ? "model" : option->name;
      ThrowInvalidInput("--{} is missing ({})", name, option->help);
    }
  }
}

// The ranks that run a command together: this process alone, unless a launcher started several.
struct Ranks {
  Launched launched;
  std::unique_ptr<Communicator> communicator = MakeOneProcess();

  bool is_root() const { return launched.rank == 0; }
};

// Refuses ranks of different verbs or releases, whose later calls would not fit each other: the
// first call has the same size in all of them.
void CheckIsOneCommand(const VerbText& text, Communicator& communicator) {
  if (communicator.is_alone()) return;
  using Name = std::array<char, 128>;
  Name mine = {};
  const std::string name = fmt::format("{}, qlora {} {}", text.name, Version(), Commit());
  std::copy_n(name.begin(), std::min(name.size(), mine.size() - 1), mine.begin());
  std::vector<Name> all(static_cast<std::size_t>(communicator.size()));
  communicator.Gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const Name& one) { return one != all.front(); });
  if (other == all.end()) return;
  communicator.EndTogether();
  // Another release may fill all of it.
  const auto words = [](const Name& one) {
    return std::string(one.data(), strnlen(one.data(), one.size()));
  };
  ThrowInvalidInput("the ranks of this job differ: '{}' on rank 0, '{}' on rank {}",
                    words(all.front()), words(*other), other - all.begin());
}

// Joins the ranks that the launcher started, for a verb that several can run.
void Join(const VerbText& text, Ranks& ranks) {
  if (!text.on_ranks && ranks.launched.size > 1) {
    if (!ranks.is_root()) std::exit(static_cast<int>(ErrorCode::kInvalidInput));  // rank 0 says why
    ThrowInvalidInput(
        "{} started {} processes, and `qlora {}` is the work of one; run it without {}",
        ranks.launched.launcher, ranks.launched.size, text.name, ranks.launched.launcher);
  }
  if (!text.on_ranks) return;
  ranks.communicator = JoinRanks(ranks.launched, [](const std::string& remark) {
    std::cerr << "note: " << Printable(remark) << std::endl;
  });
  CheckIsOneCommand(text, *ranks.communicator);
}

// Sets the options of a verb. Returns true when help was asked for, and the other arguments are
// ignored.
bool ReadOptions(Verb& verb, const VerbText& text, const std::vector<std::string>& arguments,
                 const Console& console, OptionTable& table) {
  verb.Declare(table);
  std::vector<std::string> notes;
  if (ParseCommandLine(verb.Spell(arguments), text, table, notes)) return true;
  for (const std::string& note : notes) Say(console, "note: " + note);
  // Checked before missing options: an adapter in the place of the model explains both.
  CheckIsNoAdapter(text, table);
  // A verb may need less with some options than its help says.
  CheckRequired(verb.text(), table);
  // Called after the checks: defaults that follow from other options need these options.
  verb.Complete(table);
  return false;
}

// A process that is ended for its memory cannot say so itself.
void NoteSmallMemory(const Console& console) {
  constexpr std::size_t kLittle = std::size_t{128} << 20;
  const std::size_t total = TotalBytes();
  if (total >= kLittle) return;
  Say(console,
      fmt::format("note: this process may have {} of memory, by the limit of a cgroup or a "
                  "container; where it needs more, the system ends it without a word",
                  FormatBytes(total)));
}

int RunVerb(Verb& verb, const std::vector<std::string>& arguments, const Console& console,
            Ranks& ranks) {
  const VerbText text = verb.text();
  Join(text, ranks);
  verb.Join(*ranks.communicator);
  OptionTable table;
  // A file of options may be wrong, or missing, on one host.
  const bool helps = MakeTogether(
      *ranks.communicator, [&] { return ReadOptions(verb, text, arguments, console, table); });
  if (!helps) {
    NoteSmallMemory(console);
    return verb.Run(console);
  }
  console.out << VerbHelp(text, table, TextColumns(console.out_style));
  return 0;
}

int PrintVersion(const std::vector<std::string>& arguments, const Console& console) {
  RunFields run;
  OptionTable table;
  run.DeclareJson(table);
  std::vector<std::string> notes;
  ParseCommandLine({arguments.begin() + 1, arguments.end()}, VerbText(), table, notes);
  const std::string commit = Commit();
  if (run.json) {
    PrintJson(console.out, {{"version", Version()}, {"commit", commit}});
  } else {
    console.out << "qlora " << Version() << (commit.empty() ? "" : " (" + commit + ")") << '\n';
  }
  return 0;
}

int Dispatch(const std::vector<std::string>& arguments, const Console& console, Ranks& ranks) {
  const Verbs verbs = AllVerbs();
  if (arguments.empty()) {
    // On standard error with exit code 2: a script that calls `qlora` without a verb has a mistake.
    console.err << ProgramHelp(verbs, TextColumns(console.style));
    return static_cast<int>(ErrorCode::kInvalidInput);
  }
  const std::string& first = arguments[0];
  if (IsVersion(first)) return PrintVersion(arguments, console);
  if (IsHelp(first)) {
    if (arguments.size() > 1 && !IsHelp(arguments[1]) && !IsVersion(arguments[1])) {
      return RunVerb(GetVerb(verbs, arguments[1]), {"--help"}, console, ranks);
    }
    console.out << ProgramHelp(verbs, TextColumns(console.out_style));
    return 0;
  }
  return RunVerb(GetVerb(verbs, first), {arguments.begin() + 1, arguments.end()}, console, ranks);
}

// Reports a failed command on standard error, whose last line gives the advice, and with --json
// also as an object on standard output.
class Failure {
 public:
  Failure(const std::vector<std::string>& arguments, const Console& console, const Ranks& ranks)
      : console_(console), ranks_(ranks) {
    const Verbs verbs = AllVerbs();
    Verb* verb = arguments.empty() ? nullptr : FindVerb(verbs, arguments[0]);
    if (verb == nullptr) return;
    OptionTable table;
    verb->Declare(table);
    json_ = table.Find("json") != nullptr && AsksForJson(arguments);
    verb_ = verb->text().name;
    writes_ = verb->text().writes;
  }

  // Of several ranks, rank 0 reports what all have met, and each rank that was started in a shell
  // or a pod of its own; any other failure is reported where it is, and ends all ranks.
  int Print(int code, const std::string& message, const std::string& advice) const {
    // A rank that could not join the others is alone, and the others may never hear of it.
    const bool joined = ranks_.communicator->size() == ranks_.launched.size;
    const bool together =
        joined && (ranks_.launched.size == 1 || ranks_.communicator->ends_together());
    if (ranks_.is_root()) {
      PrintFailure(console_, code, message, advice, json_);
    } else if (!together || ranks_.launched.is_of_pod) {
      const std::string& host = ranks_.communicator->host();
      std::cerr << fmt::format("rank {} of {}{}: error: {}\n", ranks_.launched.rank,
                               ranks_.launched.size, host.empty() ? "" : " (" + host + ")",
                               Printable(message));
    }
    if (!together && joined) {
      std::cout.flush();
      ranks_.communicator->Abort(code);
    }
    return code;
  }
  int Print(ErrorCode code, const std::string& message, const std::string& advice) const {
    return Print(static_cast<int>(code), message, advice);
  }

  // Returns the advice after wrong input.
  std::string Correct() const {
    if (verb_.empty()) return "See: qlora help";
    return fmt::format("{}See: qlora help {}", writes_ ? kUnchanged : "", verb_);
  }
  // Returns the advice after a signal.
  std::string StartAgain() const {
    return writes_ ? fmt::format("{}Run the same command to start again.", kUnchanged) : "";
  }
  void OnlyText() { json_ = false; }

 private:
  static constexpr std::string_view kUnchanged = "No files were changed. ";

  const Console& console_;
  const Ranks& ranks_;
  std::string verb_;
  bool writes_ = false;
  bool json_ = false;
};

// Runs the command on this rank. Returns the exit code.
int RunOnRank(const std::vector<std::string>& arguments, const Console& console, Ranks& ranks) {
  Failure failure(arguments, console, ranks);
  const auto report = [&](ErrorCode code, const std::string& message) {
    return failure.Print(code, message, code == ErrorCode::kInvalidInput ? failure.Correct() : "");
  };
  try {
    return FlushOutput(console, Dispatch(arguments, console, ranks));
  } catch (const ReportedError& error) {
    // The object is on standard output already.
    failure.OnlyText();
    return report(error.code(), error.what());
  } catch (const Error& error) {
    return report(error.code(), error.what());
  } catch (const Interrupted& interrupted) {
    return failure.Print(kInterruptedExit, "interrupted",
                         interrupted.state.empty() ? failure.StartAgain() : interrupted.state);
  } catch (const std::bad_alloc&) {
    return failure.Print(ErrorCode::kOutOfMemory, "memory ran out",
                         "free some, or ask for less: a smaller max_length, batch size or model");
  } catch (const std::filesystem::filesystem_error& error) {
    return report(CodeOf(error),
                  fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::exception& error) {
    // Expected errors have their own classes; any other exception is a defect.
    return failure.Print(
        ErrorCode::kRuntime, fmt::format("unexpected: {}", error.what()),
        "this is a defect of qlora; please report it with the output of `qlora doctor`");
  }
}

// A stream that takes everything and keeps nothing.
class Nothing : public std::streambuf {
 protected:
  int_type overflow(int_type c) override { return traits_type::not_eof(c); }
  std::streamsize xsputn(const char* /*text*/, std::streamsize count) override { return count; }
};

// True for a command that is the work of all ranks.
bool IsOnRanks(const std::vector<std::string>& arguments) {
  const Verbs verbs = AllVerbs();
  const Verb* verb = arguments.empty() ? nullptr : FindVerb(verbs, arguments[0]);
  return verb != nullptr && verb->text().on_ranks &&
         std::none_of(arguments.begin(), arguments.end(), IsHelp);
}

int RunProgram(const std::vector<std::string>& arguments, const Console& console) {
  Ranks ranks;
  ranks.launched = ReadLauncher();
  if (ranks.launched.is_of_pod && !IsOnRanks(arguments)) ranks.launched = {};
  if (ranks.is_root()) return RunOnRank(arguments, console, ranks);
  Nothing nothing;
  std::ostream out(&nothing), err(&nothing);
  return RunOnRank(arguments, {out, err, {}, {}}, ranks);
}

// A mapped file that another program shortens, or a disk that fails, ends the process by this
// signal at the next read. Nothing but system calls is safe here.
void EndByBusError(int /*signal*/) {
  constexpr std::string_view kMessage =
      "error: a file became shorter, or could not be read, while it was in use (the model, the "
      "adapter, a checkpoint or the data)\nrestore the file and run the command again\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(static_cast<int>(ErrorCode::kRuntime));
}

void PrepareProcess() {
  // A reader that goes away must not end a training run; writes fail instead and are checked. So do
  // writes beyond the limit of a file's size.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGBUS, EndByBusError);
  // A closed standard descriptor would be given to the next file that is opened, which would then
  // receive the messages. It stays unusable: reads from 0 and writes to 1 and 2 fail.
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    const int fd = open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (fd >= 0 && fd != descriptor) {
      dup2(fd, descriptor);
      close(fd);
    }
  }
}

}  // namespace
}  // namespace qlora

int main(int argc, char** argv) {
  qlora::PrepareProcess();
  std::ios::sync_with_stdio(false);
  // Reading need not flush the output first; prompts go to standard error.
  std::cin.tie(nullptr);
  const qlora::Console console{std::cout, std::cerr, qlora::StyleOf(STDERR_FILENO),
                               qlora::StyleOf(STDOUT_FILENO)};
  return qlora::RunProgram({argv + 1, argv + argc}, console);
}
