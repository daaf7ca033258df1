// The page at /, and what it alone asks: which parts there are, and training runs.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "log/log_reader.h"
#include "serve/page/serve_page.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Nothing but this server is asked, whatever texts a model writes.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "frame-ancestors 'none'; form-action 'none'; base-uri 'none'";

// A folder of a run has its log.
constexpr const char* kLog = "train_log.jsonl";

// The newest that are listed.
constexpr std::int64_t kMostRuns = 1000;

void AddText(RouteTable& table, const char* path, const char* type, const char* text) {
  table.AddQuick("GET", path, [type, text](const HttpRequest&, const HttpReplyPtr& reply) {
    reply->Send({.type = type,
                 .body = text,
                 .headers = {{"Content-Security-Policy", kPolicy},
                             {"X-Content-Type-Options", "nosniff"},
                             {"Referrer-Policy", "no-referrer"},
                             {"Cache-Control", "no-cache"}}});
  });
}

const std::string& RunsOf(const Server& server) {
  if (!server.options.runs.empty()) return server.options.runs;
  throw ApiError(404, "this server shows no runs: start it with --runs DIR");
}

OrderedJson ListRuns(const Server& server) {
  std::vector<std::pair<fs::file_time_type, std::string>> runs;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(RunsOf(server), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.front() == '.' || entry.is_symlink(ignored)) continue;
    std::error_code no_log;
    const auto time = fs::last_write_time(entry.path() / kLog, no_log);
    if (!no_log) runs.emplace_back(time, name);
  }
  std::ranges::sort(runs, std::ranges::greater());
  if (std::ssize(runs) > kMostRuns) runs.resize(kMostRuns);
  OrderedJson list = OrderedJson::array();
  for (const auto& [time, name] : runs) list.push_back({{"name", name}});
  return {{"object", "list"}, {"data", std::move(list)}};
}

// Errors: ApiError 404 for a name that is none of a run, or that leads out of the folder.
fs::path RunFolder(const Server& server, const std::string& name) {
  const fs::path root = WithoutLinks(RunsOf(server));
  const fs::path folder = WithoutLinks(root / name);
  const bool is_beneath = folder != root && Contains(root, folder);
  if (name.empty() || name.front() == '.' || !is_beneath || !Exists(folder / kLog)) {
    throw ApiError(404, "there is no run of this name");
  }
  return folder;
}

}  // namespace

std::vector<std::string> PagePaths() { return {"/", "/serve.css", "/serve.js"}; }

void AddPageRoutes(RouteTable& table, Server& server) {
  AddText(table, "/", "text/html; charset=utf-8", kServeHtml);
  AddText(table, "/serve.css", "text/css; charset=utf-8", kServeCss);
  AddText(table, "/serve.js", "text/javascript; charset=utf-8", kServeScript);
  table.AddJson("GET", "/page.json", [&server](const HttpRequest&) -> OrderedJson {
    return {{"runs", !server.options.runs.empty()}, {"marks", server.request_log != nullptr}};
  });
  table.AddJson("GET", "/runs", [&server](const HttpRequest&) { return ListRuns(server); });
  table.Add("GET", "/runs/{name}/data.json",
            [&server](const HttpRequest& http, const HttpReplyPtr& reply) {
              reply->Send({.body = ReadRunLogs(RunFolder(server, http.values.at("name")))});
            });
}

}  // namespace qlora
