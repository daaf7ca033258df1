#include "serve/running_server.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/system.h"
#include "base/text.h"
#include "io/folder_lock.h"
#include "model/model_fingerprint.h"
#include "plan/memory_plan.h"
#include "serve/engine/engine_service.h"
#include "serve/http_server.h"
#include "serve/jobs/fine_tuning.h"
#include "serve/request_log.h"
#include "serve/routes/routes.h"
#include "serve/server.h"

namespace qlora {
namespace {

// For answers that are written to leave; a client that does not read them waits no longer.
constexpr std::chrono::seconds kLeavingTime{2};

// A key that no header can have would keep everybody out.
std::string KeyOf(const ServeOptions& options) {
  const bool is_file = !options.api_key_file.empty();
  const std::string key(is_file ? Trim(ReadTextFile(options.api_key_file)) : options.api_key);
  if (is_file && key.empty())
    ThrowInvalidInput("api_key_file: {} has no key", options.api_key_file);
  const auto is_plain = [](unsigned char c) { return c > ' ' && c < 0x7F; };
  if (!std::ranges::all_of(key, is_plain)) {
    ThrowInvalidInput("{}: expected one key of ASCII characters, without spaces and line ends",
                      is_file ? "api_key_file" : "api_key");
  }
  return key;
}

HttpOptions HttpOptionsOf(const ServeOptions& options) {
  HttpOptions http;
  http.host = options.host;
  http.port = options.port;
  http.api_key = KeyOf(options);
  http.allow_hosts = options.allow_host;
  http.allow_origins = options.allow_origin;
  http.error_of = ErrorResponse;
  http.limits.bodies = BytesOfBodies(options);
  http.limits.unread = BytesOfUnread(http.limits.bodies);
  http.limits.body = http.limits.bodies / static_cast<std::size_t>(kLargestBodies);
  if (options.page) {
    for (const std::string& path : PagePaths()) http.open_paths.push_back(path);
  }
  return http;
}

FineTuningOptions JobOptionsOf(const ServeOptions& options, const LoadedModel& base,
                               const ServePlan& plan) {
  FineTuningOptions jobs;
  jobs.folder = options.runs;
  jobs.base = base.BaseOptions();
  jobs.base_fingerprint = fmt::format("{:016x}", ModelFingerprint(base.dir));
  jobs.threads = base.context.threads();
  jobs.file_bytes = static_cast<std::int64_t>(ParseBytes(options.max_file_size));
  jobs.context_length = plan.limits.positions;
  jobs.memory_left = [options, &plan] { return MemoryLeft(options, plan); };
  return jobs;
}

// Of two servers on one folder, each would go on with the jobs of the other, and remove its
// uploads.
ServeOptions WithFolders(const ServeOptions& options, FolderLock& runs) {
  if (!options.runs.empty()) {
    MakeDirectories(options.runs);
    if (!runs.Take(options.runs)) {
      ThrowInvalidInput("runs: {} is used by another server; stop that, or choose another folder",
                        options.runs);
    }
  }
  if (!options.adapter_dir.empty() && !std::filesystem::is_directory(options.adapter_dir)) {
    ThrowInvalidInput("adapter_dir: {} is no folder", options.adapter_dir);
  }
  return options;
}

std::unique_ptr<RequestLog> RequestLogOf(const ServeOptions& options, std::size_t bodies,
                                         Workers& workers,
                                         const std::function<void(const std::string&)>& log) {
  if (options.log_requests.empty()) return nullptr;
  const RequestLogLimits limits = {.answer_bytes = static_cast<std::int64_t>(BytesOfLog(bodies))};
  return std::make_unique<RequestLog>(options.log_requests, workers, log, nullptr, limits);
}

}  // namespace

// What can be refused without the model is refused before it is loaded: address, key, folders.
// Members are initialized in the order of their declaration.
class RunningServer::Impl {
 public:
  Impl(Context& context, const ServeOptions& given, const std::string& version,
       std::function<void(const std::string&)> log, const ProgressFn& progress)
      : options(WithFolders(given, runs_lock)),
        http_options(HttpOptionsOf(options)),
        workers(kReaders),
        request_log(RequestLogOf(options, http_options.limits.bodies, workers, log)),
        http(std::in_place, Prepared(log),
             [this](HttpRequest request, HttpReplyPtr reply) {
               CheckIsLoaded();
               routes.Handle(std::move(request), std::move(reply));
             }),
        models(context, options, version, progress),
        plan(PlanServing(models.base(), models.All(), models.planned_adapters(), options,
                         http_options.limits.bodies)),
        generation(models.base(), models.planned_adapters(), metrics, plan.limits),
        server{.models = models,
               .generation = generation,
               .metrics = metrics,
               .options = options,
               .workers = workers,
               .log = std::move(log),
               .base = &models.base(),
               .request_log = request_log.get()},
        routes(server) {
    models.SetRoom(plan.limits.positions, plan.decision_length, plan.adapter_bytes,
                   plan.request_bytes);
    models.SetRunAlone([this](const std::function<void()>& work) { generation.RunAlone(work); });
    if (!options.runs.empty()) {
      // Runs are processes of this program.
      const std::filesystem::path program = ProgramFile();
      if (program.empty()) {
        ThrowRuntime(
            "serve: the system does not say which file this program is (/proc/self/exe), "
            "and runs start it; leave out --runs");
      }
      jobs.emplace(JobOptionsOf(options, models.base(), plan), models, ProcessTrainer(program),
                   server.log);
      server.fine_tuning = &*jobs;
    }
    AddRoutes(routes, server);
    is_loaded = true;
  }

