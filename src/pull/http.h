// HTTP requests to a hub: GET alone, redirects that never take the token to another server, and no
// silence without end.
#ifndef QLORA_PULL_HTTP_H_
#define QLORA_PULL_HTTP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "pull/curl_library.h"
#include "qlora/error.h"

namespace qlora {

// A failure that may pass: the request is worth another try.
class PassingError : public Error {
 public:
  explicit PassingError(const std::string& message, double wait_seconds = 0)
      : Error(ErrorCode::kRuntime, message), wait_seconds_(wait_seconds) {}
  // The wait that the server asked for; 0: none.
  double wait_seconds() const { return wait_seconds_; }

 private:
  double wait_seconds_;
};

struct HttpClientOptions {
  std::string endpoint;  // only its scheme, host and port receive the token
  std::string token;     // empty: none
  std::string user_agent;
  std::int64_t idle_seconds = 30;  // without a byte, after which a request fails
  std::function<void()> check;     // called several times a second; throws to end the request
};

struct HttpHead {
  int status = 0;
  std::string host;                            // that answered
  std::map<std::string, std::string> headers;  // names in lower case

  std::string Find(const std::string& name) const;  // "" when it is missing
};

struct HttpGetRequest {
  std::string url;
  std::int64_t begin = 0;   // bytes of the file that are there already
  bool compressed = false;  // the server may compress the answer
  // Called for every answer on the way, redirects included.
  std::function<void(const HttpHead&)> on_head = [](const HttpHead&) {};
  // Called for a body of status 200 or 206, once with an empty view before its first byte.
  std::function<void(const HttpHead&, std::string_view)> on_body = {};
};

struct HttpGetReply {
  HttpHead head;
  std::string error_body;  // the first bytes, of another status than 200 and 206
};

// Keeps its connections. One thread at a time.
class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Follows redirects. Errors: PassingError when the connection failed or broke; Runtime for a
  // redirect that is refused; whatever the functions of the request throw.
  HttpGetReply Get(const HttpGetRequest& request);

 private:
  struct Transfer;

  HttpGetReply GetOnce(const HttpGetRequest& request, const std::string& url);
  void SetOptions(CURL* handle, Transfer& transfer, const std::string& url);

  const CurlLibrary& curl_;
  HttpClientOptions options_;
  std::string endpoint_origin_;
  CURLSH* connections_;
};

// "https://host:443" of a URL. Errors: Runtime for text that is not an http or https URL.
std::string OriginOf(const std::string& url);
// Errors: Runtime for a redirect from https to http.
void CheckRedirect(const std::string& from, const std::string& to);
// `location` as seen from `base`, which may be relative. Errors: Runtime.
std::string ResolveUrl(const std::string& base, const std::string& location);

// One segment of a path: everything but letters, digits and "-._~" as %XX.
std::string EncodeSegment(std::string_view text);
// A URL for messages: the name and the password that it may hold become ***.
std::string WithoutPassword(std::string_view url);
// Text of a server for a terminal: without control characters, and not too long.
std::string Abridged(std::string_view text);

}  // namespace qlora

#endif  // QLORA_PULL_HTTP_H_
