#include "serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "base/file.h"
#include "io/test_util.h"
#include "serve/api_error.h"
#include "serve/http/event_stream.h"
#include "serve/http_client.h"

namespace qlora {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename Condition>
void WaitFor(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(milliseconds(1));
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
void Echo(const HttpRequest& request, const HttpReplyPtr& reply) {
  std::string text = request.method + " " + request.path + " ";
  for (const auto& [name, value] : request.query) text += name + "=" + value + ";";
  reply->Send({.type = "text/plain", .body = text + " " + request.body});
}

HttpOptions OnAnyPort(HttpLimits limits = {}) { return {.port = 0, .limits = limits}; }

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

// ---- What is asked and answered.

TEST_F(HttpServerTest, ARequestComesWithItsPartsDecoded) {
  HttpRequest seen;
  const HttpServer server(OnAnyPort(), [&](HttpRequest request, HttpReplyPtr reply) {
    seen = request;
    Echo(request, reply);
  });
  TestClient client(server.port());
  client.Ask("POST", "/a%20b/%C3%A9?x=1+2&y=%26&z&=&x=3", "X-A: 1\r\nx-a:  2 \r\n", "text");
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "POST /a b/\xC3\xA9 =;x=3;y=&;z=; text");
  EXPECT_EQ(seen.headers.at("x-a"), "1, 2");
  EXPECT_EQ(answer.Header("X-Request-Id"), seen.id);
  EXPECT_EQ(answer.Header("Content-Type"), "text/plain");
  EXPECT_EQ(answer.Header("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(answer.Header("Cache-Control"), "no-store");
  EXPECT_EQ(answer.Header("Access-Control-Allow-Origin"), "");
  EXPECT_NE(client.Get("/").Header("X-Request-Id"), answer.Header("X-Request-Id"));
}

TEST_F(HttpServerTest, ConnectionsAreKeptAsTheClientSays) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  EXPECT_EQ(client.Get("/1").Header("Connection"), "");
  EXPECT_EQ(client.Get("/2", "Connection: close\r\n").Header("Connection"), "close");
  EXPECT_TRUE(client.IsEnded());
  TestClient old(server.port());
  old.Send("GET /3 HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(old.Read().Header("Connection"), "keep-alive");
  old.Send("GET /4 HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(old.Read().body, "GET /4  ");
  EXPECT_TRUE(old.IsEnded());
}

TEST_F(HttpServerTest, AStreamOfHttp10EndsWithItsConnection) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Send("GET /wait HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n");
  const HttpReplyPtr reply = waiting.Next().reply;
  reply->Begin({});
  reply->Write("a");
  reply->Write("b");
  reply->End();
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.Header("Transfer-Encoding"), "");
  EXPECT_EQ(answer.body, "ab");
}

TEST_F(HttpServerTest, HeadIsAnsweredAsGetWithoutABody) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Ask("HEAD", "/a");
  EXPECT_EQ(client.Read(true).Header("Content-Length"), "8");  // "GET /a  "
  client.Ask("HEAD", "/wait");
  const HttpReplyPtr reply = waiting.Next().reply;
  reply->Begin({});
  reply->Write("text");
  reply->End();
  EXPECT_EQ(client.Read(true).status, 200);
  EXPECT_EQ(client.Get("/b").body, "GET /b  ");
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredOneByOne) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Send(
      "POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
      "POST /wait HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "1\r\nd\r\n2;x=y\r\nef\r\n0\r\nTrailer: 1\r\n\r\n"
      "GET /last HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Requests::Pair first = waiting.Next();
  EXPECT_EQ(first.request.body, "abc");
  EXPECT_EQ(waiting.size(), 0u);
  first.reply->Send({.body = "1"});
  const Requests::Pair second = waiting.Next();
  EXPECT_EQ(second.request.body, "def");
  // A reply that has ended has no part in the next answer.
  first.reply->Send({.body = "again"});
  first.reply->End();
  second.reply->Send({.body = "2"});
  EXPECT_EQ(client.Read().body, "1");
  EXPECT_EQ(client.Read().body, "2");
  EXPECT_EQ(client.Read().body, "GET /last  ");
}

TEST_F(HttpServerTest, ManyPipelinedRequestsWaitForTheirTurn) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  constexpr int kRequests = 3000;  // far more bytes than are held
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) client.Ask("GET", "/" + std::to_string(i));
  });
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(client.Read().body, "GET /" + std::to_string(i) + "  ");
  }
  sender.join();
}

