// Which function answers which path.
#ifndef QLORA_SERVE_ROUTES_ROUTES_H_
#define QLORA_SERVE_ROUTES_ROUTES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"
#include "serve/http_server.h"
#include "serve/server.h"

namespace qlora {

// Answers a request, now or later, on a thread of the workers. May throw ApiError, or qlora::Error,
// of which invalid input is 400 with its text; until it has begun a reply.
using Route = std::function<void(const HttpRequest& request, HttpReplyPtr reply)>;

class RouteTable {
 public:
  // server must outlive this.
  explicit RouteTable(Server& server) : server_(server) {}

  // path: "/v1/files/{id}/content"; HttpRequest::values has what stands for {id}, which is not
  // empty and has no slash.
  void Add(std::string method, std::string path, Route route);
  // Answers with the JSON that `answer` returns.
  void AddJson(std::string method, std::string path,
               std::function<OrderedJson(const HttpRequest& request)> answer);
  // Answers on the thread of the caller, whatever the workers do; the route must not wait.
  void AddQuick(std::string method, std::string path, Route route);
  // Answers with what `work` returns, on a worker, one request of all such routes at a time; others
  // are 429 meanwhile. For work that waits for the engine, the disk or other work: workers are few.
  void AddSlow(std::string method, std::string path,
               std::function<HttpResponse(const HttpRequest& request)> work);

  // Answers a request: with the route of its path, else with an error.
  void Handle(HttpRequest request, HttpReplyPtr reply) const;

 private:
  enum class Pace : std::uint8_t { kQuick, kUsual, kSlow };
  struct Entry {
    std::string method;
    std::string path;
    Route route;
    Pace pace;
  };

  void Run(const Entry& entry, const HttpRequest& request, HttpReplyPtr reply) const;
  HttpResponse NoRoute(const HttpRequest& request, const std::vector<const Entry*>& others) const;

  Server& server_;
  std::vector<Entry> entries_;
  mutable std::atomic<bool> has_slow_work_ = false;  // that runs, or waits for a worker
};

// The answer for an error, in the form that clients of the path expect.
HttpResponse ErrorResponse(const HttpRequest& request, const ApiError& error);
// CaughtError of what a route threw, whose detail goes to the log.
ApiError LoggedError(const Server& server, const HttpRequest& request);

// Names the model of an answer, unless "", and adds to what the log says of it. reply: as a route
// got it.
void NoteAnswer(HttpReply& reply, const std::string& model, const std::string& note);

// True where the client of a request has left, so that nobody waits for what only answers it.
// reply: as a route got it.
bool HasLeft(HttpReply& reply);

// Answers with JSON.
void SendJson(HttpReply& reply, const OrderedJson& json);

// The jobs of a server. Errors: ApiError 404 for one without a folder for them.
FineTuning& JobsOf(Server& server);

// One function for each file of this folder.
void AddModelRoutes(RouteTable& table, Server& server);
void AddChatRoutes(RouteTable& table, Server& server);
void AddCompletionRoutes(RouteTable& table, Server& server);
void AddTokenRoutes(RouteTable& table, Server& server);
void AddStatusRoutes(RouteTable& table, Server& server);
void AddResponseRoutes(RouteTable& table, Server& server);
void AddMessageRoutes(RouteTable& table, Server& server);
void AddDecisionRoutes(RouteTable& table, Server& server);
void AddFileRoutes(RouteTable& table, Server& server);
void AddJobRoutes(RouteTable& table, Server& server);
void AddPageRoutes(RouteTable& table, Server& server);
void AddFeedbackRoutes(RouteTable& table, Server& server);
// All of these, the page where it is wanted.
void AddRoutes(RouteTable& table, Server& server);

// Of the page itself, which anybody may read; what it shows needs the key.
std::vector<std::string> PagePaths();

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_ROUTES_H_
