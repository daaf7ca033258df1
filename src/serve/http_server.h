// A web server for local clients: any number of connections on one thread (Boost.Beast).
//
// Whatever a client sends, leaves unread or stops in the midst of costs a bounded number of bytes
// and seconds (HttpLimits). Requests whose Host does not name this server, or whose Origin is
// another site, are refused, so that pages of other sites cannot use it.
#ifndef QLORA_SERVE_HTTP_SERVER_H_
#define QLORA_SERVE_HTTP_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qlora {

struct ApiError;

struct HttpRequest {
  std::string method = {};                        // "GET", also for HEAD; OPTIONS is answered here
  std::string path = {};                          // "/v1/models", percent-decoded
  std::map<std::string, std::string> query = {};  // decoded
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};
  // Counts the body among those in memory (HttpLimits::bodies) as long as a copy lives.
  std::shared_ptr<const void> body_room = {};
  // Of a body that went to a file (HttpOptions::body_of), or ""; is left.
  std::string body_file = {};
  std::string id = {};                             // made here: X-Request-Id of the answer
  std::map<std::string, std::string> values = {};  // of the {names} of its route (RouteTable)
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Counts bytes of an answer elsewhere, until they are written or dropped.
struct HttpRoom {
  std::shared_ptr<const void> held = {};  // lives as long
  std::size_t bytes = 0;
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
  // Instead of `body`, of Send: a text that several answers share, or the name of a file, which is
  // read as the client takes it.
  std::shared_ptr<const std::string> shared = {};
  std::string file = {};
  // Of Begin: is written whenever nothing was for HttpLimits::ping_time; "": nothing.
  std::string ping = {};
  HttpRoom room = {};
};

// Where one request is answered: with Send, or with Begin, Write ..., End. From any thread, now or
// later; calls after the end, or for a client that is gone, do nothing. A reply that is destroyed
// without an end is answered with 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void Send(HttpResponse response) = 0;
  // A body that comes with time, of unknown length; the head leaves at once. A client that does
  // not read is dropped (HttpLimits::unread, answer_time).
  virtual void Begin(HttpResponse head) = 0;
  virtual void Write(std::string piece) = 0;
  virtual void End() = 0;
  // gone: is called once, on the thread of the server or, where the client has left already, of the
  // caller, when the client leaves before the end.
  virtual void OnGone(std::function<void()> gone) = 0;
};
using HttpReplyPtr = std::shared_ptr<HttpReply>;

struct HttpLimits {
  std::size_t body = std::size_t{32} << 20;
  std::size_t head = std::size_t{16} << 10;
  // Of all bodies in memory: that are still coming, and of requests that nobody has read yet.
  std::size_t bodies = std::size_t{256} << 20;
  // Of answers that lie for their clients, beside what their HttpRoom counts and what several
  // share: of a stream before a further piece, and of all together, beyond which the one with the
  // most is dropped.
  std::size_t unread = std::size_t{64} << 20;
  std::size_t connections = 1024;      // with requests that are being answered
  std::size_t spare_connections = 32;  // more, that wait for one, or ask for open_paths
  std::chrono::milliseconds head_time{10'000};
  std::chrono::milliseconds body_time{30'000};    // for each MiB
  std::chrono::milliseconds answer_time{60'000};  // for each MiB that lies there
  std::chrono::milliseconds idle_time{60'000};    // of a connection that is kept
  std::chrono::milliseconds ping_time{10'000};    // HttpResponse::ping
};

// What becomes of the body of a request, decided from its head before the body is read.
struct HttpBody {
  std::size_t limit = 0;  // bytes; a larger one is 413 before anything of it is read
  std::string file = {};  // a new file that takes the body; "": HttpRequest::body
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::int64_t port = 8080;                                              // 0: any free one
  std::string api_key = {};                                              // "": none is asked for
  std::vector<std::string> open_paths = {"/health", "/v1/health", "/"};  // that ask for no key
  std::vector<std::string> allow_hosts = {};
  std::vector<std::string> allow_origins = {};
  HttpLimits limits = {};
  // Null: every body is held in memory up to limits.body.
  std::function<HttpBody(const HttpRequest& head)> body_of = {};
  // The answer of errors that the server itself finds, or that body_of and the handler throw; null:
  // OpenAI's form. The path is "" where the request could not be read.
  std::function<HttpResponse(const HttpRequest& request, const ApiError& error)> error_of = {};
  // Gets a line for each request that the handler does not take; or null.
  std::function<void(const std::string& line)> log = {};
};

class HttpServer {
 public:
  // Is called on the thread of the server, and must not wait. What it throws is answered.
  using Handler = std::function<void(HttpRequest request, HttpReplyPtr reply)>;

  // Listens, and answers until it is destroyed. Errors: InvalidInput when the port cannot be had,
  // for a host other than this machine without api_key, and for an origin that is none.
  HttpServer(HttpOptions options, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::int64_t port() const;
  // Takes no further connections and ends kept ones that ask nothing; requests that are being
  // answered go on. Not from a handler.
  void Drain();
  // Requests that are not answered yet.
  std::int64_t open_requests() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_SERVER_H_