TEST_F(HttpServerTest, ARequestMayComeByteByByte) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  const std::string request =
      "POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n0\r\n\r\n";
  for (const char c : request) client.Send({&c, 1});
  EXPECT_EQ(client.Read().body, "POST /a  abc");
}

TEST_F(HttpServerTest, WhoHasAskedMayCloseTheSideThatSends) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Ask("GET", "/a");
  client.CloseSending();
  EXPECT_EQ(client.Read().body, "GET /a  ");
  EXPECT_TRUE(client.IsEnded());
}

TEST_F(HttpServerTest, AStreamLeavesPieceByPiece) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Ask("GET", "/wait");
  EventStream stream(waiting.Next().reply, {{"X-Extra", "a\r\nX-Evil: 1"}});
  const HttpAnswer head = client.ReadHead();
  EXPECT_EQ(head.Header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(head.Header("Cache-Control"), "no-cache");
  EXPECT_EQ(head.Header("X-Accel-Buffering"), "no");
  EXPECT_EQ(head.Header("X-Evil"), "");
  stream.Data("{}");
  EXPECT_EQ(client.ReadChunk(), "data: {}\n\n");
  stream.Event("delta", "a\nb\r\n\rc");
  EXPECT_EQ(client.ReadChunk(), "event: delta\ndata: a\ndata: b\ndata: \ndata: c\n\n");
  stream.Done();
  EXPECT_EQ(client.ReadChunk(), "data: [DONE]\n\n");
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_TRUE(client.saw_last_chunk());
  EXPECT_EQ(client.Get("/b").body, "GET /b  ");
}

TEST_F(HttpServerTest, ASilentStreamPings) {
  const HttpServer server(OnAnyPort({.ping_time = milliseconds(1)}), handler());
  TestClient client(server.port());
  client.Ask("GET", "/wait");
  EventStream stream(waiting.Next().reply);
  client.ReadHead();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ReadChunk(), ": ping\n\n");
}

TEST_F(HttpServerTest, LargeAnswersComeFromFilesOrAreShared) {
  const std::string text(std::size_t{5} << 20, 'x');
  WriteTextFile(scratch / "large", text);
  const auto shared = std::make_shared<const std::string>(text);
  const HttpServer server(OnAnyPort(), [&](const HttpRequest& request, const HttpReplyPtr& reply) {
    if (request.path == "/shared") {
      reply->Send({.shared = shared});
    } else {
      reply->Send({.file = scratch / request.path.substr(1)});
    }
  });
  TestClient client(server.port());
  EXPECT_EQ(client.Get("/large").body, text);
  EXPECT_EQ(client.Get("/shared").body, text);
  client.Ask("HEAD", "/large");
  EXPECT_EQ(client.Read(true).Header("Content-Length"), std::to_string(text.size()));
  EXPECT_EQ(client.Get("/missing").status, 500);
  WriteTextFile(scratch / "empty", "");
  EXPECT_EQ(client.Get("/empty").body, "");
  EXPECT_EQ(client.Get("/large").body.size(), text.size());
}

// ---- Who may ask.

TEST_F(HttpServerTest, OnlyNamesOfThisMachineAreAnswered) {
  HttpOptions options = OnAnyPort();
  options.allow_hosts = {"My.Host"};
  const HttpServer server(options, handler());
  const auto status = [&](const std::string& lines, const std::string& path = "/") {
    TestClient client(server.port());
    client.Send("GET " + path + " HTTP/1.1\r\n" + lines + "\r\n");
    return client.Read().status;
  };
  for (const char* host : {"localhost", "LOCALHOST:1234", "127.0.0.1", "127.0.0.1:80", "[::1]:8080",
                           "my.host", "MY.HOST:443"}) {
    EXPECT_EQ(status("Host: " + std::string(host) + "\r\n"), 200) << host;
  }
  for (const char* host :
       {"", "evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example",
        "localhost:x", "localhost:", "localhost, evil.example", "evil@localhost", "[::1", "[::1]x",
        "[::2]", "127.0.0.2", "localhost."}) {
    EXPECT_EQ(status("Host: " + std::string(host) + "\r\n"), 403) << host;
    EXPECT_EQ(status("Host: " + std::string(host) + "\r\n", "/health"), 403) << host;
  }
  EXPECT_EQ(status(""), 403);
  EXPECT_EQ(status("Host: localhost\r\nHost: evil.example\r\n"), 403);
}

