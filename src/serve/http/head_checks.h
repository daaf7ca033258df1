// What is decided from the head of a request: that it can be read in one way only, that it comes
// from no page of another site, and that it has the key. Where that is not so, an ApiError says.
#ifndef QLORA_SERVE_HTTP_HEAD_CHECKS_H_
#define QLORA_SERVE_HTTP_HEAD_CHECKS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http_server.h"

namespace qlora {

// Names, hosts and origins in lower case.
struct HeadRules {
  std::int64_t port = 0;  // where the server listens
  std::vector<std::string> hosts = {};
  std::vector<std::string> origins = {};
  std::string api_key = {};
  std::vector<std::string> open_paths = {};
};

// Errors: InvalidInput for an origin that is none, such as "*".
HeadRules MakeHeadRules(const HttpOptions& options, std::int64_t port);

// count: of headers of that name. Errors: 400 for several, and for none in HTTP/1.1.
void CheckHosts(std::int64_t count, bool is_http_10);

// Sets path and query; of a target that begins with http://, and so names a server, also Host.
// Errors: 400.
void ReadTarget(std::string_view target, HttpRequest& head);

// Errors: 400 for a body whose end two readers could see in different places.
void CheckFraming(const HttpRequest& head, bool is_http_10);

// local_address: where the connection arrived, as a Host names it ("192.168.1.5", "[::1]"). A page
// of the web may have its own name resolve to this machine (DNS rebinding), and would then read
// every answer; the browser sends that name as Host. Errors: 403.
void CheckSite(const HttpRequest& head, const HeadRules& rules, const std::string& local_address);

// Errors: 401.
void CheckKey(const HttpRequest& head, const HeadRules& rules);

// Is answered without a key, and beside any number of connections.
bool IsOpen(const HttpRequest& head, const HeadRules& rules);

// The Origin of a page that the user allowed to read answers; "" for all others.
std::string AllowedOrigin(const HttpRequest& head, const HeadRules& rules);

// The value of a header, by its name in lower case; "" where it is absent.
std::string_view HeaderOf(const HttpRequest& head, const std::string& name);

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_HEAD_CHECKS_H_
