// Fuzzes all input from a network: requests to a server, answers of a hub, and what ranks say to
// each other. The first byte chooses. All connections stay on this machine: every request of the
// client goes to the server here, which poses as its proxy.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "base/printable.h"
#include "dist/agreement.h"
#include "dist/lying_rank.h"
#include "dist/tcp_hello.h"
#include "dist/together.h"
#include "fuzz_util.h"
#include "pull/hub_api.h"
#include "serve/http_server.h"

namespace qlora {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

sockaddr_in LocalAddress(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

// Until the other side closes. A reset is an end, too.
std::string ReceiveAll(int fd, std::string_view end = {}) {
  std::string text;
  char bytes[4096];
  while (end.empty() || text.find(end) == std::string::npos) {
    const ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
    if (count <= 0) break;
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

void SendAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// Closes with a reset, so that a million connections leave no port waiting.
void Reset(int fd) {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close(fd);
}

// ---- Requests to a server.

void CheckRequest(std::string_view request) {
  HttpOptions options;
  options.port = 0;
  static const HttpServer server(options, [](const HttpRequest& head, const HttpReplyPtr& reply) {
    Require(head.path.find_first_of("\r\n") == std::string::npos);
    reply->Send({.body = head.path + head.body});
  });
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = LocalAddress(static_cast<int>(server.port()));
  // The machine may have no port left after many connections, which is no finding.
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return;
  }
  // In two pieces, of which the first may end anywhere.
  const std::size_t first =
      request.empty() ? 0 : request.size() * request[0] / 256 % request.size();
  SendAll(fd, request.substr(0, first));
  SendAll(fd, request.substr(first));
  shutdown(fd, SHUT_WR);
  const std::string answer = ReceiveAll(fd);
  Reset(fd);
  if (answer.empty()) return;
  Require(answer.starts_with("HTTP/1.1 "));
  Require(answer.find("\r\n\r\n") != std::string::npos);
}

// ---- Answers of a hub.

// Sends the answers one after the other, one for each connection, and after the last one nothing.
class FakeHub {
 public:
  FakeHub() : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = LocalAddress(0);
    socklen_t size = sizeof(address);
    Require(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    Require(listen(listener_, 64) == 0);
    Require(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    for (const char* name : {"http_proxy", "https_proxy", "all_proxy"}) {
      setenv(name, url_.c_str(), 1);
    }
    for (const char* name : {"no_proxy", "NO_PROXY"}) unsetenv(name);
    std::thread([this] { Serve(); }).detach();
  }
  const std::string& url() const { return url_; }
  void Set(std::string_view answers) {
    const std::lock_guard lock(mutex_);
    answers_ = answers;
    rest_ = answers_;
  }

 private:
  void Serve() {
    while (true) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) continue;
      const std::string request = ReceiveAll(fd, "\r\n\r\n");
      // The token goes to the hub alone, wherever an answer sends the client.
      Require(request.find("secret") == std::string::npos ||
              request.starts_with("GET " + url_ + "/"));
      {
        const std::lock_guard lock(mutex_);
        SendAll(fd, TakeText(rest_));
      }
      // The client may keep its side open for a request that never comes.
      close(fd);
    }
  }

  int listener_;
  std::string url_;
  std::mutex mutex_;
  std::string answers_;
  std::string_view rest_;
};

// Runs body; a server may also be refused with a Runtime error. No message may steer a terminal.
template <typename Body>
void AttackHub(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string text = error.what();
    Require(error.code() == ErrorCode::kInvalidInput || error.code() == ErrorCode::kRuntime);
    Require(!text.empty() && Printable(text) == text);
  }
}

void CheckHub(std::string_view answers) {
  // An answer that has the word may send the client to an address that has it.
  if (answers.find("secret") != std::string_view::npos) return;
  static FakeHub& hub = *new FakeHub;  // its thread never ends
  static const HubSettings settings{.endpoint = hub.url(), .token = "secret", .token_source = "x"};
  static HttpClient client({.endpoint = hub.url(),
                            .token = "secret",
                            .user_agent = "fuzz",
                            .idle_seconds = 1,
                            .check = [] {}});
  static const RetryOptions retry{.tries = 1, .check = [] {}, .note = [](const std::string&) {}};
  hub.Set(answers);
  HubApi api(settings, client, retry, {.name = "org/name"});
  AttackHub([&] { Require(api.Commit().size() == 40); });
  AttackHub([&] {
    for (const HubFile& file : api.List(std::string(40, 'c'))) {
      Require(IsSafePath(file.path) && file.size >= 0);
      const auto path = std::filesystem::path("/root") / file.path;
      Require(path.lexically_normal().string().starts_with("/root/"));
      api.FileUrl("c", file.path);
    }
  });
}

// Parts of answers, without a connection.
void CheckParts(std::string_view text) {
  try {
    ParseListing(text);
  } catch (const Error&) {  // HubApi makes the message fit for a terminal
  }
  const std::string next = NextPage(text);
  AttackHub([&] { OriginOf(ResolveUrl("https://hub.co/api", next)); });
  HttpHead head;
  head.headers["retry-after"] = text;
  Require(WaitOf(head) >= 0);
  head.headers["ratelimit"] = text;
  Require(WaitOf(head) >= 0);
}

// ---- Ranks over TCP.

// The beginning of the input as a T; moves `input` behind it.
template <typename T>
T Take(std::string_view& input) {
  T value;
  std::memset(static_cast<void*>(&value), 0, sizeof(value));
  std::memcpy(static_cast<void*>(&value), input.data(), std::min(sizeof(value), input.size()));
  input.remove_prefix(std::min(sizeof(value), input.size()));
  return value;
}

// Any error is one that tells; everything else ends the run.
template <typename Body>
void AttackRank(const Body& body) {
  try {
    body();
  } catch (const Error&) {
  }
}

void CheckRanks(std::string_view input) {
  const TcpAddress at{"first", 29500};
  const Hello hello = MakeHello({4, 2}, 40000);
  std::string_view rest = input;
  const auto answer = Take<Answer>(rest);
  AttackRank([&] {
    CheckAnswer(answer, "", hello, at, 0);
    std::abort();  // nobody guesses a proof
  });
  // The same with the right proof.
  AttackRank([&] {
    CheckAnswer(MakeAnswer(answer.id, "", hello, answer.refusal), "", hello, at, 0);
    Require(answer.id.size == 4 && answer.id.rank == 0 && answer.refusal == Refusal::kNone);
  });
  Require(!IsProof(answer.proof, "key", hello, answer));
  AttackRank([&] {
    const TcpAddress place = AddressOf(Take<Place>(rest), 1, at);
    Require(place.host.size() < 64 && place.port > 0 && place.port < 65536);
  });
  for (const int rank : {0, 1}) {
    LyingRank ranks{std::string(input), rank};
    AttackRank([&] { Require(GatherTexts(ranks, "mine").size() == 2); });
    AttackRank([&] { BroadcastText(ranks, "text"); });
    AttackRank([&] { AgreeOn(ranks, {{"seed", "1"}, {"optim", "adamw"}}); });
    AttackRank([&] { Together(ranks, [] {}); });
  }
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr void (*kReaders[])(std::string_view) = {CheckRequest, CheckHub, CheckParts, CheckRanks};
  kReaders[data[0] % 4](input);
  return 0;
}