TEST_F(HttpServerTest, PagesOfOtherSitesAreRefused) {
  HttpOptions options = OnAnyPort();
  options.allow_origins = {"http://app.example:3000"};
  const HttpServer server(options, handler());
  const std::string port = std::to_string(server.port());
  const auto ask = [&](const std::string& origin, const char* method = "POST") {
    TestClient client(server.port());
    client.Ask(method, "/a", "Content-Type: text/plain\r\nOrigin: " + origin + "\r\n");
    return client.Read();
  };
  const std::vector<std::string> own = {"http://localhost:" + port, "http://127.0.0.1:" + port,
                                        "http://LOCALHOST:" + port};
  for (const std::string& origin : own) {
    EXPECT_EQ(ask(origin).status, 200) << origin;
    EXPECT_EQ(ask(origin).Header("Access-Control-Allow-Origin"), "") << origin;
  }
  for (const char* origin :
       {"http://evil.example", "null", "", "http://localhost:1", "http://localhost",
        "file://localhost", "http://localhost.evil.example", "http://app.example",
        "https://app.example:3000", "*"}) {
    const HttpAnswer answer = ask(origin);
    EXPECT_EQ(answer.status, 403) << origin;
    EXPECT_EQ(answer.Header("Access-Control-Allow-Origin"), "") << origin;
    EXPECT_EQ(ask(origin, "OPTIONS").status, 403) << origin;
  }
  const HttpAnswer allowed = ask("http://app.example:3000");
  EXPECT_EQ(allowed.status, 200);
  EXPECT_EQ(allowed.Header("Access-Control-Allow-Origin"), "http://app.example:3000");
  EXPECT_EQ(allowed.Header("Access-Control-Allow-Credentials"), "");
  EXPECT_EQ(allowed.Header("Vary"), "Origin");
}

TEST_F(HttpServerTest, OptionsAreAnsweredHere) {
  HttpOptions options = OnAnyPort();
  options.api_key = "secret";
  options.allow_origins = {"http://app.example"};
  const HttpServer server(options, handler());
  TestClient client(server.port());
  client.Ask("OPTIONS", "/v1/models");
  HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 204);
  EXPECT_THAT(answer.Header("Allow"), HasSubstr("POST"));
  EXPECT_EQ(answer.Header("Access-Control-Allow-Methods"), "");
  client.Ask("OPTIONS", "*", "Origin: http://app.example\r\n");
  answer = client.Read();
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.Header("Access-Control-Allow-Origin"), "http://app.example");
  EXPECT_THAT(answer.Header("Access-Control-Allow-Headers"), HasSubstr("Authorization"));
  EXPECT_EQ(answer.Header("Access-Control-Allow-Credentials"), "");
}

TEST_F(HttpServerTest, TheKeyIsAskedForBeforeTheBody) {
  HttpOptions options = OnAnyPort();
  options.api_key = "secret";
  const HttpServer server(options, handler());
  const auto status = [&](const std::string& headers, const std::string& path = "/v1/models") {
    return TestClient(server.port()).Get(path, headers).status;
  };
  EXPECT_EQ(status("Authorization: Bearer secret\r\n"), 200);
  EXPECT_EQ(status("authorization: bearer  secret\r\n"), 200);
  EXPECT_EQ(status("x-api-key: secret\r\n", "/v1/messages"), 200);
  EXPECT_EQ(status("x-api-key: secret\r\n", "/v1/messages/count_tokens"), 200);
  EXPECT_EQ(status("", "/health"), 200);
  EXPECT_EQ(status("", "/"), 200);
  for (const char* headers : {"", "Authorization: Bearer\r\n", "Authorization: Bearer secre\r\n",
                              "Authorization: Bearer secret1\r\n", "Authorization: secret\r\n",
                              "Authorization: Basic secret\r\n", "x-api-key: secret\r\n",
                              "Authorization: Bearer secret\r\nAuthorization: Bearer x\r\n"}) {
    EXPECT_EQ(status(headers), 401) << headers;
  }
  EXPECT_EQ(status("", "/v1/messages"), 401);
  EXPECT_EQ(status("x-api-key: secret\r\n", "/v1/messagesx"), 401);
  TestClient client(server.port());
  client.Ask("POST", "/", "Content-Length: 1000\r\n");
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(answer.Header("WWW-Authenticate"), "Bearer");
  EXPECT_THAT(answer.body, HasSubstr("invalid_api_key"));
  EXPECT_EQ(answer.body.find("secret"), std::string::npos);
  EXPECT_EQ(answer.Header("Connection"), "close");
}

