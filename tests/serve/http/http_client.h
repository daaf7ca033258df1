// A client of tests: bytes out, and answers as they come.
#ifndef QLORA_TESTS_SERVE_HTTP_HTTP_CLIENT_H_
#define QLORA_TESTS_SERVE_HTTP_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace qlora {

struct HttpAnswer {
  int status = 0;  // 0: the connection ended before an answer
  std::string head = {};
  std::string body = {};

  // The value of a header; "" where it is absent.
  std::string Header(std::string_view name) const {
    const std::string line = "\r\n" + LowerCase(name) + ":";
    const std::size_t at = LowerCase(head).find(line);
    if (at == std::string::npos) return "";
    const std::size_t begin = at + line.size();
    return std::string(Trim(head.substr(begin, head.find("\r\n", begin) - begin)));
  }
};

class TestClient {
 public:
  explicit TestClient(std::int64_t port) : port_(port), fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Close();
    // A test that would wait for ever fails.
    const timeval patience = {.tv_sec = 120, .tv_usec = 0};
    if (fd_ >= 0) setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~TestClient() { Close(); }
  TestClient(TestClient&& other) noexcept
      : port_(other.port_),
        fd_(std::exchange(other.fd_, -1)),
        bytes_(std::move(other.bytes_)),
        errno_(other.errno_) {}
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool is_connected() const { return fd_ >= 0; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void CloseSending() const { shutdown(fd_, SHUT_WR); }

  // False when the server has ended the connection.
  bool Send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // A request of this server's own page, with lines that end in \r\n.
  bool Ask(std::string_view method, std::string_view path, std::string_view headers = "",
           std::string_view body = "") const {
    std::string text(method);
    text.append(" ").append(path).append(" HTTP/1.1\r\nHost: localhost:");
    text.append(std::to_string(port_)).append("\r\n").append(headers);
    if (!body.empty()) text.append("Content-Length: " + std::to_string(body.size()) + "\r\n");
    return Send(text.append("\r\n").append(body));
  }

  // The next answer; its body whole, chunks joined. `is_head`: without a body.
  HttpAnswer Read(bool is_head = false) {
    HttpAnswer answer = ReadHead();
    if (answer.status == 0 || is_head || answer.status == 100 || answer.status == 204) {
      return answer;
    }
    const std::string length = answer.Header("Content-Length");
    if (!length.empty()) {
      answer.body = Take(std::stoul(length));
    } else if (answer.Header("Transfer-Encoding") == "chunked") {
      for (std::string chunk = "x"; !chunk.empty(); answer.body += chunk) chunk = ReadChunk();
    } else {
      while (Receive()) {
      }
      answer.body = std::exchange(bytes_, "");
    }
    return answer;
  }
  HttpAnswer ReadHead() {
    while (bytes_.find("\r\n\r\n") == std::string::npos) {
      if (!Receive()) return {};
    }
    HttpAnswer answer{.head = Take(bytes_.find("\r\n\r\n") + 4)};
    EXPECT_TRUE(answer.head.starts_with("HTTP/1.1 ")) << answer.head;
    answer.status = std::stoi(answer.head.substr(9));
    return answer;
  }
  // "" for the last one, and for the end of the connection.
  std::string ReadChunk() {
    while (bytes_.find("\r\n") == std::string::npos) {
      if (!Receive()) return "";
    }
    const std::string size = Take(bytes_.find("\r\n") + 2);
    const std::string chunk = Take(std::stoul(size, nullptr, 16) + 2);
    saw_last_chunk_ = chunk == "\r\n";
    return chunk.substr(0, std::max<std::size_t>(chunk.size(), 2) - 2);
  }
  bool saw_last_chunk() const { return saw_last_chunk_; }
  HttpAnswer Get(std::string_view path, std::string_view headers = "") {
    Ask("GET", path, headers);
    return Read();
  }

  // Bytes that have come since, at most a few thousand.
  std::size_t TakeSome() {
    Receive();
    return std::exchange(bytes_, "").size();
  }

  // True when the server ends the connection without another byte, for which it waits.
  bool IsEnded() { return bytes_.empty() && !Receive() && errno_ != EAGAIN; }

 private:
  bool Receive() {
    char bytes[1 << 14];
    const ssize_t count = recv(fd_, bytes, sizeof(bytes), 0);
    errno_ = count < 0 ? errno : 0;
    EXPECT_NE(errno_, EAGAIN) << "the server says nothing";
    if (count > 0) bytes_.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  }
  std::string Take(std::size_t count) {
    while (bytes_.size() < count && Receive()) {
    }
    std::string taken = bytes_.substr(0, count);
    bytes_.erase(0, taken.size());
    return taken;
  }

  std::int64_t port_;
  int fd_;
  std::string bytes_ = {};
  int errno_ = 0;
  bool saw_last_chunk_ = false;
};

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_HTTP_HTTP_CLIENT_H_
