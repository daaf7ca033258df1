// The list of models, and adapters that come and go.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/text.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/loaded_models.h"
#include "serve/request_fields.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

// No paths: clients are not told of folders. Both names of the length are read.
OrderedJson ModelJson(const ServedModel& model) {
  OrderedJson json = {{"id", model.name},
                      {"object", "model"},
                      {"created", model.created},
                      {"owned_by", "qlora"},
                      {"parent", nullptr},
                      {"context_length", model.context_length},
                      {"max_model_len", model.context_length},
                      {"system_fingerprint", model.fingerprint}};
  if (!model.parent.empty()) json["parent"] = model.parent;
  if (model.adapter != nullptr) json["rank"] = model.adapter->config().r;
  return json;
}

// The folder of an adapter that a request names: beneath adapter_dir, also by links.
std::string FolderBeneath(const std::string& adapter_dir, const std::string& given) {
  namespace fs = std::filesystem;
  const fs::path relative(given);
  std::error_code ignored;
  const fs::path root = fs::weakly_canonical(adapter_dir, ignored);
  const fs::path folder = fs::weakly_canonical(root / relative, ignored);
  const fs::path below = folder.lexically_relative(root);
  const bool is_beneath = !given.empty() && !relative.is_absolute() && !below.empty() &&
                          *below.begin() != ".." && below != ".";
  if (!is_beneath || !fs::exists(folder, ignored)) {
    RefuseField("lora_path",
                "expected the path of an adapter beneath the server's --adapter_dir, "
                "written from there");
  }
  return folder.string();
}

void CheckLoadsAdapters(const Server& server, const HttpRequest& request) {
  if (!server.options.adapter_dir.empty()) return;
  throw ApiError(
      404, fmt::format("{} needs a server that was started with --adapter_dir", request.path));
}

HttpResponse LoadAdapter(Server& server, const HttpRequest& http) {
  CheckLoadsAdapters(server, http);
  const OrderedJson json = ParseBody(http);
  const RequestFields body(json);
  const std::string name = body.NeedText("lora_name");
  if (!IsModelName(name)) {
    body.Refuse("lora_name",
                "expected 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first");
  }
  const std::string given = body.NeedText("lora_path");
  const std::string folder = FolderBeneath(server.options.adapter_dir, given);
  try {
    server.models.Load(name, folder);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidInput) throw;
    throw ApiError(400, ReplaceAll(error.what(), folder, given), "lora_path");
  }
  return {.type = "text/plain; charset=utf-8",
          .body = fmt::format("Success: LoRA adapter '{}' added successfully.", name)};
}

void UnloadAdapter(Server& server, const HttpRequest& http, HttpReply& reply) {
  CheckLoadsAdapters(server, http);
  const OrderedJson json = ParseBody(http);
  const std::string name = RequestFields(json).NeedText("lora_name");
  server.models.Unload(name);
  reply.Send({.type = "text/plain; charset=utf-8",
              .body = fmt::format("Success: LoRA adapter '{}' removed successfully.", name)});
}

}  // namespace

void AddModelRoutes(RouteTable& table, Server& server) {
  table.AddJson("GET", "/v1/models", [&server](const HttpRequest&) -> OrderedJson {
    OrderedJson list = OrderedJson::array();
    for (const ServedModelPtr& model : server.models.All()) list.push_back(ModelJson(*model));
    return {{"object", "list"}, {"data", std::move(list)}};
  });
  table.AddJson("GET", "/v1/models/{id}", [&server](const HttpRequest& http) {
    return ModelJson(*server.models.Find(http.values.at("id")));
  });
  table.AddSlow("POST", "/v1/load_lora_adapter",
                [&server](const HttpRequest& http) { return LoadAdapter(server, http); });
  table.Add("POST", "/v1/unload_lora_adapter",
            [&server](const HttpRequest& http, const HttpReplyPtr& reply) {
              UnloadAdapter(server, http, *reply);
            });
}

}  // namespace qlora
