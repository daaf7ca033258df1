// `qlora serve`: a base and its adapters for clients of OpenAI's interface. Everything that people
// read goes to standard error.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <mutex>
#include <string>
#include <thread>

#include "base/printable.h"
#include "base/version.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "serve/running_server.h"
#include "terminal/interrupt.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

constexpr std::chrono::seconds kDrainTime(10);

class ServeVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "serve",
        .summary = "answer clients of OpenAI's interface with a model and its adapters",
        .explanation =
            "Loads the model once, and answers requests to it and to any number of its adapters, "
            "each under its own name, many at the same time: chat completions, completions, "
            "responses, messages, decisions, and with --runs fine-tuning jobs (docs/serve.md lists "
            "the routes), and a page at / to try and compare the models. A request has the same "
            "answer whoever else is served. Listens on this "
            "machine alone unless --host names another address, which needs --api_key. Ctrl+C "
            "refuses new requests and ends the server when the running ones are answered, after "
            "10 seconds at the latest; again, it ends at once.",
        .examples = {"qlora serve ./my-model --adapter tales=my-adapter",
                     "qlora serve ./my-model --adapter a=first --adapter b=second --port 8000"},
        .positionals = {"model_name_or_path"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    // Generation is limited by reading weights.
    options_.model.copy_weights = true;
    options_.Declare(table);
    options_table_ = &table;
    run_.DeclareThreads(table);
  }

  int Run(const Console& console) override {
    options_.has_seed = options_table_->Find("seed")->set;
    options_.Check();
    InterruptGuard guard;
    for (const std::string& adapter : options_.model.adapter) {
      NoteOtherBase(options_.model.model_name_or_path, {ParseNamedAdapter(adapter).folder},
                    console);
    }
    Context context(run_.ThreadCount());
    std::mutex writing;
    const auto log = [&](const std::string& line) {
      const std::lock_guard lock(writing);
      console.err << Printable(line) << '\n' << std::flush;
    };
    RunningServer server(context, options_, Version(), log, Loading(guard, console));
    ShowServer(server, console);
    while (!guard.requested()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const char* advice = guard.signal() == SIGINT ? "; Ctrl+C again ends now" : "";
    log(fmt::format("stopping: new requests are refused; running ones have 10 seconds{}", advice));
    const bool is_done = server.Drain(kDrainTime);
    log(is_done ? "stopped: all requests are answered" : "stopped: some requests were cut");
    return kInterruptedExit;
  }

 private:
  static ProgressFn Loading(const InterruptGuard& guard, const Console& console) {
    auto line = std::make_shared<StatusLine>(console.err, console.style);
    return [line, &guard](std::int64_t done, std::int64_t total) {
      guard.ThrowIfRequested();
      ShowProgress(*line, "loading", done, total);
    };
  }

  void ShowServer(const RunningServer& server, const Console& console) const {
    for (const std::string& note : server.models().notes()) Say(console, "note: " + note);
    const ServePlan& plan = server.plan();
    std::string memory = "memory:";
    const char* separator = " ";
    for (const MemoryPart& part : plan.parts) {
      if (part.bytes == 0) continue;
      memory += fmt::format("{}{} {}", separator, part.name, FormatBytes(part.bytes));
      separator = ", ";
    }
    Say(console, memory);
    Say(console, fmt::format("room: {} at a time, of {} tokens each",
                             Counted(plan.limits.sequences, "answer"), plan.limits.positions));
    if (!plan.note.empty()) Say(console, "note: " + plan.note);
    for (const ServedModelPtr& model : server.models().All()) {
      const char* kind = model->adapter == nullptr ? "base" : "adapter";
      Say(console, fmt::format("model: {} ({} {})", model->name, kind, model->folder));
    }
    if (!options_.log_requests.empty()) {
      Say(console, fmt::format("note: conversations, and what people say of the answers, are kept "
                               "in {} (--log_requests)",
                               options_.log_requests));
    }
    const std::string url = Url(server.port());
    Say(console, fmt::format("listening: {}{}", url,
                             options_.page ? " (a page to try the models in a browser)" : ""));
    const bool has_key = !options_.api_key.empty() || !options_.api_key_file.empty();
    const char* key = has_key ? " -H 'Authorization: Bearer KEY'" : "";
    const ServedModelPtr model = server.models().All().back();
    const bool chats = model->prompts->chat() != nullptr;
    console.err << fmt::format(
        "to try it: curl {}/v1/{} -H 'Content-Type: application/json'{} -d '{{\"model\": \"{}\", "
        "{}}}'\n",
        url, chats ? "chat/completions" : "completions", key, model->name,
        chats ? R"("messages": [{"role": "user", "content": "Hello"}])" : R"("prompt": "Hello")");
    console.err << std::flush;
  }

  std::string Url(std::int64_t port) const {
    const bool is_any = options_.host == "0.0.0.0" || options_.host == "::";
    const bool is_v6 = options_.host.find(':') != std::string::npos && !is_any;
    const std::string host = is_any  ? "127.0.0.1"
                             : is_v6 ? "[" + options_.host + "]"
                                     : options_.host;
    return fmt::format("http://{}:{}", host, port);
  }

  ServeOptions options_;
  OptionTable* options_table_ = nullptr;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeServeVerb() { return std::make_unique<ServeVerb>(); }

}  // namespace qlora