  // Each needs what comes after it to the end.
  ~Impl() {
    http.reset();
    // What waits for a worker is refused, not computed.
    generation.Refuse();
    workers.Finish();
    jobs.reset();
    generation.Stop();
  }

  // Throws ApiError 503 before the routes are there.
  void CheckIsLoaded() const {
    if (!is_loaded) throw ApiError(503, "the model is being loaded", "", "loading");
  }

  HttpOptions Prepared(const std::function<void(const std::string&)>& log) {
    HttpOptions made = http_options;
    made.log = log;
    const HttpBody in_memory = {.limit = made.limits.body};
    made.body_of = [this, in_memory](const HttpRequest& head) {
      CheckIsLoaded();
      const std::optional<HttpBody> upload = jobs ? jobs->BodyOf(head) : std::nullopt;
      return upload.value_or(in_memory);
    };
    return made;
  }

  FolderLock runs_lock;
  const ServeOptions options;
  const HttpOptions http_options;
  std::atomic<bool> is_loaded = false;
  Metrics metrics;
  Workers workers;
  const std::unique_ptr<RequestLog> request_log;  // or null
  std::optional<HttpServer> http;
  LoadedModels models;
  const ServePlan plan;
  EngineService generation;
  Server server;
  std::optional<FineTuning> jobs;
  RouteTable routes;
};

RunningServer::RunningServer(Context& context, const ServeOptions& options,
                             const std::string& version,
                             std::function<void(const std::string&)> log,
                             const ProgressFn& progress)
    : impl_(std::make_unique<Impl>(context, options, version, std::move(log), progress)) {}
RunningServer::~RunningServer() = default;

const LoadedModels& RunningServer::models() const { return impl_->models; }
const ServePlan& RunningServer::plan() const { return impl_->plan; }
std::int64_t RunningServer::port() const { return impl_->http->port(); }

bool RunningServer::Drain(std::chrono::milliseconds longest) {
  impl_->server.stops = true;
  impl_->generation.Refuse();
  impl_->http->Drain();
  // A running job writes its checkpoint meanwhile.
  if (impl_->jobs) impl_->jobs->BeginStop();
  const bool is_done = impl_->generation.WaitUntilIdle(longest);
  // Clients of what is not done are told.
  if (!is_done) impl_->generation.Stop();
  // Answers leave after they are written.
  const auto end = std::chrono::steady_clock::now() + kLeavingTime;
  while (impl_->http->open_requests() > 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return is_done;
}

}  // namespace qlora
