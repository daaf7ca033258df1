#include "serve/routes/routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/stopwatch.h"
#include "base/text.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

// Returns what stands for the {names} of a route's path; nothing for another path.
std::optional<std::map<std::string, std::string>> Match(std::string_view route,
                                                        std::string_view path) {
  std::map<std::string, std::string> values;
  while (true) {
    const std::string_view name = route.substr(0, route.find('/'));
    const std::string_view part = path.substr(0, path.find('/'));
    if (name.starts_with('{')) {
      if (part.empty()) return std::nullopt;
      values[std::string(name.substr(1, name.size() - 2))] = part;
    } else if (name != part) {
      return std::nullopt;
    }
    const bool ends = name.size() == route.size();
    if (ends != (part.size() == path.size())) return std::nullopt;
    if (ends) return values;
    route.remove_prefix(name.size() + 1);
    path.remove_prefix(part.size() + 1);
  }
}

// Whether the client of a request has left, before or after somebody wants to be told.
class Leaving {
 public:
  void Happen() {
    std::function<void()> told;
    {
      const std::lock_guard lock(mutex_);
      has_happened_ = true;
      told = std::exchange(told_, nullptr);
    }
    if (told) told();
  }
  void Tell(std::function<void()> told) {
    {
      const std::lock_guard lock(mutex_);
      if (!has_happened_) {
        told_ = std::move(told);
        return;
      }
    }
    told();
  }
  bool has_happened() {
    const std::lock_guard lock(mutex_);
    return has_happened_;
  }

 private:
  std::mutex mutex_;
  bool has_happened_ = false;
  std::function<void()> told_;
};

// Counts and logs what becomes of a request.
class CountedReply final : public HttpReply {
 public:
  CountedReply(HttpReplyPtr reply, Server& server, const HttpRequest& request, std::string route)
      : reply_(std::move(reply)),
        server_(server),
        id_(request.id),
        method_(request.method),
        route_(std::move(route)) {
    reply_->OnGone([leaving = leaving_] { leaving->Happen(); });
  }

  ~CountedReply() override {
    const std::lock_guard lock(mutex_);
    server_.metrics.Count("qlora_requests_total", {model_, route_, status_});
    if (is_quiet()) return;
    server_.log(fmt::format("{} {} {} {} {:.3f} s{}{}{}", id_, method_, route_, status_,
                            watch_.seconds(), model_.empty() ? "" : " ", model_, note_));
  }

  void Send(HttpResponse response) override {
    SetStatus(response.status);
    reply_->Send(std::move(response));
  }
  void Begin(HttpResponse head) override {
    SetStatus(head.status);
    reply_->Begin(std::move(head));
  }
  void Write(std::string piece) override { reply_->Write(std::move(piece)); }
  void End() override { reply_->End(); }
  void OnGone(std::function<void()> gone) override { leaving_->Tell(std::move(gone)); }

  bool has_left() const { return leaving_->has_happened(); }
  void Note(const std::string& model, const std::string& note) {
    const std::lock_guard lock(mutex_);
    if (!model.empty()) model_ = model;
    note_ += note;
  }

 private:
  // What monitors ask all the time.
  bool is_quiet() const {
    return status_ == "200" && (route_.ends_with("/health") || route_ == "/metrics");
  }
  void SetStatus(int status) {
    const std::lock_guard lock(mutex_);
    status_ = std::to_string(status);
  }

  HttpReplyPtr reply_;
  const std::shared_ptr<Leaving> leaving_ = std::make_shared<Leaving>();
  Server& server_;
  const std::string id_;
  const std::string method_;
  const std::string route_;
  const Stopwatch watch_;
  std::mutex mutex_;
  std::string model_;
  std::string note_;
  std::string status_ = "none";
};

}  // namespace

void RouteTable::Add(std::string method, std::string path, Route route) {
  entries_.push_back({std::move(method), std::move(path), std::move(route), Pace::kUsual});
}

void RouteTable::AddJson(std::string method, std::string path,
                         std::function<OrderedJson(const HttpRequest& request)> answer) {
  Add(std::move(method), std::move(path),
      [answer = std::move(answer)](const HttpRequest& request, const HttpReplyPtr& reply) {
        SendJson(*reply, answer(request));
      });
}

void RouteTable::AddQuick(std::string method, std::string path, Route route) {
  entries_.push_back({std::move(method), std::move(path), std::move(route), Pace::kQuick});
}

