#include "serve/http/head_checks.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/check.h"
#include "base/text.h"
#include "serve/api_error.h"

namespace qlora {
namespace {

bool IsDigits(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); });
}

bool Has(const std::vector<std::string>& list, std::string_view text) {
  return std::ranges::find(list, text) != list.end();
}

// "localhost:8080" in two parts. The host is "" for a text that is no authority.
struct Authority {
  std::string_view host;
  std::string_view port;
};
Authority SplitAuthority(std::string_view text) {
  const bool is_ipv6 = text.starts_with('[');
  const std::size_t bracket = is_ipv6 ? text.find(']') : 0;
  if (bracket == std::string_view::npos) return {};
  const std::size_t end = is_ipv6 ? bracket + 1 : std::min(text.find(':'), text.size());
  const std::string_view rest = text.substr(end);
  if (rest.empty()) return {text, {}};
  if (rest[0] != ':' || !IsDigits(rest.substr(1))) return {};
  return {text.substr(0, end), rest.substr(1)};
}

bool IsOurHost(std::string_view host, const HeadRules& rules, const std::string& local_address) {
  return !host.empty() && (Has(rules.hosts, host) || host == local_address);
}

// True for pages of this server: an allowed host, with the port where it listens, or where the
// browser says to have sent this request (behind a proxy). Another port of this machine is another
// site.
bool IsOwnOrigin(std::string_view origin, std::string_view host, const HeadRules& rules,
                 const std::string& local_address) {
  const std::size_t end = origin.find("://");
  if (end == std::string_view::npos) return false;
  const std::string_view scheme = origin.substr(0, end);
  if (scheme != "http" && scheme != "https") return false;
  const std::string_view authority = origin.substr(end + 3);
  const Authority parts = SplitAuthority(authority);
  if (!IsOurHost(parts.host, rules, local_address)) return false;
  const std::string_view default_port = scheme == "http" ? "80" : "443";
  return authority == host ||
         (parts.port.empty() ? default_port : parts.port) == std::to_string(rules.port);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Nothing for a text with a % that two hexadecimal digits do not follow.
std::optional<std::string> PercentDecoded(std::string_view text, bool plus_is_space) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return std::nullopt;
      out += static_cast<char>(16 * high + low);
      i += 2;
    } else {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::string DecodedOrRefused(std::string_view text, bool plus_is_space) {
  const std::optional<std::string> decoded = PercentDecoded(text, plus_is_space);
  const bool has_control = decoded && std::ranges::any_of(*decoded, [](unsigned char c) {
                             return c < 0x20 || c == 0x7F;
                           });
  if (!decoded || has_control) {
    throw ApiError(400, "the address of the request is not one: encode it with % and two digits");
  }
  return *decoded;
}

// Takes as long for any `given` of one length, whatever of it is right.
bool EqualsSecret(std::string_view given, std::string_view secret) {
  volatile unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    const char c = i < given.size() ? given[i] : '\0';
    difference = difference | static_cast<unsigned char>(c ^ secret[i]);
  }
  return difference == 0;
}

}  // namespace

HeadRules MakeHeadRules(const HttpOptions& options, std::int64_t port) {
  HeadRules rules{.port = port,
                  .hosts = {"localhost", "127.0.0.1", "[::1]"},
                  .api_key = options.api_key,
                  .open_paths = options.open_paths};
  for (const std::string& host : options.allow_hosts) rules.hosts.push_back(LowerCase(host));
  for (const std::string& origin : options.allow_origins) {
    const std::string lower = LowerCase(origin);
    const std::size_t end = lower.find("://");
    if (end == std::string::npos || SplitAuthority(lower.substr(end + 3)).host.empty() ||
        lower.find_first_of("/*, \t", end + 3) != std::string::npos) {
      ThrowInvalidInput(
          "allow_origin: expected the address of a site, such as http://localhost:3000, found {}",
          origin);
    }
    rules.origins.push_back(lower);
  }
  return rules;
}

void CheckHosts(std::int64_t count, bool is_http_10) {
  if (count > 1) throw ApiError(400, "Host: expected one, found several");
  if (count == 0 && !is_http_10) throw ApiError(400, "Host: is missing; HTTP/1.1 needs it");
}

