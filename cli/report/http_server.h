// A web server for browsers on this machine: GET of a few pages, and nothing else.
#ifndef QLORA_CLI_REPORT_HTTP_SERVER_H_
#define QLORA_CLI_REPORT_HTTP_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace qlora {

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// Errors: InvalidInput unless `port` is 1 to 65535.
void CheckPort(std::int64_t port);

// Serves 127.0.0.1 from one thread, until it is destroyed, which no client can delay. Whatever a
// client sends or leaves unread costs at most 128 KiB and a connection for some seconds: the head
// of a request is limited in bytes and time, a body is not read, and a client too many takes the
// place of the one that has waited longest. Larger answers are shared: requests of `share_time`
// get one, and whoever has not read it when it is made again is cut off, so that at most two are in
// memory, while one is made. Requests whose Host header does not name this machine are refused, so
// that pages of other sites cannot read anything under a name of theirs.
class HttpServer {
 public:
  using Handler = std::function<HttpResponse(std::string_view path)>;

  // Errors: InvalidInput when the port cannot be had.
  HttpServer(std::int64_t port, Handler handler,
             std::chrono::milliseconds share_time = std::chrono::seconds(1));
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  struct Answer {
    std::string head;
    std::string body;

    static std::shared_ptr<const Answer> Of(HttpResponse response);
  };
  struct Client {
    int fd = -1;
    std::string request;                     // the head, as far as it has come
    std::shared_ptr<const Answer> response;  // null until the head is complete
    std::size_t sent = 0;
    std::chrono::steady_clock::time_point deadline;
  };

  void Serve();
  // False when there is no connection, or no descriptor for one.
  bool Accept();
  bool Proceed(Client& client);
  bool Read(Client& client);
  bool Write(Client& client);
  std::shared_ptr<const Answer> AnswerTo(std::string_view head);
  std::shared_ptr<const Answer> MakeAnswer(std::string_view path);
  // Ends the answers of clients that still read the large one, and frees it.
  void DropLarge();

  Handler handler_;
  std::chrono::milliseconds share_time_;
  int listener_ = -1;
  int wake_ = -1;  // readable once the server shall end
  std::vector<Client> clients_;
  std::shared_ptr<const Answer> large_;
  std::string large_path_;
  std::chrono::steady_clock::time_point large_made_;
  std::thread thread_;
};

}  // namespace qlora

#endif  // QLORA_CLI_REPORT_HTTP_SERVER_H_
