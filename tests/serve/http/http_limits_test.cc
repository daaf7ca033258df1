// What clients may make large, slow or many.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "serve/http/http_server_fixture.h"

namespace qlora {
namespace {

using std::chrono::milliseconds;

TEST_F(HttpServerTest, ABodyThatIsTooLargeIsRefusedBeforeItComes) {
  HttpOptions options = OnAnyPort({.body = 10});
  std::atomic<int> handled = 0;
  options.body_of = [](const HttpRequest& head) {
    return HttpBody{.limit = head.path == "/large" ? std::size_t{20} : 10};
  };
  const HttpServer server(options, [&](const HttpRequest& request, const HttpReplyPtr& reply) {
    ++handled;
    Echo(request, reply);
  });
  const auto ask = [&](const std::string& path, const std::string& rest) {
    TestClient client(server.port());
    client.Ask("POST", path, rest);
    return client.Read();
  };
  for (const char* length : {"11", "1000000000", "18446744073709551615"}) {
    EXPECT_EQ(ask("/", "Content-Length: " + std::string(length) + "\r\n").status, 413) << length;
  }
  // The answer arrives though the client goes on sending.
  TestClient stubborn(server.port());
  stubborn.Ask("POST", "/", "Content-Length: 1000000\r\n");
  stubborn.Send(std::string(1000000, 'x'));
  EXPECT_EQ(stubborn.Read().status, 413);
  EXPECT_EQ(ask("/", "Transfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n6\r\nabcdef\r\n").status,
            413);
  EXPECT_EQ(ask("/", "Transfer-Encoding: chunked\r\n\r\nfffffffffffffff0\r\nabcdefghijkl").status,
            413);
  EXPECT_EQ(handled, 0);
  TestClient client(server.port());
  client.Ask("POST", "/large", "", "0123456789abcdef");
  EXPECT_EQ(client.Read().body, "POST /large  0123456789abcdef");
}

// Else they would fill the room for bodies.
TEST_F(HttpServerTest, WhoNeedsNoKeySendsNoBody) {
  HttpOptions options = OnAnyPort();
  options.api_key = "key";
  const HttpServer server(options, handler());
  const auto ask = [&](const std::string& path) {
    TestClient client(server.port());
    client.Ask("GET", path, "Authorization: Bearer key\r\n", "body");
    return client.Read().status;
  };
  EXPECT_EQ(ask("/health"), 413);
  EXPECT_EQ(ask("/metrics"), 200);
}

TEST_F(HttpServerTest, BodiesOfAllTogetherAreBounded) {
  const HttpServer server(OnAnyPort({.bodies = 100}), handler());
  TestClient first(server.port());
  first.Ask("POST", "/", "Content-Length: 80\r\n");
  first.Send(std::string(70, 'a'));
  TestClient second(server.port());
  second.Ask("POST", "/", "Content-Length: 80\r\nExpect: 100-continue\r\n");
  EXPECT_EQ(second.Read().status, 100);
  second.Send(std::string(31, 'b'));
  EXPECT_EQ(second.Read().status, 503);
  first.Send(std::string(10, 'a'));
  EXPECT_EQ(first.Read().status, 200);
  TestClient third(server.port());
  third.Ask("POST", "/", "", std::string(80, 'c'));
  EXPECT_EQ(third.Read().status, 200);
  // Also those of requests that wait.
  third.Ask("POST", "/wait", "", std::string(80, 'c'));
  {
    const Requests::Pair held = waiting.Next();
    first.Ask("POST", "/", "", std::string(80, 'a'));
    EXPECT_EQ(first.Read().status, 503);
    held.reply->Send({.body = "done"});
    EXPECT_EQ(third.Read().status, 200);
  }
  TestClient fourth(server.port());
  fourth.Ask("POST", "/", "", std::string(80, 'd'));
  EXPECT_EQ(fourth.Read().status, 200);
}

TEST_F(HttpServerTest, ABodyGoesToItsFile) {
  HttpOptions options = OnAnyPort();
  std::atomic<int> bodies = 0;
  options.body_of = [&](const HttpRequest& head) {
    return HttpBody{.limit = std::size_t{4} << 20,
                    .file = head.method == "POST" ? scratch / std::to_string(++bodies) : ""};
  };
  const HttpServer server(options, handler());
  const std::string text(std::size_t{3} << 20, 'x');
  TestClient client(server.port());
  client.Ask("POST", "/wait", "", text);
  Requests::Pair pair = waiting.Next();
  EXPECT_EQ(pair.request.body, "");
  EXPECT_EQ(pair.request.body_file, scratch / "1");
  EXPECT_EQ(ReadTextFile(scratch / "1"), text);
  pair.reply->Send({});
  EXPECT_EQ(client.Read().status, 200);
  // A request without a body makes no file; a broken one leaves none.
  client.Ask("POST", "/wait");
  pair = waiting.Next();
  EXPECT_EQ(pair.request.body_file, "");
  pair.reply->Send({});
  EXPECT_EQ(client.Read().status, 200);
  {
    TestClient leaver(server.port());
    leaver.Ask("POST", "/", "Content-Length: 1000\r\n", "");
    leaver.Send("x");
    WaitFor([&] { return std::filesystem::exists(scratch / "3"); });
  }
  WaitFor([&] { return !std::filesystem::exists(scratch / "3"); });
  TestClient endless(server.port());
  endless.Ask("POST", "/", "Transfer-Encoding: chunked\r\n");
  endless.Send("500000\r\n" + std::string(0x500000, 'x'));
  EXPECT_EQ(endless.Read().status, 413);
  WaitFor([&] { return !std::filesystem::exists(scratch / "4"); });
  EXPECT_EQ(scratch.files(), 1u);
}

// Each has a line in the log, and no client learns the path.
TEST_F(HttpServerTest, WhatIsRefusedIsLogged) {
  HttpOptions options = OnAnyPort();
  options.body_of = [&](const HttpRequest&) {
    return HttpBody{.limit = 100, .file = scratch / "gone" / "body"};
  };
  std::mutex mutex;
  std::string log;
  options.log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    log += line + "\n";
  };
  const HttpServer server(options, handler());
  const auto answer = [&](std::size_t bytes) {
    TestClient client(server.port());
    client.Ask("POST", "/", "", std::string(bytes, 'x'));
    return client.Read();
  };
  EXPECT_EQ(answer(101).status, 413);
  const HttpAnswer broken = answer(100);
  EXPECT_EQ(broken.status, 507);
  EXPECT_EQ(broken.body.find("gone/body"), std::string::npos) << broken.body;
  const std::lock_guard lock(mutex);
  EXPECT_NE(log.find(" POST refused 413\n"), std::string::npos) << log;
  EXPECT_NE(log.find(broken.Header("X-Request-Id") + " POST refused 507: error: "),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("gone/body"), std::string::npos) << log;
}

TEST_F(HttpServerTest, AHeadThatIsTooLongIsRefused) {
  const HttpServer server(OnAnyPort({.head = 1000}), handler());
  const auto status = [&](const std::string& request) {
    TestClient client(server.port());
    client.Send(request);
    return client.Read().status;
  };
  const std::string start = "GET / HTTP/1.1\r\nHost: localhost\r\n";
  EXPECT_EQ(status(start + "X: " + std::string(900, 'a') + "\r\n\r\n"), 200);
  EXPECT_EQ(status(start + "X: " + std::string(1000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(status(start + "X: " + std::string(1 << 20, 'a')), 431);
  EXPECT_EQ(status("GET /" + std::string(1 << 20, 'a')), 431);
  std::string many = start;
  for (int i = 0; i < 1000; ++i) many += "X: 1\r\n";
  EXPECT_EQ(status(many + "\r\n"), 431);
  // A line at a time.
  TestClient client(server.port());
  client.Send(start);
  while (client.Send("X: 1\r\n")) std::this_thread::yield();
}

TEST_F(HttpServerTest, WhatCouldBeReadInTwoWaysIsRefused) {
  const HttpServer server(OnAnyPort(), handler());
  const std::string post = "POST / HTTP/1.1\r\nHost: localhost\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n";
  std::string empty_lines;
  for (int i = 0; i < 9; ++i) empty_lines += "\r\n";
  const std::vector<std::string> requests = {
      post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      chunked + "Content-Length: 3\r\n\r\n0\r\n\r\n",
      post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
      post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
      post + "Content-Length: 3, 3\r\n\r\nabc",
      post + "Content-Length: -5\r\n\r\n",
      post + "Content-Length: +5\r\n\r\nabcde",
      post + "Content-Length: 0x5\r\n\r\nabcde",
      post + "Content-Length: 18446744073709551616\r\n\r\n",
      post + "Content-Length:\r\n\r\n",
      post + "Transfer-Encoding: gzip\r\n\r\n",
      post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
      chunked + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      chunked + "\r\n-2\r\nab\r\n",
      chunked + "\r\nx\r\n",
      chunked + "\r\n3\r\nabcdef\r\n",
      chunked + "\r\n10000000000000000\r\n",
      chunked + "\r\n" + std::string(1 << 17, '1'),
      post + "Bad Name: 1\r\n\r\n",
      post + "Name : 1\r\n\r\n",
      post + ": 1\r\n\r\n",
      post + "A: \x01\r\n\r\n",
      post + "A: 1\n\r\n",
      "GET / HTTP/9.9\r\n\r\n",
      "GET / HTTP/2.0\r\nHost: localhost\r\n\r\n",
      "GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET ftp://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
      "GET http://localhost/ HTTP/1.1\r\n\r\n",
      post + "A: 1\r\n 2\r\n\r\n",
      post + "A:\r\n\t2\r\n\r\n",
      empty_lines + "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET /%2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET /a%00b HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET /a%0d%0aX:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "\x16\x03\x01\x02" + std::string(100, '\0') + "\r\n\r\n"};
  for (const std::string& request : requests) {
    TestClient client(server.port());
    client.Send(request);
    EXPECT_EQ(client.Read().status, 400) << request.substr(0, 200);
    // What follows is not taken for another request.
    EXPECT_TRUE(client.IsEnded()) << request.substr(0, 200);
  }
  EXPECT_EQ(TestClient(server.port()).Get("/a").status, 200);
}

TEST_F(HttpServerTest, WhoTakesTooLongIsToldSo) {
  const HttpServer server(
      OnAnyPort({.head_time = milliseconds(100), .body_time = milliseconds(100)}), handler());
  // A connection is only closed when the machine takes so long to send the first byte.
  int status = 0;
  while (status == 0) {
    TestClient client(server.port());
    client.Send("GET / HTTP/1.1\r\n");
    status = client.Read().status;
  }
  EXPECT_EQ(status, 408);
  status = 0;
  while (status == 0) {
    TestClient client(server.port());
    client.Ask("POST", "/", "Content-Length: 10\r\n");
    status = client.Read().status;
  }
  EXPECT_EQ(status, 408);
  TestClient silent(server.port());
  EXPECT_TRUE(silent.IsEnded());
}

TEST_F(HttpServerTest, AKeptConnectionIsNotKeptForEver) {
  const HttpServer server(OnAnyPort({.idle_time = milliseconds(1)}), handler());
  TestClient client(server.port());
  EXPECT_EQ(client.Get("/a").status, 200);
  EXPECT_TRUE(client.IsEnded());
}

TEST_F(HttpServerTest, SlowClientsKeepNobodyWaiting) {
  const HttpServer server(OnAnyPort(), handler());
  std::vector<TestClient> slow;
  for (int i = 0; i < 300; ++i) {
    slow.emplace_back(server.port());
    if (i % 3 == 0) slow.back().Send("POST / HTTP/1.1\r\nHost: localhost\r\nX-");
    if (i % 3 == 1) slow.back().Ask("POST", "/", "Content-Length: 1000\r\n", "");
    if (i % 3 == 2) {
      EXPECT_EQ(slow.back().Get("/kept").status, 200);
    }
  }
  EXPECT_EQ(TestClient(server.port()).Get("/a").status, 200);
}

TEST_F(HttpServerTest, AFullHouseClosesTheOldestWithoutARequest) {
  const HttpServer server(OnAnyPort({.connections = 2, .spare_connections = 1}), handler());
  TestClient busy(server.port());
  busy.Ask("GET", "/wait");
  const HttpReplyPtr reply = waiting.Next().reply;
  TestClient first(server.port());
  EXPECT_EQ(first.Get("/1").status, 200);
  TestClient second(server.port());
  EXPECT_EQ(second.Get("/2").status, 200);
  TestClient third(server.port());
  EXPECT_EQ(third.Get("/3").status, 200);
  EXPECT_TRUE(first.IsEnded());
  EXPECT_EQ(second.Get("/2").status, 200);
  reply->Send({.body = "busy"});
  EXPECT_EQ(busy.Read().body, "busy");
}

TEST_F(HttpServerTest, AHouseFullOfRequestsStillSaysThatItIsWell) {
  const HttpServer server(OnAnyPort({.connections = 3, .spare_connections = 2}), handler());
  std::vector<TestClient> busy;
  std::vector<HttpReplyPtr> replies;
  for (int i = 0; i < 3; ++i) {
    busy.emplace_back(server.port());
    busy.back().Ask("GET", "/wait");
    replies.push_back(waiting.Next().reply);
  }
  std::vector<TestClient> idle;
  for (int i = 0; i < 100; ++i) idle.emplace_back(server.port());
  EXPECT_EQ(TestClient(server.port()).Get("/health").status, 200);
  const HttpAnswer refused = TestClient(server.port()).Get("/other");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.Header("Retry-After"), "");
  for (const HttpReplyPtr& reply : replies) reply->Send({});
  for (TestClient& client : busy) EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpServerTest, ClientsThatComeAndGoLeaveNothing) {
  const HttpServer server(OnAnyPort(), handler());
  const std::string request =
      "POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcdGET /b HTTP/1.1\r\n";
  std::atomic<bool> stops = false;
  std::thread answers([&] {
    while (!stops) {
      while (waiting.size() > 0) {
        const HttpReplyPtr reply = waiting.Next().reply;
        reply->Begin({});
        reply->Write("a");
        reply->End();
      }
      std::this_thread::yield();
    }
  });
  for (std::size_t i = 0; i < 1000; ++i) {
    TestClient client(server.port());
    client.Send(std::string_view(request).substr(0, 1 + i % request.size()));
    if (i % 2 == 0) client.CloseSending();
  }
  WaitFor([&] { return waiting.size() == 0 && server.open_requests() == 0; });
  stops = true;
  answers.join();
  EXPECT_EQ(TestClient(server.port()).Get("/a").status, 200);
}

}  // namespace
}  // namespace qlora
