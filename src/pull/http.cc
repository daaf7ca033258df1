#include "pull/http.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/environment.h"
#include "base/printable.h"
#include "base/text.h"

namespace qlora {
namespace {

constexpr int kMaxRedirects = 5;
constexpr std::size_t kMaxErrorBody = std::size_t{64} << 10;  // a message, not a download
constexpr std::chrono::seconds kMaxErrorTime(5);
constexpr std::size_t kMaxShown = 300;  // characters of a server's text
constexpr long kConnectSeconds = 15;
constexpr long kReceiveBytes = 512 << 10;

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// 200: the whole file; 206: a range of it. Only these bodies reach the caller.
bool IsBody(int status) { return status == 200 || status == 206; }

// A parsed URL, and its parts as text. The library's own parser is used: the host that it connects
// to and the host that is checked here must not be two readings of one URL.
class UrlParts {
 public:
  explicit UrlParts(const std::string& url)
      : curl_(LoadCurl()), url_(curl_.url(), curl_.url_cleanup) {
    if (url_ == nullptr) throw std::bad_alloc();
    Set(url);
  }

  // A relative URL is resolved against the one that is set.
  void Set(const std::string& url) {
    if (curl_.url_set(url_.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) {
      ThrowRuntime("'{}' is not an http or https URL", Abridged(WithoutPassword(url)));
    }
    const std::string scheme = LowerCase(Part(CURLUPART_SCHEME));
    if (scheme != "http" && scheme != "https") {
      ThrowRuntime("'{}' is not an http or https URL: its protocol is refused",
                   Abridged(WithoutPassword(url)));
    }
    // Hosts appear in messages, which must not steer a terminal.
    const std::string host = Part(CURLUPART_HOST);
    if (Printable(host) != host) {
      ThrowRuntime("'{}' is not an http or https URL: its host has control characters",
                   Abridged(WithoutPassword(url)));
    }
  }
  std::string Part(CURLUPart part) const {
    char* text = nullptr;
    const unsigned flags = part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0;
    if (curl_.url_get(url_.get(), part, &text, flags) != CURLUE_OK) return "";
    std::string copy = text;
    curl_.free(text);
    return copy;
  }

 private:
  const CurlLibrary& curl_;
  std::unique_ptr<CURLU, decltype(CurlLibrary::url_cleanup)> url_;
};

std::string SchemeOf(const std::string& url) {
  return LowerCase(UrlParts(url).Part(CURLUPART_SCHEME));
}

// The bundle of certificates that curl, Python and OpenSSL would take from the environment; the
// library itself reads none of these variables.
std::string FirstSet(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = Environment(name); !value.empty()) return value;
  }
  return "";
}

}  // namespace

