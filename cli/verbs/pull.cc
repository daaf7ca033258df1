// `qlora pull`: the one verb that uses the network. Standard output gets the folder of the files
// alone, so that a script can write model=$(qlora pull org/name).
#include "pull/pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"
#include "base/version.h"
#include "command/common.h"
#include "pull/http.h"
#include "terminal/interrupt.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

using PullClock = std::chrono::steady_clock;

double SecondsSince(PullClock::time_point begin) {
  return std::chrono::duration<double>(PullClock::now() - begin).count();
}

// The line of a terminal; without one, a line every half minute.
class PullDisplay {
 public:
  explicit PullDisplay(const Console& console)
      : console_(console), line_(console.err, console.style) {}

  void Show(const PullProgress& progress) {
    const bool last = progress.bytes_done == progress.bytes;
    // Logs get a line every half minute, terminals ten a second.
    if (line_.style().live ? !line_.Due() && !last : SecondsSince(shown_) < kQuietSeconds) return;
    shown_ = PullClock::now();
    const double seconds = SecondsSince(begin_);
    // bytes_received, not bytes_done: files that were there already took no time.
    const double rate = static_cast<double>(progress.bytes_received) / std::max(seconds, 0.1);
    const double left = static_cast<double>(progress.bytes - progress.bytes_done) / rate;
    // A repository of empty files has 0 bytes.
    const double share = static_cast<double>(progress.bytes_done) /
                         static_cast<double>(std::max(progress.bytes, {1}));
    const std::string rest =
        fmt::format(" {:3.0f} %  {} of {}, {}/s, {} left, {}/{} files", 100 * share,
                    FormatBytes(progress.bytes_done), FormatBytes(progress.bytes),
                    FormatBytes(static_cast<std::size_t>(rate)), FormatDuration(left),
                    progress.files_done, progress.files);
    const std::int64_t room = line_.style().columns - 1 - std::ssize(rest);
    const std::string text =
        Bar(share, static_cast<int>(std::clamp<std::int64_t>(room, 8, 26))) + rest;
    if (line_.style().live) {
      line_.Show(text);
    } else {
      console_.err << text << std::endl;
    }
  }
  void Note(const std::string& text) { line_.Print(text); }

 private:
  static constexpr double kQuietSeconds = 30;

  const Console& console_;
  StatusLine line_;
  PullClock::time_point begin_ = PullClock::now();
  PullClock::time_point shown_ = PullClock::now();
};

// Returns host and path of an address, with a port that is not the usual one of http or https. The
// two schemes count as one: pages link to a hub by either. Errors: InvalidInput for an address that
// cannot be read.
std::string PlaceOf(const std::string& address) {
  try {
    std::string place = OriginOf(address);
    place.erase(0, place.find("://") + 3);
    for (const std::string_view port : {":80", ":443"}) {
      if (place.ends_with(port)) place.erase(place.size() - port.size());
    }
    const std::size_t path = address.find('/', address.find("://") + 3);
    return LowerCase(place) + (path == std::string::npos ? "/" : address.substr(path));
  } catch (const Error& error) {
    ThrowInvalidInput("{}", error.what());
  }
}

// The path in an address of the hub; nothing for a text that is no address. The scheme may be left
// out for the hub that everyone knows.
std::optional<std::string> PathIn(const std::string& text, const std::string& endpoint) {
  const bool has_scheme = text.find("://") != std::string::npos;
  const std::string start = LowerCase(text.substr(0, text.find('/') + 1));
  if (!has_scheme && start != "huggingface.co/" && start != "hf.co/") return {};
  const std::string place = PlaceOf(has_scheme ? text : "https://" + text);
  for (const std::string& hub :
       {PlaceOf(endpoint + "/"), std::string("huggingface.co/"), std::string("hf.co/")}) {
    if (place.starts_with(hub)) return place.substr(hub.size());
  }
  ThrowInvalidInput("{}: no address of {}; write org/name (HF_ENDPOINT names another hub)", text,
                    WithoutPassword(endpoint));
}

