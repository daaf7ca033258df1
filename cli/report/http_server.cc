#include "report/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"

namespace qlora {
namespace {

using Clock = std::chrono::steady_clock;

// Bounds the resources that a program on this machine can take from the trainer: connections,
// bytes, time.
constexpr std::size_t kMaxClients = 16;
constexpr std::size_t kMaxHead = 8 << 10;
constexpr std::chrono::seconds kMaxRequestTime(5);
constexpr std::chrono::seconds kMaxResponseTime(20);
constexpr int kAcceptPauseMs = 100;
// Larger answers are shared. The page without data is smaller.
constexpr std::size_t kLargeBody = 128 << 10;
constexpr std::string_view kHeadEnd = "\r\n\r\n";

// The values of the header `name`, in lower case without spaces around them.
std::vector<std::string> HeaderValues(std::string_view head, std::string_view name) {
  std::vector<std::string> values;
  std::size_t begin = head.find("\r\n");
  while (begin != std::string_view::npos && begin + 2 < head.size()) {
    const std::size_t end = std::min(head.find("\r\n", begin + 2), head.size());
    const std::string line = LowerCase(head.substr(begin + 2, end - begin - 2));
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && line.compare(0, colon, name) == 0) {
      const std::size_t first = line.find_first_not_of(" \t", colon + 1);
      const std::size_t last = line.find_last_not_of(" \t");
      values.push_back(first == std::string::npos ? "" : line.substr(first, last - first + 1));
    }
    begin = end == head.size() ? std::string_view::npos : end;
  }
  return values;
}

// True for "localhost:8080" and "127.0.0.1:8080". A page of the web may have its own name resolve
// to 127.0.0.1 (DNS rebinding) and would then read the training data; the browser sends that name
// as Host.
bool NamesThisMachine(const std::vector<std::string>& hosts) {
  // HTTP/1.1 demands exactly one.
  if (hosts.size() != 1) return false;
  const std::string name = hosts[0].substr(0, hosts[0].rfind(':'));
  return name == "localhost" || name == "127.0.0.1";
}

std::string_view ReasonOf(int status) {
  constexpr std::pair<int, std::string_view> kReasons[] = {
      {200, "OK"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {431, "Request Header Fields Too Large"}};
  for (const auto& [known, reason] : kReasons) {
    if (known == status) return reason;
  }
  return "Internal Server Error";
}

// The head of an answer to a connection, which then ends.
std::string HeadOf(const HttpResponse& response) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n"
      // Not kept on disk, not guessed to be another type, not shown inside other pages.
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
      "Referrer-Policy: no-referrer\r\n\r\n",
      response.status, ReasonOf(response.status), response.type, response.body.size());
}

int MillisecondsUntil(Clock::time_point moment) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(moment - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

int Listen(std::int64_t port) {
  CheckPort(port);
  const int fd =
      AboveStandardDescriptors(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  // Other machines cannot connect.
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  // SO_REUSEADDR: a run that is started again need not wait for old connections to time out.
  const int yes = 1;
  if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      listen(fd, SOMAXCONN) == 0) {
    return fd;
  }
  // close() may change errno.
  const int error = errno;
  if (fd >= 0) close(fd);
  if (error == EADDRINUSE) ThrowInvalidInput("dashboard: port {} is taken; choose another", port);
  ThrowInvalidInput("dashboard: port {} cannot be opened: {}; choose another", port,
                    std::strerror(error));
}

}  // namespace

void CheckPort(std::int64_t port) {
  constexpr std::int64_t kHighest = 65535;
  if (port >= 1 && port <= kHighest) return;
  ThrowInvalidInput("dashboard: expected a port, 1 to {}, found {}", kHighest, port);
}

std::shared_ptr<const HttpServer::Answer> HttpServer::Answer::Of(HttpResponse response) {
  std::string head = HeadOf(response);
  return std::make_shared<Answer>(Answer{std::move(head), std::move(response.body)});
}

HttpServer::HttpServer(std::int64_t port, Handler handler, std::chrono::milliseconds share_time)
    : handler_(std::move(handler)), share_time_(share_time), listener_(Listen(port)) {
  // Above 0, 1 and 2, which may be closed: messages would be written into the socket.
  wake_ = AboveStandardDescriptors(eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] { Serve(); });
}

HttpServer::~HttpServer() {
  // poll() in the thread returns, and the thread ends by itself.
  eventfd_write(wake_, 1);
  thread_.join();
  for (const Client& client : clients_) close(client.fd);
  close(listener_);
  close(wake_);
}

