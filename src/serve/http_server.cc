// Asio 1.74 needs it in C++20.
#include "serve/http_server.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "serve/http/connection.h"

namespace qlora {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause(100);

tcp::endpoint EndpointOf(const HttpOptions& options) {
  constexpr std::int64_t kHighest = 65535;
  if (options.port < 0 || options.port > kHighest) {
    ThrowInvalidInput("port: expected 0 to {}, found {}", kHighest, options.port);
  }
  const std::string text = options.host == "localhost" ? "127.0.0.1" : options.host;
  error_code error;
  const auto address = boost::asio::ip::make_address(text, error);
  if (error) {
    ThrowInvalidInput("host: expected an address of this machine such as 127.0.0.1, found {}",
                      options.host);
  }
  if (!address.is_loopback() && options.api_key.empty()) {
    ThrowInvalidInput(
        "host: {} can be reached by other machines; give an API key, which they must send, or use "
        "127.0.0.1",
        options.host);
  }
  return {address, static_cast<std::uint16_t>(options.port)};
}

void Listen(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  try {
    acceptor.open(endpoint.protocol());
    // A program that is started again need not wait for old connections to time out.
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
  } catch (const boost::system::system_error& failure) {
    if (failure.code() == boost::asio::error::address_in_use) {
      ThrowInvalidInput("port {} is taken; choose another", endpoint.port());
    }
    ThrowInvalidInput("port {} of {} cannot be opened: {}; choose another", endpoint.port(),
                      endpoint.address().to_string(), failure.code().message());
  }
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpOptions options, Handler handler)
      : core_{.options = std::move(options), .handler = std::move(handler)} {
    Listen(acceptor_, EndpointOf(core_.options));
    port_ = acceptor_.local_endpoint().port();
    core_.rules = MakeHeadRules(core_.options, port_);
    std::random_device seed;
    core_.ids.seed(std::uint64_t{seed()} << 32 | seed());
    Accept();
    thread_ = std::thread([this] { Serve(); });
  }

  ~Impl() {
    core_.thread->Close();
    core_.io.stop();
    thread_.join();
    // Handlers that wait in io are destroyed with it, and with them the rest of the connections.
    core_.connections.clear();
  }

  std::int64_t port() const { return port_; }
  std::int64_t open_requests() const { return core_.open_requests; }

  void Drain() {
    std::promise<void> done;
    core_.thread->Run([this, &done] {
      core_.drains = true;
      error_code error;
      acceptor_.close(error);
      // Connections leave the set as they are closed.
      const auto connections = core_.connections;
      for (const auto& connection : connections) connection->Drain();
      done.set_value();
    });
    done.get_future().wait();
  }

 private:
  // Occupies the standard descriptors that are closed: messages to them would be written into a
  // socket that has their number.
  class ClosedDescriptors {
   public:
    ClosedDescriptors() {
      int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
      for (; fd >= 0 && fd <= STDERR_FILENO; fd = dup(fd)) occupied_.push_back(fd);
      if (fd >= 0) close(fd);
    }
    ~ClosedDescriptors() {
      for (const int fd : occupied_) close(fd);
    }
    ClosedDescriptors(const ClosedDescriptors&) = delete;
    ClosedDescriptors& operator=(const ClosedDescriptors&) = delete;

   private:
    std::vector<int> occupied_;
  };

  void Serve() {
    const auto work = boost::asio::make_work_guard(core_.io);
    // Whatever part of a connection fails is its own affair; others go on.
    while (!core_.io.stopped()) {
      try {
        core_.io.run();
      } catch (...) {
      }
    }
  }

  void Accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (core_.drains) return;
      if (!error) {
        // First, since what fails in Admit ends this function.
        Accept();
        return Admit(std::move(socket));
      }
      // For want of descriptors the connection stays in the queue, and would be reported again at
      // once.
      CloseOldest();
      pause_.expires_after(kAcceptPause);
      pause_.async_wait([this](const error_code&) {
        if (!core_.drains) Accept();
      });
    });
  }

  void Admit(tcp::socket socket) {
    const HttpLimits& limits = core_.options.limits;
    const std::size_t most = limits.connections + limits.spare_connections;
    if (core_.connections.size() >= most && !CloseOldest()) return;
    const auto connection = std::make_shared<Connection>(core_, std::move(socket));
    core_.connections.insert(connection);
    connection->Start();
  }

  // The one that has waited longest without a request. False: all have one.
  bool CloseOldest() {
    std::shared_ptr<Connection> oldest;
    for (const auto& connection : core_.connections) {
      if (connection->IsWaiting() &&
          (oldest == nullptr || connection->waits_since() < oldest->waits_since())) {
        oldest = connection;
      }
    }
    if (oldest != nullptr) oldest->Close();
    return oldest != nullptr;
  }

  const ClosedDescriptors closed_;
  HttpCore core_;
  tcp::acceptor acceptor_{core_.io};
  std::int64_t port_ = 0;
  boost::asio::steady_timer pause_{core_.io};
  std::thread thread_;
};

HttpServer::HttpServer(HttpOptions options, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {}
HttpServer::~HttpServer() = default;

std::int64_t HttpServer::port() const { return impl_->port(); }
void HttpServer::Drain() { impl_->Drain(); }
std::int64_t HttpServer::open_requests() const { return impl_->open_requests(); }

}  // namespace qlora
