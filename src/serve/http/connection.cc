#include "serve/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <filesystem>

#include "qlora/error.h"
#include "serve/http/answer_head.h"
#include "serve/http/reply.h"

namespace qlora {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kLingerTime(2000);

constexpr const char* kFault = "the server has failed on this request; its log may say more";

HttpResponse ErrorAnswer(const HttpOptions& options, const HttpRequest& head,
                         const ApiError& error) {
  return options.error_of ? options.error_of(head, error) : OpenAiError(error);
}

std::string LocalAddressOf(const tcp::socket& socket) {
  error_code error;
  const tcp::endpoint endpoint = socket.local_endpoint(error);
  return error ? "" : HostOf(endpoint.address());
}

}  // namespace

std::string HostOf(const boost::asio::ip::address& address) {
  namespace ip = boost::asio::ip;
  if (!address.is_v6()) return address.to_string();
  ip::address_v6 v6 = address.to_v6();
  // Of a client of IPv4 at a socket of IPv6.
  if (v6.is_v4_mapped()) return ip::make_address_v4(ip::v4_mapped, v6).to_string();
  // No Host has the network interface of a link-local address.
  v6.scope_id(0);
  return "[" + v6.to_string() + "]";
}

void ServerThread::Run(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (io_ != nullptr) boost::asio::post(*io_, std::move(work));
}

void ServerThread::Close() {
  const std::lock_guard lock(mutex_);
  io_ = nullptr;
}

Connection::Connection(HttpCore& core, tcp::socket socket)
    : core_(core),
      limits_(core.options.limits),
      socket_(std::move(socket)),
      timer_(core.io),
      local_address_(LocalAddressOf(socket_)),
      reader_(limits_, core.held_bodies) {}

template <typename Body>
void Connection::Guard(const Body& body) {
  try {
    body();
  } catch (...) {
    Close();
  }
}

// ---- Requests.

void Connection::Start() {
  Guard([&] {
    socket_.non_blocking(true);
    // Small pieces of a stream leave at once, and a machine that is gone is noticed in the end.
    socket_.set_option(tcp::no_delay(true));
    socket_.set_option(boost::asio::socket_base::keep_alive(true));
    BeginHead();
    Arm(limits_.head_time);
    Read();
  });
}

void Connection::BeginHead() {
  state_ = State::kHead;
  since_ = std::chrono::steady_clock::now();
  reader_.Next();
  ++request_;
  head_ = {};
  head_.id = fmt::format("req_{:016x}", core_.ids());
  is_head_ = is_http_10_ = keeps_alive_ = is_chunked_ = false;
  answer_ = Answer::kNone;
  ping_.clear();
  Arm(reader_.IsEmpty() ? limits_.idle_time : limits_.head_time);
}

void Connection::Read() {
  if (is_reading_ || is_half_closed_ || state_ == State::kClosed || reader_.Room().size() == 0) {
    return;
  }
  is_reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->is_reading_ = false;
    if (error || self->state_ == State::kClosed) return;
    self->Guard([&] { self->OnReadable(); });
  });
}

void Connection::OnReadable() {
  error_code error;
  const bool begins = state_ == State::kHead && reader_.IsEmpty();
  const std::size_t bytes = socket_.read_some(reader_.Room(), error);
  if (error == boost::asio::error::would_block) return Read();
  if (error) return OnInputEnd(error == boost::asio::error::eof);
  reader_.Added(bytes);
  if (begins) Arm(limits_.head_time);
  Proceed();
  if (state_ == State::kLinger) reader_.DropBytes();
  if (state_ == State::kBody && reader_.body_bytes() >> 20 != armed_mebibytes_) {
    armed_mebibytes_ = reader_.body_bytes() >> 20;
    Arm(limits_.body_time);
  }
  Read();
}

void Connection::OnInputEnd(bool is_orderly) {
  // Whoever has an answer on its way may have closed the side that sends.
  if (!is_orderly || state_ != State::kAnswer || answer_ != Answer::kEnded) return Close();
  is_half_closed_ = true;
}

void Connection::Proceed() {
  try {
    while (true) {
      if (state_ == State::kHead) {
        if (!reader_.ReadHead()) {
          // An empty line behind a body begins no request.
          if (reader_.IsEmpty() && reader_.HasSkipped()) Arm(limits_.idle_time);
          return;
        }
        TakeHead();
      } else if (state_ == State::kBody) {
        if (!reader_.ReadBody()) return;
        TakeRequest();
      } else {
        return;
      }
    }
  } catch (...) {
    Refuse(CaughtError(kFault));
  }
}