void HttpServer::Serve() {
  while (true) {
    std::vector<pollfd> waits = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    auto next = Clock::time_point::max();
    for (const Client& client : clients_) {
      // Each client is either asking or being answered.
      const short wanted = client.response == nullptr ? POLLIN : POLLOUT;
      waits.push_back({client.fd, wanted, 0});
      next = std::min(next, client.deadline);
    }
    const int wait = clients_.empty() ? -1 : MillisecondsUntil(next);
    if (poll(waits.data(), waits.size(), wait) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) return;
    // Backwards, so that erasing moves none that is still to be looked at.
    for (std::size_t i = clients_.size(); i-- > 0;) {
      // waits: the event, the listener, then the clients in their order.
      // A client whose answer was dropped in this round is at its deadline, and must not be read.
      const bool in_time = Clock::now() < clients_[i].deadline;
      const bool alive = in_time && (waits[i + 2].revents == 0 || Proceed(clients_[i]));
      if (alive && Clock::now() < clients_[i].deadline) continue;
      close(clients_[i].fd);
      clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    // A connection that cannot be accepted, for want of descriptors, stays in the queue and would
    // be reported again at once.
    if (waits[1].revents != 0 && !Accept()) poll(waits.data(), 1, kAcceptPauseMs);
  }
}

bool HttpServer::Accept() {
  const int fd =
      AboveStandardDescriptors(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd < 0) return false;
  // The oldest must go, or idle connections would lock out the user's browser.
  if (clients_.size() == kMaxClients) {
    const auto oldest =
        std::min_element(clients_.begin(), clients_.end(),
                         [](const Client& a, const Client& b) { return a.deadline < b.deadline; });
    close(oldest->fd);
    clients_.erase(oldest);
  }
  clients_.push_back({.fd = fd,
                      .request = {},
                      .response = {},
                      .sent = 0,
                      .deadline = Clock::now() + kMaxRequestTime});
  return true;
}

// Reads or writes as much as is possible without waiting. False when the connection is over.
bool HttpServer::Proceed(Client& client) {
  return client.response == nullptr ? Read(client) : Write(client);
}

bool HttpServer::Read(Client& client) {
  char bytes[2048];
  const ssize_t count = recv(client.fd, bytes, sizeof(bytes), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  client.request.append(bytes, static_cast<std::size_t>(count));
  const std::size_t end = client.request.find(kHeadEnd);
  if (end == std::string::npos && client.request.size() <= kMaxHead) return true;
  client.response = end == std::string::npos
                        ? Answer::Of({.status = 431, .body = "the request is too long\n"})
                        : AnswerTo(client.request.substr(0, end));
  client.deadline = Clock::now() + kMaxResponseTime;
  // Most answers fit the buffer of the socket at once.
  return Write(client);
}

bool HttpServer::Write(Client& client) {
  const auto& [head, body] = *client.response;
  const std::string_view rest = client.sent < head.size()
                                    ? std::string_view(head).substr(client.sent)
                                    : std::string_view(body).substr(client.sent - head.size());
  // A browser that has gone must not raise SIGPIPE.
  const ssize_t count = send(client.fd, rest.data(), rest.size(), MSG_NOSIGNAL);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  client.sent += static_cast<std::size_t>(count);
  return client.sent < head.size() + body.size();
}

std::shared_ptr<const HttpServer::Answer> HttpServer::AnswerTo(std::string_view head) {
  if (!NamesThisMachine(HeaderValues(head, "host"))) {
    return Answer::Of({.status = 403, .body = "this page is for this machine only\n"});
  }
  // Nothing can be changed through this server.
  if (!head.starts_with("GET ")) {
    return Answer::Of({.status = 405, .body = "only GET is answered\n"});
  }
  const std::string_view rest = head.substr(4);
  const std::string_view target = rest.substr(0, rest.find_first_of(" \r\n"));
  try {
    return MakeAnswer(target.substr(0, target.find('?')));
  } catch (const std::exception& error) {
    // An exception that left the thread would end the training run.
    return Answer::Of({.status = 500, .body = error.what()});
  }
}

std::shared_ptr<const HttpServer::Answer> HttpServer::MakeAnswer(std::string_view path) {
  if (large_ != nullptr && path == large_path_) {
    if (Clock::now() - large_made_ < share_time_) return large_;
    DropLarge();
  }
  auto answer = Answer::Of(handler_(path));
  if (answer->body.size() > kLargeBody) {
    DropLarge();
    large_ = answer;
    large_path_ = path;
    large_made_ = Clock::now();
  }
  return answer;
}

void HttpServer::DropLarge() {
  for (Client& client : clients_) {
    if (large_ == nullptr || client.response != large_) continue;
    client.response = nullptr;
    client.deadline = Clock::now();  // closed in the next round
  }
  large_ = nullptr;
}

}  // namespace qlora