TEST_F(HttpServerTest, OptionsThatWouldOpenItAreRefused) {
  HttpOptions options = OnAnyPort();
  options.host = "0.0.0.0";
  ExpectRefused([&] { HttpServer(options, handler()); }, "API key");
  options.host = "example.com";
  ExpectRefused([&] { HttpServer(options, handler()); }, "example.com");
  options = OnAnyPort();
  for (const char* origin : {"*", "app.example", "http://", "http://a/b", "http://*.example"}) {
    options.allow_origins = {origin};
    ExpectRefused([&] { HttpServer(options, handler()); }, "allow_origin");
  }
  const HttpServer server(OnAnyPort(), handler());
  options = OnAnyPort();
  options.port = server.port();
  ExpectRefused([&] { HttpServer(options, handler()); }, "is taken");
}

// ---- Limits.

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

TEST_F(HttpServerTest, WhoWaitsForLeaveToSendGetsIt) {
  const HttpServer server(OnAnyPort({.body = 10}), handler());
  TestClient client(server.port());
  client.Ask("POST", "/a", "Expect: 100-continue\r\nContent-Length: 3\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send("abc");
  EXPECT_EQ(client.Read().body, "POST /a  abc");
  client.Ask("POST", "/a", "Expect: 100-continue\r\nContent-Length: 11\r\n");
  EXPECT_EQ(client.Read().status, 413);
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
      "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
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

// ---- Clients that leave, or do not read.

TEST_F(HttpServerTest, AClientThatIsGoneIsNoticed) {
  const HttpServer server(OnAnyPort(), handler());
  for (const bool streams : {false, true}) {
    std::promise<void> gone;
    HttpReplyPtr reply;
    {
      TestClient client(server.port());
      client.Ask("POST", "/wait", "", "abc");
      reply = waiting.Next().reply;
      if (streams) reply->Begin({});
      reply->OnGone([&] { gone.set_value(); });
      EXPECT_EQ(server.open_requests(), 1);
      if (streams) {
        EXPECT_EQ(client.ReadHead().status, 200);
      }
    }
    gone.get_future().wait();
    WaitFor([&] { return server.open_requests() == 0; });
    // Of no use, and no harm.
    reply->Write("a");
    reply->Send({});
    reply->End();
  }
}

TEST_F(HttpServerTest, WhoAsksLateIsToldOfAClientThatIsGone) {
  const HttpServer server(OnAnyPort(), handler());
  HttpReplyPtr reply;
  {
    TestClient client(server.port());
    client.Ask("GET", "/wait");
    reply = waiting.Next().reply;
  }
  WaitFor([&] { return server.open_requests() == 0; });
  std::promise<void> gone;
  reply->OnGone([&] { gone.set_value(); });
  gone.get_future().wait();
}

TEST_F(HttpServerTest, NobodyIsGoneAfterTheAnswer) {
  std::atomic<bool> gone = false;
  const HttpServer server(OnAnyPort(), handler());
  {
    TestClient client(server.port());
    client.Ask("GET", "/wait");
    const HttpReplyPtr reply = waiting.Next().reply;
    reply->OnGone([&] { gone = true; });
    reply->Send({});
    EXPECT_EQ(client.Read().status, 200);
  }
  // The server has seen the end of the first connection before it takes the second request.
  EXPECT_EQ(TestClient(server.port()).Get("/a").status, 200);
  EXPECT_FALSE(gone);
}

TEST_F(HttpServerTest, AClientThatDoesNotReadItsStreamIsDropped) {
  const HttpServer server(OnAnyPort({.unread = 1 << 16}), handler());
  TestClient client(server.port());
  client.Ask("GET", "/wait");
  const HttpReplyPtr reply = waiting.Next().reply;
  std::atomic<bool> gone = false;
  reply->OnGone([&] { gone = true; });
  reply->Begin({});
  // The system holds some megabytes of its own.
  while (!gone) {
    reply->Write(std::string(1 << 15, 'x'));
    std::this_thread::yield();
  }
  EXPECT_EQ(server.open_requests(), 0);
}

TEST_F(HttpServerTest, AClientThatTakesNothingIsDroppedInTime) {
  const auto large = std::make_shared<const std::string>(std::size_t{64} << 20, 'x');
  const HttpServer server(
      OnAnyPort({.idle_time = milliseconds(100)}),
      [&](const HttpRequest&, const HttpReplyPtr& reply) { reply->Send({.shared = large}); });
  TestClient client(server.port());
  client.Ask("GET", "/");
  client.ReadHead();
  WaitFor([&] { return server.open_requests() == 0; });
  EXPECT_EQ(large.use_count(), 1);
}

// ---- Faults of the caller.

TEST_F(HttpServerTest, WhatAHandlerThrowsIsAnswered) {
  const HttpServer server(OnAnyPort(), [](const HttpRequest& request, const HttpReplyPtr& reply) {
    if (request.path == "/api") throw ApiError(404, "no such model", "model", "model_not_found");
    if (request.path == "/input") throw Error(ErrorCode::kInvalidInput, "the text is wrong");
    if (request.path == "/runtime") throw Error(ErrorCode::kRuntime, "/secret/path");
    if (request.path == "/int") throw 1;
    if (request.path == "/late") {
      reply->Send({.body = "sent"});
      throw 1;
    }
  });
  TestClient client(server.port());
  HttpAnswer answer = client.Get("/api");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.body,
            R"({"error":{"message":"no such model","type":"invalid_request_error","param":"model",)"
            R"("code":"model_not_found"}})");
  answer = client.Get("/input");
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("the text is wrong"));
  answer = client.Get("/runtime");
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.body.find("secret"), std::string::npos);
  EXPECT_EQ(client.Get("/int").status, 500);
  EXPECT_EQ(client.Get("/late").body, "sent");
  EXPECT_EQ(client.Get("/forgotten").status, 500);
}

