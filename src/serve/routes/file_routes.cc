// /v1/files: uploads, of which jobs are made, and what jobs have made.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "serve/http/multipart.h"
#include "serve/jobs/fine_tuning.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

// Removes a file of a request, whatever becomes of the request.
class Temporary {
 public:
  explicit Temporary(std::filesystem::path path) : path_(std::move(path)) {}
  ~Temporary() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string PurposeOf(const MultipartForm& form) {
  const auto purpose = form.fields.find("purpose");
  if (purpose == form.fields.end()) throw ApiError(400, "purpose: missing", "purpose");
  if (purpose->second != kTrainingPurpose) {
    throw ApiError(
        400,
        fmt::format("purpose: expected {}, which is what files are for here", kTrainingPurpose),
        "purpose");
  }
  for (const auto& [name, value] : form.fields) {
    if (!name.starts_with("expires_after")) continue;
    throw ApiError(400, name + ": files stay until they are deleted; leave it out", name);
  }
  return purpose->second;
}

OrderedJson Upload(const HttpRequest& request, FineTuning& jobs) {
  FileStore& files = jobs.files();
  if (request.body_file.empty()) throw ApiError(400, "file: missing", "file");
  const Temporary body(request.body_file);
  const auto type = request.headers.find("content-type");
  const Temporary content(files.NewUpload());
  const MultipartForm form = ReadMultipartFile(
      body.path(), type == request.headers.end() ? "" : type->second, "file", content.path());
  if (!form.file_name) throw ApiError(400, "file: missing", "file");
  if (form.file_bytes > jobs.file_limit()) {
    throw ApiError(413,
                   fmt::format("file: expected at most {} bytes, found {}", jobs.file_limit(),
                               form.file_bytes),
                   "file");
  }
  const std::string purpose = PurposeOf(form);
  return ToJson(files.Add(content.path(), PlainFilename(*form.file_name), purpose));
}

std::string QueryOf(const HttpRequest& request, const char* name, const char* absent) {
  const auto found = request.query.find(name);
  return found == request.query.end() ? absent : found->second;
}

OrderedJson List(const HttpRequest& request, const FileStore& files) {
  constexpr std::int64_t kMost = 10'000;
  std::vector<StoredFile> all = files.All();
  const std::string purpose = QueryOf(request, "purpose", "");
  if (!purpose.empty()) {
    std::erase_if(all, [&](const StoredFile& file) { return file.purpose != purpose; });
  }
  const std::string order = QueryOf(request, "order", "desc");
  if (order != "asc" && order != "desc") {
    throw ApiError(400, "order: expected asc or desc", "order");
  }
  if (order == "asc") std::ranges::reverse(all);
  return PageOf({.size = std::ssize(all),
                 .id = [&](std::int64_t i) { return all[i].id; },
                 .item = [&](std::int64_t i) { return ToJson(all[i]); }},
                ReadPageQuery(request, kMost, kMost));
}

}  // namespace

void AddFileRoutes(RouteTable& table, Server& server) {
  const auto jobs = [&server]() -> FineTuning& { return JobsOf(server); };
  table.AddJson("POST", "/v1/files", [=](const HttpRequest& request) {
    return OnDisk([&] { return Upload(request, jobs()); });
  });
  table.AddJson("GET", "/v1/files",
                [=](const HttpRequest& request) { return List(request, jobs().files()); });
  table.AddJson("GET", "/v1/files/{id}", [=](const HttpRequest& request) {
    return ToJson(jobs().files().Get(request.values.at("id")));
  });
  table.Add("GET", "/v1/files/{id}/content",
            [=](const HttpRequest& request, const HttpReplyPtr& reply) {
              const auto bytes = jobs().files().BytesOf(request.values.at("id"));
              reply->Send({.type = "application/octet-stream", .file = bytes.string()});
            });
  table.AddJson("DELETE", "/v1/files/{id}", [=](const HttpRequest& request) -> OrderedJson {
    const std::string& id = request.values.at("id");
    OnDisk([&] { jobs().RemoveFile(id); });
    return {{"id", id}, {"object", "file"}, {"deleted", true}};
  });
}

}  // namespace qlora