void Connection::TakeHead() {
  std::string id = std::move(head_.id);
  head_ = reader_.head();
  head_.id = std::move(id);
  is_head_ = reader_.is_head();
  is_http_10_ = reader_.is_http_10();
  keeps_alive_ = reader_.keeps_alive();
  CheckSite(head_, core_.rules, local_address_);
  CheckKey(head_, core_.rules);
  if (core_.open_requests >= static_cast<std::int64_t>(limits_.connections) &&
      !IsOpen(head_, core_.rules)) {
    throw ApiError(503, "too many requests at the same time; try again later");
  }
  HttpBody body{.limit = limits_.body};
  // Who has no key holds no memory.
  if (IsOpen(head_, core_.rules)) {
    body.limit = 0;
  } else if (core_.options.body_of) {
    body = core_.options.body_of(head_);
  }
  reader_.BeginBody(body);
  state_ = State::kBody;
  armed_mebibytes_ = 0;
  Arm(limits_.body_time);
  if (!reader_.waits_for_continue()) return;
  output_.Add("HTTP/1.1 100 Continue\r\n\r\n");
  Flush();
}

void Connection::TakeRequest() {
  Disarm();
  state_ = State::kAnswer;
  HttpRequest request = reader_.Take();
  if (head_.method == "OPTIONS") {
    return SendNow(OptionsAnswer(!AllowedOrigin(head_, core_.rules).empty()));
  }
  request.id = head_.id;
  is_counted_ = true;
  ++core_.open_requests;
  const HttpReplyPtr reply = MakeReply(core_.thread, weak_from_this(), request_);
  try {
    core_.handler(std::move(request), reply);
  } catch (...) {
    reply->Send(Refusal(CaughtError(kFault)));
  }
}

void Connection::Linger() {
  state_ = State::kLinger;
  since_ = std::chrono::steady_clock::now();
  error_code error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  if (error || is_half_closed_) return Close();
  reader_.DropBytes();
  Arm(kLingerTime);
  Read();
}

void Connection::Drain() {
  if (state_ == State::kHead && reader_.IsEmpty()) Close();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  const std::shared_ptr<Connection> self = shared_from_this();
  const bool is_awaited = Awaits(request_);
  const std::function<void()> gone = std::exchange(gone_, nullptr);
  state_ = State::kClosed;
  CountAnswered();
  timer_.cancel();
  error_code error;
  socket_.close(error);
  core_.connections.erase(self);
  try {
    if (is_awaited && gone) gone();
  } catch (...) {
    // Is the caller's own affair.
  }
}

// ---- Answers.

bool Connection::Awaits(std::int64_t request) const {
  return state_ == State::kAnswer && request == request_ && answer_ != Answer::kEnded;
}

void Connection::Send(std::int64_t request, HttpResponse response) {
  Guard([&] {
    if (Awaits(request) && answer_ == Answer::kNone) SendNow(std::move(response));
  });
}

void Connection::Begin(std::int64_t request, HttpResponse head) {
  Guard([&] {
    if (!Awaits(request) || answer_ != Answer::kNone) return;
    answer_ = Answer::kBegun;
    is_chunked_ = !is_http_10_;
    // The end of a body of unknown length is the end of the connection.
    keeps_alive_ = keeps_alive_ && is_chunked_;
    ping_ = std::move(head.ping);
    room_ = std::move(head.room);
    SendHead(head, std::nullopt);
    Flush();
  });
}

void Connection::Write(std::int64_t request, std::string_view piece) {
  Guard([&] {
    if (!Awaits(request) || answer_ != Answer::kBegun || is_head_) return;
    if (unread() > limits_.unread) return Close();
    if (!HasRoomFor(piece.size())) return;
    output_.Add(is_chunked_ ? Chunk(piece) : std::string(piece));
    Flush();
  });
}

void Connection::End(std::int64_t request) {
  Guard([&] {
    if (!Awaits(request) || answer_ != Answer::kBegun) return;
    answer_ = Answer::kEnded;
    if (is_chunked_ && !is_head_) output_.Add(std::string(kLastChunk));
    Flush();
  });
}

void Connection::Abandon(std::int64_t request) {
  Guard([&] {
    if (!Awaits(request)) return;
    // A client sees that a body without its end is not whole.
    if (answer_ == Answer::kBegun) return Close();
    SendNow(ErrorAnswer(core_.options, head_, ApiError(500, "the request was not answered")));
  });
}

void Connection::OnGone(std::int64_t request, std::function<void()> gone) {
  if (Awaits(request)) {
    gone_ = std::move(gone);
  } else if (state_ == State::kClosed && request == request_ && answer_ != Answer::kEnded) {
    gone();
  }
}

void Connection::Refuse(const ApiError& error) {
  state_ = State::kAnswer;
  Disarm();
  reader_.DropBody();
  keeps_alive_ = keeps_alive_ && reader_.IsDone();
  SendNow(Refusal(error));
}

HttpResponse Connection::Refusal(const ApiError& error) {
  if (core_.options.log) {
    // The head of a request may be what is refused.
    const std::string method = head_.method.empty() ? "request" : head_.method;
    core_.options.log(fmt::format("{} {} refused {}{}{}", head_.id, method, error.status,
                                  error.detail.empty() ? "" : ": error: ", error.detail));
  }
  return ErrorAnswer(core_.options, head_, error);
}