void RouteTable::AddSlow(std::string method, std::string path,
                         std::function<HttpResponse(const HttpRequest& request)> work) {
  const auto run = [this, work = std::move(work)](const HttpRequest& request) {
    const std::shared_ptr<void> end(nullptr, [this](void*) { has_slow_work_ = false; });
    return work(request);
  };
  // Who has the answer may ask for more at once.
  Route route = [run](const HttpRequest& request, const HttpReplyPtr& reply) {
    reply->Send(run(request));
  };
  entries_.push_back({std::move(method), std::move(path), std::move(route), Pace::kSlow});
}

void RouteTable::Handle(HttpRequest request, HttpReplyPtr reply) const {
  std::vector<const Entry*> others;
  for (const Entry& entry : entries_) {
    std::optional<std::map<std::string, std::string>> values = Match(entry.path, request.path);
    if (!values) continue;
    if (entry.method != request.method) {
      others.push_back(&entry);
      continue;
    }
    request.values = std::move(*values);
    reply = std::make_shared<CountedReply>(std::move(reply), server_, request, entry.path);
    if (entry.pace == Pace::kQuick) return Run(entry, request, std::move(reply));
    if (entry.pace == Pace::kSlow && has_slow_work_.exchange(true)) {
      return reply->Send(ErrorResponse(
          request, ApiError(429, "models are being loaded or taken away; try again later", "",
                            "models_busy")));
    }
    server_.workers.Run([this, &entry, request = std::move(request), reply = std::move(reply)] {
      Run(entry, request, reply);
    });
    return;
  }
  const std::string route = others.empty() ? "" : others.front()->path;
  CountedReply(std::move(reply), server_, request, route).Send(NoRoute(request, others));
}

void RouteTable::Run(const Entry& entry, const HttpRequest& request, HttpReplyPtr reply) const {
  try {
    entry.route(request, reply);
  } catch (...) {
    reply->Send(ErrorResponse(request, LoggedError(server_, request)));
  }
}

// others: routes of the same path.
HttpResponse RouteTable::NoRoute(const HttpRequest& request,
                                 const std::vector<const Entry*>& others) const {
  if (others.empty()) {
    std::set<std::string_view> paths;
    for (const Entry& entry : entries_) paths.insert(entry.path);
    const int status = request.path == "/v1/embeddings" ? 501 : 404;
    return ErrorResponse(
        request,
        ApiError(status, fmt::format("{} is not offered here; there is {}",
                                     FirstBytes(request.path, 100), fmt::join(paths, ", "))));
  }
  std::set<std::string_view> methods = {"OPTIONS"};
  for (const Entry* entry : others) {
    methods.insert(entry->method);
    if (entry->method == "GET") methods.insert("HEAD");
  }
  const std::string allowed = fmt::format("{}", fmt::join(methods, ", "));
  HttpResponse response =
      ErrorResponse(request, ApiError(405, fmt::format("{} takes {}, not {}", others.front()->path,
                                                       allowed, FirstBytes(request.method, 20))));
  response.headers.emplace_back("Allow", allowed);
  return response;
}

HttpResponse ErrorResponse(const HttpRequest& request, const ApiError& error) {
  const bool is_anthropic =
      request.path == "/v1/messages" || request.path.starts_with("/v1/messages/");
  return is_anthropic ? AnthropicError(error, request.id) : OpenAiError(error);
}

ApiError LoggedError(const Server& server, const HttpRequest& request) {
  const ApiError error =
      CaughtError(fmt::format("a fault within the server; its log has more under {}", request.id));
  if (!error.detail.empty()) {
    server.log(fmt::format("{} {}: error: {}", request.id, request.path, error.detail));
  }
  return error;
}

void NoteAnswer(HttpReply& reply, const std::string& model, const std::string& note) {
  if (auto* counted = dynamic_cast<CountedReply*>(&reply)) {
    counted->Note(model, note.empty() ? "" : ", " + note);
  }
}

bool HasLeft(HttpReply& reply) {
  const auto* counted = dynamic_cast<CountedReply*>(&reply);
  return counted != nullptr && counted->has_left();
}

void SendJson(HttpReply& reply, const OrderedJson& json) { reply.Send({.body = FormatJson(json)}); }

void AddRoutes(RouteTable& table, Server& server) {
  AddStatusRoutes(table, server);
  AddModelRoutes(table, server);
  AddChatRoutes(table, server);
  AddCompletionRoutes(table, server);
  AddTokenRoutes(table, server);
  AddResponseRoutes(table, server);
  AddMessageRoutes(table, server);
  AddDecisionRoutes(table, server);
  AddFileRoutes(table, server);
  AddJobRoutes(table, server);
  AddFeedbackRoutes(table, server);
  if (server.options.page) AddPageRoutes(table, server);
}

}  // namespace qlora
