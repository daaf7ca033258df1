#include "report/dashboard.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/check.h"
#include "report/report_page.h"
#include "serve/api_error.h"

namespace qlora {
namespace {

constexpr std::chrono::seconds kShareTime(1);

// Bounds what a program on this machine can take from the trainer.
HttpOptions OptionsOf(std::int64_t port) {
  CheckPort(port);
  HttpOptions options;
  options.port = port;
  options.limits.body = 0;
  options.limits.head = std::size_t{8} << 10;
  options.limits.connections = 16;
  options.limits.head_time = std::chrono::seconds(5);
  options.limits.idle_time = std::chrono::seconds(20);
  // A person reads it.
  options.error_of = [](const HttpRequest&, const ApiError& error) -> HttpResponse {
    return {
        .status = error.status, .type = "text/plain; charset=utf-8", .body = error.message + "\n"};
  };
  return options;
}

}  // namespace

void CheckPort(std::int64_t port) {
  constexpr std::int64_t kHighest = 65535;
  if (port >= 1 && port <= kHighest) return;
  ThrowInvalidInput("dashboard: expected a port, 1 to {}, found {}", kHighest, port);
}

// Logs are read for each text: the trainer shares nothing with the thread of the server but the
// files.
Dashboard::Dashboard(std::int64_t port, std::string run_dir)
    : url_(fmt::format("http://127.0.0.1:{}/", port)),
      data_([run_dir = std::move(run_dir)] { return ReportData({run_dir}, true); }, kShareTime),
      server_(OptionsOf(port), [this](const HttpRequest& request, const HttpReplyPtr& reply) {
        // Nothing can be changed through this server.
        if (request.method != "GET") throw ApiError(405, "only GET is answered");
        if (request.path == "/") {
          // The page without data, which asks for /data.json again and again.
          reply->Send({.type = "text/html; charset=utf-8",
                       .body = ReportPage("{\"live\":true,\"runs\":[]}")});
        } else if (request.path == "/data.json") {
          reply->Send({.shared = data_.Get()});
        } else {
          throw ApiError(404, "there is no such page");
        }
      }) {}

}  // namespace qlora