std::size_t Connection::unread() const {
  return output_.held() - std::min(output_.held(), room_.bytes);
}

bool Connection::HasRoomFor(std::size_t bytes) {
  const std::size_t own = output_.held() + bytes;
  while (true) {
    std::size_t all = own - std::min(own, room_.bytes);
    std::size_t most = all;
    std::shared_ptr<Connection> largest = shared_from_this();
    for (const auto& other : core_.connections) {
      if (other.get() == this) continue;
      all += other->unread();
      if (other->unread() <= most) continue;
      most = other->unread();
      largest = other;
    }
    // One answer alone may be larger.
    if (all <= std::max(limits_.unread, most)) return true;
    largest->Close();
    if (largest.get() == this) return false;
  }
}

void Connection::SendNow(HttpResponse response) {
  answer_ = Answer::kEnded;
  room_ = std::move(response.room);
  std::optional<std::uint64_t> length;
  try {
    length = LengthOf(response);
  } catch (const std::exception& error) {
    response = Refusal(ApiError(500, "what was to be sent is not there", "", "", error.what()));
    length = LengthOf(response);
  }
  SendHead(response, length);
  if (length && !is_head_ && response.shared) {
    output_.AddShared(std::move(response.shared));
  } else if (length && !is_head_) {
    if (!HasRoomFor(response.body.size())) return;
    output_.Add(std::move(response.body));
  }
  Flush();
}

void Connection::SendHead(const HttpResponse& response, std::optional<std::uint64_t> length) {
  keeps_alive_ = keeps_alive_ && !core_.drains && !is_half_closed_;
  output_.Add(AnswerHead(response, {.length = length,
                                    .is_chunked = answer_ == Answer::kBegun && is_chunked_,
                                    .is_http_10 = is_http_10_,
                                    .keeps_alive = keeps_alive_,
                                    .id = head_.id,
                                    .allowed_origin = AllowedOrigin(head_, core_.rules)}));
}

std::optional<std::uint64_t> Connection::LengthOf(const HttpResponse& response) {
  if (!HasBody(response.status)) return std::nullopt;
  if (response.shared) return response.shared->size();
  if (response.file.empty()) return response.body.size();
  return is_head_ ? std::filesystem::file_size(response.file) : output_.AddFile(response.file);
}

void Connection::Flush() {
  if (is_sending_ || state_ == State::kClosed) return;
  const std::string_view bytes = output_.Next();
  if (bytes.empty()) {
    owed_ = 0;
    if (state_ != State::kAnswer) return;
    if (answer_ == Answer::kEnded) return OnAnswered();
    return ping_.empty() ? Disarm() : Arm(limits_.ping_time);
  }
  // Not for each byte, or one a minute would do.
  if (state_ == State::kAnswer && owed_ == 0) {
    owed_ = std::size_t{1} << 20;
    Arm(limits_.answer_time);
  }
  is_sending_ = true;
  socket_.async_write_some(boost::asio::buffer(bytes.data(), bytes.size()),
                           [self = shared_from_this()](const error_code& error, std::size_t sent) {
                             self->is_sending_ = false;
                             self->Guard([&] { self->OnSent(bool(error), sent); });
                           });
}

void Connection::OnSent(bool is_broken, std::size_t bytes) {
  if (state_ == State::kClosed) return;
  if (is_broken) return Close();
  output_.Sent(bytes);
  owed_ -= std::min(owed_, bytes);
  Flush();
}

void Connection::OnAnswered() {
  CountAnswered();
  gone_ = nullptr;
  room_ = {};
  if (!keeps_alive_ || is_half_closed_ || core_.drains) return Linger();
  BeginHead();
  Proceed();
  Read();
}

void Connection::CountAnswered() {
  if (is_counted_) --core_.open_requests;
  is_counted_ = false;
}

// ---- Time.

void Connection::Arm(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    // A wait that has ended may have been armed anew since.
    const bool is_due = self->timer_.expiry() <= std::chrono::steady_clock::now();
    if (!error && is_due && self->state_ != State::kClosed) {
      self->Guard([&] { self->OnTimeout(); });
    }
  });
}

void Connection::Disarm() { timer_.expires_at(std::chrono::steady_clock::time_point::max()); }

void Connection::OnTimeout() {
  switch (state_) {
    case State::kHead:
      if (reader_.IsEmpty()) return Close();
      return Refuse(ApiError(408, "the head of the request did not come in time"));
    case State::kBody:
      return Refuse(ApiError(408, "the body of the request did not come in time"));
    case State::kAnswer:
      if (is_sending_) return Close();
      return Write(request_, ping_);
    case State::kLinger:
    case State::kClosed:
      return Close();
  }
}

}  // namespace qlora