std::string HttpHead::Find(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

// One request and its answer.
//
//   header lines -> Header    "HTTP/1.1 206 ..." begins the headers of an answer
//   body         -> Begin     once, so that the caller sees the head before the first byte
//                -> Body
//   no news      -> check     so that Ctrl+C ends a request that receives nothing
//
// The state of the callbacks of the library. No exception may leave a callback: it is kept and
// thrown when the library has returned.
struct HttpClient::Transfer {
  const HttpGetRequest& request;
  const std::function<void()>& check;
  HttpGetReply reply = {};
  bool began = false;
  bool enough = false;  // of the body of an error; the transfer ends
  std::optional<std::chrono::steady_clock::time_point> error_since = {};
  std::exception_ptr error = {};
  curl_slist* headers = nullptr;

  template <typename Body>
  bool Guard(const Body& body) {
    try {
      body();
      return true;
    } catch (...) {
      error = std::current_exception();
      return false;
    }
  }

  void Begin() {
    if (std::exchange(began, true)) return;
    if (IsBody(reply.head.status)) request.on_body(reply.head, {});
  }
  void Header(std::string_view line) {
    if (line.starts_with("HTTP/")) {  // of an answer; an interim one may have come before
      const std::size_t blank = line.find(' ');
      reply.head.headers.clear();
      reply.head.status = blank == std::string_view::npos
                              ? 0
                              : std::atoi(std::string(line.substr(blank + 1, 3)).c_str());
      return;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string name = LowerCase(Trim(line.substr(0, colon)));
    reply.head.headers[name] = Trim(line.substr(colon + 1));
  }
  void Body(std::string_view bytes) {
    if (IsBody(reply.head.status)) {
      Begin();
      request.on_body(reply.head, bytes);
    } else {
      std::string& kept = reply.error_body;
      kept.append(bytes.substr(0, kMaxErrorBody - kept.size()));
      enough = kept.size() == kMaxErrorBody;
    }
  }
  // A server that sends an error drop by drop ends after some seconds, too.
  bool TakesTooLong() {
    if (reply.head.status == 0 || reply.head.status / 100 == 1 || IsBody(reply.head.status)) {
      return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!error_since) error_since = now;
    enough = enough || now - *error_since > kMaxErrorTime;
    return enough;
  }

  static std::size_t OnHeader(char* data, std::size_t, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    return transfer.Guard([&] { transfer.Header({data, count}); }) ? count : 0;
  }
  static std::size_t OnBody(char* data, std::size_t, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    return transfer.Guard([&] { transfer.Body({data, count}); }) && !transfer.enough ? count : 0;
  }
  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& transfer = *static_cast<Transfer*>(self);
    return transfer.Guard([&] { transfer.check(); }) && !transfer.TakesTooLong() ? 0 : 1;
  }
};

HttpClient::HttpClient(HttpClientOptions options)
    : curl_(LoadCurl()),
      options_(std::move(options)),
      endpoint_origin_(OriginOf(options_.endpoint)),
      connections_(curl_.share_init()) {
  if (connections_ == nullptr) throw std::bad_alloc();
  curl_.share_setopt(connections_, CURLSHOPT_SHARE, CURL_LOCK_DATA_CONNECT);
}

HttpClient::~HttpClient() { curl_.share_cleanup(connections_); }

// Redirects are followed here and not by the library, so that each hop is checked: the token goes
// to the endpoint alone, and no hop leads from https to http.
HttpGetReply HttpClient::Get(const HttpGetRequest& request) {
  std::string url = request.url;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    HttpGetReply reply = GetOnce(request, url);
    request.on_head(reply.head);
    const std::string location = reply.head.Find("location");
    if (!IsRedirect(reply.head.status) || location.empty()) return reply;
    const std::string next = ResolveUrl(url, location);
    CheckRedirect(url, next);
    url = next;
  }
  ThrowRuntime("{}: more than {} redirects", OriginOf(request.url), kMaxRedirects);
}

// A handle for each request, while connections are kept: libcurl 7.83 to 7.88 keep a pointer to the
// last header of a handle's answer when they free it, and follow it where the next answer begins
// with a header that continues the one before.
HttpGetReply HttpClient::GetOnce(const HttpGetRequest& request, const std::string& url) {
  Transfer transfer{request, options_.check};
  transfer.reply.head.host = UrlParts(url).Part(CURLUPART_HOST);
  const std::unique_ptr<CURL, decltype(curl_.easy_cleanup)> handle(curl_.easy_init(),
                                                                   curl_.easy_cleanup);
  if (handle == nullptr) throw std::bad_alloc();
  SetOptions(handle.get(), transfer, url);
  const CURLcode code = curl_.easy_perform(handle.get());
  curl_.slist_free_all(transfer.headers);
  if (transfer.error) std::rethrow_exception(transfer.error);
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    ThrowRuntime("{}: {} (SSL_CERT_FILE names a file of certificates that are trusted)",
                 transfer.reply.head.host, curl_.easy_strerror(code));
  }
  // What the library says of a line above its limit of 100 KiB, too.
  if (code == CURLE_OUT_OF_MEMORY) {
    ThrowRuntime("{}: a line of the answer's header is too long, or memory ran out",
                 transfer.reply.head.host);
  }
  if (code != CURLE_OK && !transfer.enough) {
    const bool is_offline = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT;
    throw PassingError(fmt::format("{}: {}{}", transfer.reply.head.host, curl_.easy_strerror(code),
                                   is_offline ? "; is this machine online?" : ""));
  }
  transfer.Begin();
  return std::move(transfer.reply);
}

