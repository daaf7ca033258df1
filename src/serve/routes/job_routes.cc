// /v1/fine_tuning/jobs, and the models that jobs have made.
#include <map>
#include <string>
#include <string_view>

#include "io/json.h"
#include "serve/jobs/fine_tuning.h"
#include "serve/request_fields.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

// The pairs of "metadata[key]=value".
std::map<std::string, std::string> MetadataOf(const HttpRequest& request) {
  constexpr std::string_view kBegin = "metadata[";
  std::map<std::string, std::string> metadata;
  for (const auto& [name, value] : request.query) {
    if (!name.starts_with(kBegin) || !name.ends_with(']')) continue;
    metadata[name.substr(kBegin.size(), name.size() - kBegin.size() - 1)] = value;
  }
  return metadata;
}

// "metadata=null", for which OpenAI's client for Node sends "metadata=", asks for jobs without any.
bool AsksForNoMetadata(const HttpRequest& request) {
  const auto whole = request.query.find("metadata");
  return whole != request.query.end() && (whole->second == "null" || whole->second.empty());
}

}  // namespace

FineTuning& JobsOf(Server& server) {
  if (server.fine_tuning != nullptr) return *server.fine_tuning;
  throw ApiError(404, "this server takes no files and jobs: start it with --runs DIR");
}

void AddJobRoutes(RouteTable& table, Server& server) {
  const std::string jobs = "/v1/fine_tuning/jobs";
  table.AddJson("POST", jobs, [&server](const HttpRequest& request) {
    return OnDisk([&] { return JobsOf(server).Create(ParseBody(request)); });
  });
  table.AddJson("GET", jobs, [&server](const HttpRequest& request) {
    return JobsOf(server).List(ReadPageQuery(request, 20, 100), MetadataOf(request),
                               AsksForNoMetadata(request));
  });
  const auto add = [&](const char* method, const char* action,
                       OrderedJson (FineTuning::*answer)(const std::string& id)) {
    table.AddJson(method, jobs + "/{id}" + action, [&server, answer](const HttpRequest& request) {
      return OnDisk([&] { return (JobsOf(server).*answer)(request.values.at("id")); });
    });
  };
  add("GET", "", &FineTuning::Get);
  add("POST", "/cancel", &FineTuning::Cancel);
  add("POST", "/pause", &FineTuning::Pause);
  add("POST", "/resume", &FineTuning::Resume);
  table.AddJson("GET", jobs + "/{id}/events", [&server](const HttpRequest& request) {
    return OnDisk([&] {
      return JobsOf(server).Events(request.values.at("id"), ReadPageQuery(request, 20, 100));
    });
  });
  table.AddJson("GET", jobs + "/{id}/checkpoints", [&server](const HttpRequest& request) {
    return OnDisk([&] {
      return JobsOf(server).Checkpoints(request.values.at("id"), ReadPageQuery(request, 10, 100));
    });
  });
  // Other models may be loaded in its place.
  table.AddSlow("DELETE", "/v1/models/{id}", [&server](const HttpRequest& request) {
    const std::string& id = request.values.at("id");
    OnDisk([&] { JobsOf(server).RemoveModel(id); });
    const OrderedJson deleted = {{"id", id}, {"object", "model"}, {"deleted", true}};
    return HttpResponse{.body = FormatJson(deleted)};
  });
}

}  // namespace qlora
