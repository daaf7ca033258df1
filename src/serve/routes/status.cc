// Whether the server is well, and what it has done.
#include <nlohmann/json.hpp>

#include "serve/routes/routes.h"

namespace qlora {

void AddStatusRoutes(RouteTable& table, Server& server) {
  const auto health = [&server](const HttpRequest&, const HttpReplyPtr& reply) {
    if (server.stops) throw ApiError(503, "the server is stopping", "", "stopping");
    SendJson(*reply, {{"status", "ok"}});
  };
  table.AddQuick("GET", "/health", health);
  table.AddQuick("GET", "/v1/health", health);
  table.AddQuick("GET", "/metrics", [&server](const HttpRequest&, const HttpReplyPtr& reply) {
    reply->Send(
        {.type = "text/plain; version=0.0.4; charset=utf-8", .body = server.metrics.Text()});
  });
}

}  // namespace qlora
