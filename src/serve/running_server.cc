#include "serve/running_server.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/memory_info.h"
#include "base/text.h"
#include "plan/memory_plan.h"
#include "serve/engine/engine_service.h"
#include "serve/http_server.h"
#include "serve/jobs/fine_tuning.h"
#include "serve/request_log.h"
#include "serve/routes/routes.h"
#include "serve/server.h"

namespace qlora {
namespace {

// Threads that parse, render and tokenize; they sleep most of the time.
constexpr std::int64_t kWorkers = 4;

std::string KeyOf(const ServeOptions& options) {
  if (options.api_key_file.empty()) return options.api_key;
  const std::string key(Trim(ReadTextFile(options.api_key_file)));
  if (key.empty()) ThrowInvalidInput("api_key_file: {} has no key", options.api_key_file);
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
  if (options.page) {
    for (const std::string& path : PagePaths()) http.open_paths.push_back(path);
  }
  return http;
}

FineTuningOptions JobOptionsOf(const ServeOptions& options, const LoadedModel& base) {
  FineTuningOptions jobs;
  jobs.folder = options.runs;
  jobs.base = base.BaseOptions();
  jobs.threads = base.context.threads();
  jobs.file_bytes = static_cast<std::int64_t>(ParseBytes(options.max_file_size));
  if (options.max_memory.empty()) return jobs;
  // One limit for the server and its jobs; without one, a run takes what is free.
  jobs.memory_left = [limit = ParseBytes(options.max_memory)] {
    return static_cast<std::int64_t>(limit) - static_cast<std::int64_t>(ResidentBytes());
  };
  return jobs;
}

}  // namespace

// Members are initialized in the order of their declaration.
class RunningServer::Impl {
 public:
  Impl(Context& context, const ServeOptions& given, const std::string& version,
       std::function<void(const std::string&)> log, const ProgressFn& progress)
      : options(given),
        models(context, options, version, progress),
        plan(PlanServing(models.base(), models.All(), options)),
        generation(models.base(), models, metrics, plan.limits),
        workers(kWorkers),
        server{.models = models,
               .generation = generation,
               .metrics = metrics,
               .options = options,
               .workers = workers,
               .log = std::move(log),
               .base = &models.base()},
        routes(server) {
    http.emplace(Prepare(), [this](HttpRequest request, HttpReplyPtr reply) {
      routes.Handle(std::move(request), std::move(reply));
    });
  }

  // Each needs what comes after it to the end.
  ~Impl() {
    http.reset();
    workers.Finish();
    jobs.reset();
    generation.Stop();
  }

  // All that must be there before the first request.
  HttpOptions Prepare() {
    models.SetContextLength(plan.limits.positions);
    models.SetRunAlone([this](const std::function<void()>& work) { generation.RunAlone(work); });
    if (!options.runs.empty()) {
      // Runs are processes of this program.
      jobs.emplace(JobOptionsOf(options, models.base()), models,
                   ProcessTrainer(std::filesystem::read_symlink("/proc/self/exe")), server.log);
      server.fine_tuning = &*jobs;
    }
    if (!options.log_requests.empty()) {
      request_log.emplace(options.log_requests, workers, server.log);
      server.request_log = &*request_log;
    }
    AddStatusRoutes(routes, server);
    AddModelRoutes(routes, server);
    AddChatRoutes(routes, server);
    AddCompletionRoutes(routes, server);
    AddTokenRoutes(routes, server);
    AddResponseRoutes(routes, server);
    AddMessageRoutes(routes, server);
    AddDecisionRoutes(routes, server);
    AddFileRoutes(routes, server);
    AddJobRoutes(routes, server);
    AddFeedbackRoutes(routes, server);
    if (options.page) AddPageRoutes(routes, server);
    HttpOptions made = HttpOptionsOf(options);
    const HttpBody in_memory = {.limit = made.limits.body};
    made.body_of = [this, in_memory](const HttpRequest& head) {
      const std::optional<HttpBody> upload = jobs ? jobs->BodyOf(head) : std::nullopt;
      return upload.value_or(in_memory);
    };
    return made;
  }

  const ServeOptions options;
  Metrics metrics;
  LoadedModels models;
  const ServePlan plan;
  EngineService generation;
  Workers workers;
  Server server;
  std::optional<FineTuning> jobs;
  std::optional<RequestLog> request_log;
  RouteTable routes;
  std::optional<HttpServer> http;
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
  const auto end = std::chrono::steady_clock::now() + longest;
  impl_->server.stops = true;
  impl_->generation.Refuse();
  impl_->http->Drain();
  impl_->generation.WaitUntilIdle(longest);
  // Answers leave after they are written.
  while (impl_->http->open_requests() > 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace qlora