// The name in an address that was copied from a browser, org/name or org/name@revision. A text that
// is no address is left as it is.
std::string NameIn(const std::string& text, const std::string& endpoint, bool of_dataset) {
  const std::optional<std::string> path = PathIn(text, endpoint);
  if (!path) return text;
  std::string name = *path;
  constexpr std::string_view kDatasets = "datasets/";
  const bool names_dataset = name.starts_with(kDatasets);
  if (names_dataset) name.erase(0, kDatasets.size());
  // Behind org/name there may be the place in the site: /tree/REVISION/folder, /blob/REVISION/file.
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos) return name;
  const std::size_t end = std::min(name.find_first_of("/?#", slash + 1), name.size());
  const std::string_view place = std::string_view(name).substr(end);
  std::string found = name.substr(0, end);
  for (const std::string_view start : {"/tree/", "/blob/", "/resolve/"}) {
    if (!place.starts_with(start)) continue;
    const std::string_view revision = place.substr(start.size());
    found += "@" + std::string(revision.substr(0, revision.find_first_of("/?#")));
  }
  if (names_dataset && !of_dataset) {
    ThrowInvalidInput("{} is the address of a data set; write qlora pull --dataset {}", text,
                      found);
  }
  return found;
}

class PullVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "pull",
        .summary = "download a model or a data set from the Hugging Face hub",
        .explanation =
            "Downloads into the Hugging Face cache, where all verbs and other programs find "
            "org/name, the files that training needs: safetensors, configuration, tokenizer, "
            "templates. Every file is checked against its hash. Existing files are kept; "
            "interrupted downloads resume. Prints the folder of the files. Reads HF_TOKEN, "
            "HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and the other variables of Hugging Face's "
            "programs. Besides this verb, only `qlora serve` and ranks on several machines use "
            "the network.",
        .examples = {"qlora pull Qwen/Qwen3-0.6B", "qlora pull org/name@v1.0 --exclude '*.md'",
                     "qlora pull --dataset org/name"},
        .positionals = {"repository"},
        .required = {"repository"},
    };
  }

  void Declare(OptionTable& table) override {
    table.Section("What");
    table.Add("repository", &repository_,
              "org/name, org/name@revision, or the address of its page");
    table.Add("dataset", &dataset_, "the repository is a data set");
    table.Add("all", &selection_.all, "download every file");
    table.Add("include", &selection_.include,
              "patterns of the files to download instead of those that training needs: '*.gguf'");
    table.Add("exclude", &selection_.exclude, "patterns of files to leave out");
    table.Add("force_download", &force_download_,
              "download files that are in the cache again, such as damaged ones");
    table.Section("Run");
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    PullOptions options;
    // Checked before the network is asked: a name becomes part of a path and of a URL.
    const HubSettings settings = ReadHubSettings();
    options.repository = ParseHubRepository(NameIn(repository_, settings.endpoint, dataset_),
                                            dataset_ ? HubType::kDataset : HubType::kModel);
    options.selection = std::move(selection_);
    options.force_download = force_download_;
    // The hub asks programs to name themselves.
    options.user_agent = fmt::format("qlora/{}; linux", Version());
    const PullClock::time_point begin = PullClock::now();
    // Ctrl+C is noticed between two pieces of a file, which stay for the next call.
    const InterruptGuard interrupt;
    PullDisplay display(console);
    const PullEvents events{
        .progress = [&](const PullProgress& progress) { display.Show(progress); },
        .note = [&](const std::string& text) { display.Note(text); },
        .check = [&] { interrupt.ThrowIfRequested(); }};
    PullResult result;
    try {
      result = Pull(settings, options, events);
    } catch (const Interrupted&) {
      // Files grow under a temporary name until their hash is right.
      throw Interrupted{"what was received is kept; run the same command again to continue"};
    }
    Report(console, display, result, SecondsSince(begin));
    return 0;
  }

 private:
  void Report(const Console& console, PullDisplay& display, const PullResult& result,
              double seconds) const {
    const PullProgress& progress = result.progress;
    if (run_.json) {
      PrintJson(console.out, {{"snapshot", result.snapshot.string()},
                              {"commit", result.commit},
                              {"files", progress.files},
                              {"bytes", progress.bytes},
                              {"bytes_received", progress.bytes_received},
                              {"left_out", result.left_out},
                              {"left_out_bytes", result.left_out_bytes}});
      return;
    }
    display.Note(fmt::format("{}, {} ({} received in {}), commit {}",
                             Counted(progress.files, "file"), FormatBytes(progress.bytes),
                             FormatBytes(progress.bytes_received), FormatDuration(seconds),
                             result.commit));
    // Said, because a file that is missed later was left out on purpose.
    if (result.left_out > 0) {
      display.Note(fmt::format("left out: {} of {}, which training does not need",
                               Counted(result.left_out, "file"),
                               FormatBytes(result.left_out_bytes)));
    }
    console.out << result.snapshot.string() << '\n';
  }

  std::string repository_;
  bool dataset_ = false;
  SelectionOptions selection_;
  bool force_download_ = false;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakePullVerb() { return std::make_unique<PullVerb>(); }

}  // namespace qlora