void ReadTarget(std::string_view target, HttpRequest& head) {
  if (head.method == "OPTIONS" && target == "*") {
    head.path = "*";
    return;
  }
  std::string rooted;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (LowerCase(target.substr(0, scheme.size())) != scheme) continue;
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    head.headers["host"] = target.substr(0, end);
    target.remove_prefix(end);
    if (!target.starts_with('/')) target = rooted.assign("/").append(target);
    break;
  }
  if (!target.starts_with('/')) {
    throw ApiError(400, "the address of the request does not begin with /");
  }
  const std::size_t question = std::min(target.find('?'), target.size());
  head.path = DecodedOrRefused(target.substr(0, question), false);
  const std::string_view query = target.substr(std::min(question + 1, target.size()));
  for (const std::string_view field : Words(query, '&')) {
    const std::size_t equals = std::min(field.find('='), field.size());
    head.query[DecodedOrRefused(field.substr(0, equals), true)] =
        DecodedOrRefused(field.substr(std::min(equals + 1, field.size())), true);
  }
}

void CheckFraming(const HttpRequest& head, bool is_http_10) {
  const bool has_length = head.headers.contains("content-length");
  const bool has_encoding = head.headers.contains("transfer-encoding");
  // Two lengths are a list here, even equal ones.
  if (has_length && !IsDigits(HeaderOf(head, "content-length"))) {
    throw ApiError(400, "Content-Length: expected one number");
  }
  if (!has_encoding) return;
  if (has_length) {
    throw ApiError(400, "Content-Length beside Transfer-Encoding: the end of the body is unclear");
  }
  if (is_http_10 || LowerCase(HeaderOf(head, "transfer-encoding")) != "chunked") {
    throw ApiError(400, "Transfer-Encoding: only chunked is understood, in HTTP/1.1");
  }
}

void CheckSite(const HttpRequest& head, const HeadRules& rules, const std::string& local_address) {
  const std::string host = LowerCase(HeaderOf(head, "host"));
  if (!IsOurHost(SplitAuthority(host).host, rules, local_address)) {
    throw ApiError(403,
                   "this server does not answer to the name in Host; use localhost, or start it "
                   "with --allow_host NAME");
  }
  const auto origin = head.headers.find("origin");
  if (origin == head.headers.end() || !AllowedOrigin(head, rules).empty()) return;
  if (!IsOwnOrigin(LowerCase(origin->second), host, rules, local_address)) {
    throw ApiError(403,
                   "pages of other sites may not use this server; start it with --allow_origin "
                   "URL to let one");
  }
}

void CheckKey(const HttpRequest& head, const HeadRules& rules) {
  if (rules.api_key.empty() || IsOpen(head, rules)) return;
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = HeaderOf(head, "authorization");
  const bool is_bearer = LowerCase(authorization.substr(0, kBearer.size())) == kBearer;
  // Anthropic's clients send x-api-key. Of both, either may be right: clients send the one that
  // their user set beside a default.
  const bool right =
      (is_bearer && EqualsSecret(Trim(authorization.substr(kBearer.size())), rules.api_key)) ||
      EqualsSecret(HeaderOf(head, "x-api-key"), rules.api_key);
  if (right) return;
  throw ApiError(
      401,
      "the API key is missing or wrong; send it in the header Authorization, after Bearer, or in "
      "x-api-key",
      "", "invalid_api_key");
}

bool IsOpen(const HttpRequest& head, const HeadRules& rules) {
  // Preflights of browsers never have a key.
  return head.method == "OPTIONS" || (head.method == "GET" && Has(rules.open_paths, head.path));
}

std::string AllowedOrigin(const HttpRequest& head, const HeadRules& rules) {
  const std::string origin = LowerCase(HeaderOf(head, "origin"));
  return Has(rules.origins, origin) ? origin : "";
}

std::string_view HeaderOf(const HttpRequest& head, const std::string& name) {
  const auto found = head.headers.find(name);
  return found == head.headers.end() ? std::string_view() : std::string_view(found->second);
}

}  // namespace qlora
