// Answers that come with time, and clients that leave.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "serve/http/event_stream.h"
#include "serve/http/http_server_fixture.h"

namespace qlora {
namespace {

using std::chrono::milliseconds;

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

TEST_F(HttpServerTest, AStreamLeavesPieceByPiece) {
  const HttpServer server(OnAnyPort(), handler());
  TestClient client(server.port());
  client.Ask("GET", "/wait");
  EventStream stream(waiting.Next().reply, {}, {{"X-Extra", "a\r\nX-Evil: 1"}});
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

// Who reads such a piece takes it in its time, where it is counted elsewhere.
TEST_F(HttpServerTest, APieceThatIsCountedMayBeLarge) {
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  const HttpServer server(OnAnyPort({.unread = 1 << 16}), handler());
  TestClient client(server.port());
  client.Ask("GET", "/wait");
  const auto held = std::make_shared<int>();
  HttpReplyPtr reply = waiting.Next().reply;
  reply->Begin({.room = {held, kPiece}});
  reply->Write(std::string(kPiece, 'x'));
  for (int i = 0; i < 3; ++i) reply->Write("y");
  reply->End();
  EXPECT_GT(held.use_count(), 1) << "until it is written";
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.body.size(), kPiece + 3);
  EXPECT_TRUE(answer.body.ends_with("xyyy"));
  WaitFor([&] { return held.use_count() == 1; });
}

// As at the end of a response, which has its text several times.
TEST_F(HttpServerTest, WhoReadsTakesManyPiecesAtOnce) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  const HttpServer server(OnAnyPort({.unread = 4 * kPiece}), handler());
  TestClient client(server.port());
  client.Ask("GET", "/wait");
  const HttpReplyPtr reply = waiting.Next().reply;
  reply->Begin({});
  for (int i = 0; i < 4; ++i) reply->Write(std::string(kPiece, 'x'));
  reply->End();
  EXPECT_EQ(client.Read().body.size(), 4 * kPiece);
}

// Of all who do not read, the one with the most is dropped for others.
TEST_F(HttpServerTest, WhatLiesForAllClientsIsBounded) {
  const HttpServer server(OnAnyPort({.unread = 1 << 20}), handler());
  TestClient large(server.port());
  large.Ask("GET", "/wait");
  // Much more than the system holds of its own.
  waiting.Next().reply->Send({.body = std::string(std::size_t{64} << 20, 'x')});
  EXPECT_EQ(large.ReadHead().status, 200) << "one answer alone may be larger";
  EXPECT_EQ(server.open_requests(), 1);
  EXPECT_EQ(TestClient(server.port()).Get("/a").status, 200);
  WaitFor([&] { return server.open_requests() == 0; });
}

TEST_F(HttpServerTest, AClientThatTakesLittleIsDroppedInTime) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const auto text = std::make_shared<const std::string>(kBytes, 'x');
  const HttpServer server(
      OnAnyPort({.answer_time = milliseconds(200)}),
      [&](const HttpRequest&, const HttpReplyPtr& reply) { reply->Send({.shared = text}); });
  TestClient client(server.port());
  client.Ask("GET", "/");
  std::size_t taken = client.ReadHead().body.size();
  while (server.open_requests() > 0) {
    taken += client.TakeSome();
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_LT(taken, kBytes / 2);
}

TEST_F(HttpServerTest, AClientThatTakesNothingIsDroppedInTime) {
  const auto large = std::make_shared<const std::string>(std::size_t{64} << 20, 'x');
  const HttpServer server(
      OnAnyPort({.answer_time = milliseconds(100)}),
      [&](const HttpRequest&, const HttpReplyPtr& reply) { reply->Send({.shared = large}); });
  TestClient client(server.port());
  client.Ask("GET", "/");
  client.ReadHead();
  WaitFor([&] { return server.open_requests() == 0; });
  // The connection goes soon after its request.
  WaitFor([&] { return large.use_count() == 1; });
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

}  // namespace
}  // namespace qlora