void HttpClient::SetOptions(CURL* handle, Transfer& transfer, const std::string& url) {
  const auto set = [this, handle](CURLoption option, auto value) {
    curl_.easy_setopt(handle, option, value);
  };
  const auto add_header = [&](const std::string& line) {
    transfer.headers = curl_.slist_append(transfer.headers, line.c_str());
  };
  set(CURLOPT_SHARE, connections_);
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  // Less than a byte a second for idle_seconds ends a request; a slow one may take for ever.
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.idle_seconds));
  set(CURLOPT_BUFFERSIZE, kReceiveBytes);
  set(CURLOPT_USERAGENT, options_.user_agent.c_str());
  set(CURLOPT_HEADERFUNCTION, &Transfer::OnHeader);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&transfer));
  set(CURLOPT_WRITEFUNCTION, &Transfer::OnBody);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &Transfer::OnProgress);
  set(CURLOPT_XFERINFODATA, static_cast<void*>(&transfer));
  const std::string bundle = FirstSet({"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"});
  const std::string folder = FirstSet({"SSL_CERT_DIR"});
  if (!bundle.empty()) set(CURLOPT_CAINFO, bundle.c_str());
  if (!folder.empty()) set(CURLOPT_CAPATH, folder.c_str());
  if (transfer.request.compressed) {
    set(CURLOPT_ACCEPT_ENCODING, "");  // everything that the library can decompress
  } else {
    add_header("Accept-Encoding: identity");  // a range counts the bytes of the file itself
  }
  if (transfer.request.begin > 0) {
    add_header(fmt::format("Range: bytes={}-", transfer.request.begin));
  }
  if (!options_.token.empty() && OriginOf(url) == endpoint_origin_) {
    add_header("Authorization: Bearer " + options_.token);
  }
  set(CURLOPT_HTTPHEADER, transfer.headers);
}

// With the port even where the URL leaves it out, so that equal servers have equal texts.
std::string OriginOf(const std::string& url) {
  const UrlParts parts(url);
  return fmt::format("{}://{}:{}", parts.Part(CURLUPART_SCHEME), parts.Part(CURLUPART_HOST),
                     parts.Part(CURLUPART_PORT));
}

// Of the parsed schemes, because an endpoint may be written HTTPS://hub.
void CheckRedirect(const std::string& from, const std::string& to) {
  if (SchemeOf(from) == "https" && SchemeOf(to) != "https") {
    ThrowRuntime("{} redirects from https to http, which is refused",
                 UrlParts(from).Part(CURLUPART_HOST));
  }
}

std::string ResolveUrl(const std::string& base, const std::string& location) {
  UrlParts parts(base);
  parts.Set(location);
  return parts.Part(CURLUPART_URL);
}

// RFC 3986: the unreserved characters stay.
std::string EncodeSegment(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::string_view("-._~").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

// Whatever stands before the last @ of the place is hidden, also in text that is no URL.
std::string WithoutPassword(std::string_view url) {
  const std::size_t mark = url.find("://");
  const std::size_t begin = mark == std::string_view::npos ? 0 : mark + 3;
  const std::size_t at = url.rfind('@');
  if (at == std::string_view::npos || at < begin) return std::string(url);
  return fmt::format("{}***{}", url.substr(0, begin), url.substr(at));
}

// Control characters could move the cursor of a terminal or hide a part of the message.
std::string Abridged(std::string_view text) {
  std::string out = Printable(text.substr(0, kMaxShown));
  std::replace(out.begin(), out.end(), '\n', ' ');
  return text.size() > kMaxShown ? out + " ..." : out;
}

}  // namespace qlora
