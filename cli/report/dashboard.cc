#include "report/dashboard.h"

#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <exception>
#include <thread>

#include "errors.h"
#include "report/report_page.h"

namespace qlora {
namespace {

// A browser asks for one thing at a time.
constexpr std::size_t kThreads = 2;

// "localhost:8080" and "127.0.0.1:8080" name this machine.
bool NamesThisMachine(std::string host) {
  const std::size_t colon = host.rfind(':');
  if (colon != std::string::npos) host.resize(colon);
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return host == "localhost" || host == "127.0.0.1";
}

// The library's default also lets two servers share a port.
void ReuseAddress(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

}  // namespace

struct Dashboard::Impl {
  httplib::Server server;
  std::thread thread;
  std::atomic<bool> ended = false;  // the thread, by itself
};

Dashboard::Dashboard(std::int64_t port, std::string run_dir) : impl_(std::make_unique<Impl>()) {
  constexpr std::int64_t kHighest = 65535;
  if (port < 1 || port > kHighest) {
    ThrowUsage("dashboard: expected a port, 1 to {}, found {}", kHighest, port);
  }
  httplib::Server& server = impl_->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_socket_options(ReuseAddress);
  server.set_default_headers({{"Cache-Control", "no-store"},
                              {"X-Content-Type-Options", "nosniff"},
                              {"X-Frame-Options", "DENY"},
                              {"Referrer-Policy", "no-referrer"}});
  server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    if (NamesThisMachine(request.get_header_value("Host"))) {
      return httplib::Server::HandlerResponse::Unhandled;
    }
    response.status = 403;
    response.set_content("this page is for this machine only\n", "text/plain");
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(ReportPage("{\"live\":true,\"runs\":[]}"), "text/html; charset=utf-8");
  });
  server.Get("/data.json", [run_dir](const httplib::Request&, httplib::Response& response) {
    try {
      response.set_content(ReportData({run_dir}, true), "application/json");
    } catch (const std::exception& error) {
      response.status = 500;
      response.set_content(error.what(), "text/plain");
    }
  });
  if (!server.bind_to_port("127.0.0.1", static_cast<int>(port))) {
    ThrowUsage("dashboard: port {} is taken; choose another", port);
  }
  url_ = fmt::format("http://127.0.0.1:{}/", port);
  impl_->thread = std::thread([impl = impl_.get()] {
    impl->server.listen_after_bind();
    impl->ended = true;
  });
  // A server that does not run yet cannot be stopped.
  while (!server.is_running() && !impl_->ended) std::this_thread::yield();
}

Dashboard::~Dashboard() {
  impl_->server.stop();
  impl_->thread.join();
}

}  // namespace qlora
