// One client of a server: its requests, one after the other, and their answers.
#ifndef QLORA_SERVE_HTTP_CONNECTION_H_
#define QLORA_SERVE_HTTP_CONNECTION_H_

// Asio 1.74 needs it in C++20.
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "serve/api_error.h"
#include "serve/http/head_checks.h"
#include "serve/http/output_queue.h"
#include "serve/http/request_reader.h"
#include "serve/http_server.h"

namespace qlora {

class Connection;

// An address of this machine as a Host names it.
std::string HostOf(const boost::asio::ip::address& address);

// Carries work of other threads to that of a server. Replies may outlive the server, and then do
// nothing.
class ServerThread {
 public:
  explicit ServerThread(boost::asio::io_context& io) : io_(&io) {}
  void Run(std::function<void()> work);
  void Close();

 private:
  std::mutex mutex_;
  boost::asio::io_context* io_;
};

// What the connections of a server share. All but open_requests is for its thread alone.
struct HttpCore {
  HttpOptions options = {};
  HttpServer::Handler handler = {};
  HeadRules rules = {};
  std::mt19937_64 ids = {};
  HeldBodies held_bodies = std::make_shared<std::atomic<std::size_t>>(0);
  boost::asio::io_context io{1};
  std::shared_ptr<ServerThread> thread = std::make_shared<ServerThread>(io);
  std::set<std::shared_ptr<Connection>> connections = {};
  bool drains = false;
  std::atomic<std::int64_t> open_requests = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpCore& core, boost::asio::ip::tcp::socket socket);

  void Start();
  // Ends it at once. Whoever answers its request is told that the client is gone.
  void Close();
  // Ends it unless a request has begun.
  void Drain();

  // True while nothing of a request has been taken.
  bool IsWaiting() const { return state_ == State::kHead || state_ == State::kLinger; }
  std::chrono::steady_clock::time_point waits_since() const { return since_; }

  // From replies: `request` is the number of the request that they answer.
  void Send(std::int64_t request, HttpResponse response);
  void Begin(std::int64_t request, HttpResponse head);
  void Write(std::int64_t request, std::string_view piece);
  void End(std::int64_t request);
  void Abandon(std::int64_t request);
  void OnGone(std::int64_t request, std::function<void()> gone);

 private:
  enum class State : std::uint8_t {
    kHead,    // reads the head of a request, or waits for one
    kBody,    // reads its body
    kAnswer,  // is answered; what else comes is the next request
    kLinger,  // is answered for the last time, and takes what comes until the client closes
    kClosed,
  };
  enum class Answer : std::uint8_t { kNone, kBegun, kEnded };

  // Waits for bytes, in every state, so that a client that leaves is noticed beside its answer.
  void Read();
  void OnReadable();
  void OnInputEnd(bool is_orderly);
  // Goes on with what has been read.
  void Proceed();
  void TakeHead();
  void TakeRequest();
  void BeginHead();
  // A client that is cut off while it sends would not see its answer.
  void Linger();

  // Is waited for: request `request`, whose answer has not ended.
  bool Awaits(std::int64_t request) const;
  void Refuse(const ApiError& error);
  // The answer to a request that the handler does not answer, which nobody else logs.
  HttpResponse Refusal(const ApiError& error);
  void SendNow(HttpResponse response);
  // Bytes of the answer that lie here and that its room does not count.
  std::size_t unread() const;
  // Before so many more. False: this connection has the most of all, and is closed for others.
  bool HasRoomFor(std::size_t bytes);
  void SendHead(const HttpResponse& response, std::optional<std::uint64_t> length);
  // Of the body; nothing for a status without one. Opens the file that the body may be.
  std::optional<std::uint64_t> LengthOf(const HttpResponse& response);
  void Flush();
  void OnSent(bool is_broken, std::size_t bytes);
  void OnAnswered();
  void CountAnswered();

  void Arm(std::chrono::milliseconds time);
  void Disarm();
  void OnTimeout();
  // Runs a part of this; what it throws ends this connection and nothing else.
  template <typename Body>
  void Guard(const Body& body);

  HttpCore& core_;
  const HttpLimits& limits_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::string local_address_;
  State state_ = State::kHead;
  std::chrono::steady_clock::time_point since_;

  RequestReader reader_;
  bool is_reading_ = false;      // Read() waits
  bool is_half_closed_ = false;  // nothing more will come
  std::size_t armed_mebibytes_ = 0;

  std::int64_t request_ = 0;  // number of the request that is read or answered
  HttpRequest head_;          // of it, without its body
  bool is_head_ = false;
  bool is_http_10_ = false;
  bool keeps_alive_ = false;
  bool is_counted_ = false;  // in open_requests

  Answer answer_ = Answer::kNone;
  bool is_chunked_ = false;
  std::string ping_;
  std::function<void()> gone_;
  OutputQueue output_;
  HttpRoom room_;  // of the answer
  bool is_sending_ = false;
  std::size_t owed_ = 0;  // bytes that the client has to take before the timer ends
};

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_CONNECTION_H_