TEST_F(HttpServerTest, AStreamThatIsAbandonedIsNotEnded) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Ask("GET", "/wait");
  {
    const HttpReplyPtr reply = waiting.Next().reply;
    reply->Begin({});
    reply->Write("half");
    EXPECT_EQ(client.ReadHead().status, 200);
    EXPECT_EQ(client.ReadChunk(), "half");
  }
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_FALSE(client.saw_last_chunk());
}

TEST_F(HttpServerTest, CallsOfItsOwnThatThrowEndNothingElse) {
  HttpOptions options = OnAnyPort();
  options.body_of = [](const HttpRequest& head) -> HttpBody {
    if (head.path == "/refused") throw ApiError(415, "not here");
    if (head.path == "/broken") throw 1;
    return {.limit = 100};
  };
  options.error_of = [](const HttpRequest& request, const ApiError& error) -> HttpResponse {
    if (error.status == 404) throw 1;
    return {.status = error.status, .body = request.path + " " + error.message};
  };
  const HttpServer server(options, [&](HttpRequest request, HttpReplyPtr reply) {
    if (request.path == "/404") throw ApiError(404, "");
    handler()(std::move(request), std::move(reply));
  });
  EXPECT_EQ(TestClient(server.port()).Get("/refused").body, "/refused not here");
  EXPECT_EQ(TestClient(server.port()).Get("/broken").status, 500);
  EXPECT_EQ(TestClient(server.port()).Get("/404").status, 500);
  {
    TestClient client(server.port());
    client.Ask("GET", "/wait");
    waiting.Next().reply->OnGone([] { throw 1; });
  }
  EXPECT_EQ(TestClient(server.port()).Get("/a").status, 200);
}

TEST_F(HttpServerTest, RepliesMayOutliveTheServer) {
  std::vector<HttpReplyPtr> replies;
  {
    const HttpServer server(OnAnyPort(), handler());
    for (int i = 0; i < 3; ++i) {
      TestClient client(server.port());
      client.Ask("GET", "/wait");
      replies.push_back(waiting.Next().reply);
      replies.back()->OnGone([] {});
      if (i == 2) replies.back()->Begin({});
    }
  }
  for (const HttpReplyPtr& reply : replies) {
    reply->Write("a");
    reply->End();
    reply->OnGone([] {});
  }
}

// ---- Crowds, and the end.

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

TEST_F(HttpServerTest, ADrainedServerEndsWhatAsksNothing) {
  HttpServer server(OnAnyPort(), handler());
  TestClient kept(server.port());
  EXPECT_EQ(kept.Get("/a").status, 200);
  TestClient busy(server.port());
  busy.Ask("GET", "/wait");
  const HttpReplyPtr reply = waiting.Next().reply;
  server.Drain();
  EXPECT_TRUE(kept.IsEnded());
  EXPECT_FALSE(TestClient(server.port()).is_connected());
  EXPECT_EQ(server.open_requests(), 1);
  reply->Send({.body = "late"});
  const HttpAnswer answer = busy.Read();
  EXPECT_EQ(answer.body, "late");
  EXPECT_EQ(answer.Header("Connection"), "close");
  WaitFor([&] { return server.open_requests() == 0; });
  server.Drain();
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
