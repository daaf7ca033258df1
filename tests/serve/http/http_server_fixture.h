// A server of tests, whose requests a test may answer itself.
#ifndef QLORA_TESTS_SERVE_HTTP_HTTP_SERVER_FIXTURE_H_
#define QLORA_TESTS_SERVE_HTTP_HTTP_SERVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "serve/http/http_client.h"
#include "serve/http_server.h"
#include "temporary_folder.h"

namespace qlora {

template <typename Condition>
void WaitFor(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Requests that the test answers when it likes.
class Requests {
 public:
  struct Pair {
    HttpRequest request;
    HttpReplyPtr reply;
  };
  void Add(HttpRequest request, HttpReplyPtr reply) {
    const std::lock_guard lock(mutex_);
    pairs_.push_back({std::move(request), std::move(reply)});
    changed_.notify_all();
  }
  Pair Next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !pairs_.empty(); });
    Pair pair = std::move(pairs_.front());
    pairs_.pop_front();
    return pair;
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return pairs_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pair> pairs_;
};

// Answers with what was asked: "POST /path a=1;b=2; body".
inline void Echo(const HttpRequest& request, const HttpReplyPtr& reply) {
  std::string text = request.method + " " + request.path + " ";
  for (const auto& [name, value] : request.query) text += name + "=" + value + ";";
  reply->Send({.type = "text/plain", .body = text + " " + request.body});
}

inline HttpOptions OnAnyPort(HttpLimits limits = {}) { return {.port = 0, .limits = limits}; }

struct HttpServerTest : testing::Test {
  // "/wait" is for the test to answer, all else is told back.
  HttpServer::Handler handler() {
    return [this](HttpRequest request, HttpReplyPtr reply) {
      if (request.path == "/wait") {
        waiting.Add(std::move(request), std::move(reply));
      } else {
        Echo(request, reply);
      }
    };
  }

  Requests waiting;
  TemporaryFolder scratch;
};

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_HTTP_HTTP_SERVER_FIXTURE_H_
