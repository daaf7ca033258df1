// Who may ask: names of this server, sites, keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/test_util.h"
#include "serve/http/connection.h"
#include "serve/http/http_server_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST(HostOf, IsWhatAHostNames) {
  const auto host = [](const char* address) {
    return HostOf(boost::asio::ip::make_address(address));
  };
  EXPECT_EQ(host("192.168.1.5"), "192.168.1.5");
  EXPECT_EQ(host("::ffff:192.168.1.5"), "192.168.1.5");
  EXPECT_EQ(host("2001:db8::1"), "[2001:db8::1]");
  EXPECT_EQ(host("fe80::1%7"), "[fe80::1]");
}

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
  EXPECT_EQ(status(""), 400);
  EXPECT_EQ(status("Host: localhost\r\nHost: evil.example\r\n"), 400);
}

TEST_F(HttpServerTest, AnAddressWithAHostStandsForHost) {
  const HttpServer server(OnAnyPort(), handler());
  const auto ask = [&](const std::string& target, const std::string& host) {
    TestClient client(server.port());
    client.Send("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.Read();
  };
  EXPECT_EQ(ask("http://localhost:80/a?x=1", "evil.example").body, "GET /a x=1; ");
  EXPECT_EQ(ask("HTTP://LOCALHOST", "localhost").body, "GET /  ");
  EXPECT_EQ(ask("http://localhost?x=1", "localhost").body, "GET / x=1; ");
  for (const char* target : {"http://evil.example/", "http://localhost@evil.example/", "http:///",
                             "http://localhost.evil.example", "https://evil.example?x"}) {
    EXPECT_EQ(ask(target, "localhost").status, 403) << target;
  }
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
  EXPECT_EQ(status("x-api-key: secret\r\n"), 200);
  EXPECT_EQ(status("x-api-key: secret\r\nAuthorization: Bearer other\r\n"), 200);
  EXPECT_EQ(status("", "/health"), 200);
  EXPECT_EQ(status("", "/"), 200);
  for (const char* headers :
       {"", "Authorization: Bearer\r\n", "Authorization: Bearer secre\r\n",
        "Authorization: Bearer secret1\r\n", "Authorization: secret\r\n",
        "Authorization: Basic secret\r\n", "x-api-key: secre\r\n", "x-api-key: \r\n",
        "Authorization: Bearer secret\r\nAuthorization: Bearer x\r\n"}) {
    EXPECT_EQ(status(headers), 401) << headers;
  }
  EXPECT_EQ(status("", "/v1/messages"), 401);
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

}  // namespace
}  // namespace qlora
