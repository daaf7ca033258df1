// A hub on this machine, for tests: the requests that a pull makes, with faults to order. Files
// that are large are on a second server, as the real hub's are.
#ifndef QLORA_TESTS_PULL_FAKE_HUB_H_
#define QLORA_TESTS_PULL_FAKE_HUB_H_

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "pull/content_hash.h"

namespace qlora {

inline std::string Sha256Of(const std::string& text) {
  ContentHash hash = ContentHash::Sha256();
  hash.Update(text);
  return hash.Finish();
}

inline std::string GitSha1Of(const std::string& text) {
  ContentHash hash = ContentHash::Sha1();
  hash.Update("blob " + std::to_string(text.size()) + std::string(1, '\0') + text);
  return hash.Finish();
}

class FakeHub {
 public:
  struct Request {
    bool on_cdn = false;
    std::string path;
    std::string range;
    std::string authorization;
  };
  // Called before the answer of either server; true: it has answered.
  using Fault = std::function<bool(const Request& request, httplib::Response& response)>;

  std::map<std::string, std::string> files;  // of org/tiny at `commit`
  std::string commit = std::string(40, 'c');
  Fault fault = [](const Request&, httplib::Response&) { return false; };
  std::function<void(nlohmann::json& listing)> edit_listing = [](nlohmann::json&) {};

  FakeHub() {
    Serve(hub_, false, [this](const httplib::Request& request, httplib::Response& response) {
      AnswerHub(request, response);
    });
    Serve(cdn_, true, [this](const httplib::Request& request, httplib::Response& response) {
      AnswerFile(files.at(request.path.substr(1)), response);
    });
  }
  ~FakeHub() {
    for (Server* server : {&hub_, &cdn_}) {
      server->http.stop();
      server->thread.join();
    }
  }

  std::string endpoint() const { return fmt::format("http://127.0.0.1:{}", hub_.port); }
  // Another origin than that of the endpoint.
  std::string cdn() const { return fmt::format("http://127.0.0.1:{}", cdn_.port); }

  std::vector<Request> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  std::int64_t CountFileRequests() {
    const auto all = requests();
    return std::count_if(all.begin(), all.end(), [](const Request& request) {
      return request.on_cdn || request.path.find("/resolve/") != std::string::npos;
    });
  }

  // Sends the first `bytes` of a text and breaks the connection.
  static void SendPart(const std::string& text, std::size_t bytes, httplib::Response& response) {
    response.set_content_provider(
        text.size(), "application/octet-stream",
        [part = text.substr(0, bytes)](std::size_t, std::size_t, httplib::DataSink& sink) {
          sink.write(part.data(), part.size());
          return false;
        });
  }

 private:
  struct Server {
    httplib::Server http;
    int port = 0;
    std::thread thread;
  };
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  void Serve(Server& server, bool on_cdn, Handler answer) {
    server.http.Get(
        ".*", [this, on_cdn, answer](const httplib::Request& request, httplib::Response& response) {
          const std::lock_guard lock(mutex_);
          requests_.push_back({on_cdn, request.path, request.get_header_value("Range"),
                               request.get_header_value("Authorization")});
          if (!fault(requests_.back(), response)) answer(request, response);
        });
    server.port = server.http.bind_to_any_port("127.0.0.1");
    server.thread = std::thread([&server] { server.http.listen_after_bind(); });
    while (!server.http.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  static bool IsLarge(const std::string& path) { return path.ends_with(".safetensors"); }

  void AnswerHub(const httplib::Request& request, httplib::Response& response) const {
    const std::string file_prefix = "/org/tiny/resolve/" + commit + "/";
    if (request.path == "/api/models/org/tiny/revision/main") {
      response.set_content(nlohmann::json{{"sha", commit}}.dump(), "application/json");
    } else if (request.path == "/api/models/org/tiny/tree/" + commit) {
      response.set_content(Listing().dump(), "application/json");
    } else if (request.path.starts_with(file_prefix)) {
      const std::string path = request.path.substr(file_prefix.size());
      response.set_header("X-Repo-Commit", commit);
      if (IsLarge(path)) {
        response.set_redirect(cdn() + "/" + path);
      } else {
        AnswerFile(files.at(path), response);
      }
    } else {
      response.status = 404;
      response.set_header("X-Error-Code", "RepoNotFound");
    }
  }

  nlohmann::json Listing() const {
    nlohmann::json listing = nlohmann::json::array();
    for (const auto& [path, text] : files) {
      nlohmann::json entry = {
          {"type", "file"}, {"path", path}, {"size", text.size()}, {"oid", GitSha1Of(text)}};
      if (IsLarge(path)) entry["lfs"] = {{"oid", Sha256Of(text)}, {"size", text.size()}};
      listing.push_back(entry);
    }
    edit_listing(listing);
    return listing;
  }

  // The library answers ranges by itself.
  static void AnswerFile(const std::string& text, httplib::Response& response) {
    response.set_content(text, "application/octet-stream");
  }

  Server hub_;
  Server cdn_;
  std::mutex mutex_;
  std::vector<Request> requests_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_PULL_FAKE_HUB_H_
