// What is asked and answered.
#include "serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "serve/api_error.h"
#include "serve/http/http_server_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

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

TEST_F(HttpServerTest, EmptyLinesBeforeARequestAreNoPartOfIt) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Send(
      "\r\n\r\nPOST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
      "\r\nGET /b HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n");
  EXPECT_EQ(client.Read().body, "POST /a  abc");
  EXPECT_EQ(client.Read().body, "GET /b  ");
  const std::string request = "\r\nGET /c HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const char c : request) client.Send({&c, 1});
  EXPECT_EQ(client.Read().body, "GET /c  ");
}

TEST_F(HttpServerTest, WhoHasAskedMayCloseTheSideThatSends) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Ask("GET", "/a");
  client.CloseSending();
  EXPECT_EQ(client.Read().body, "GET /a  ");
  EXPECT_TRUE(client.IsEnded());
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

}  // namespace
}  // namespace qlora
