#include "serve/http/answer_head.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <cctype>
#include <chrono>

#include "base/text.h"

namespace qlora {
namespace {

// No value of a header begins another one.
std::string OneLine(std::string_view value) {
  std::string line(value);
  std::ranges::replace_if(
      line, [](unsigned char c) { return std::iscntrl(c); }, ' ');
  return line;
}

void AddHeader(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ").append(OneLine(value)).append("\r\n");
}

bool HasHeader(const HttpResponse& response, std::string_view name) {
  return std::ranges::any_of(response.headers, [&](const auto& header) {
    return LowerCase(header.first) == LowerCase(name);
  });
}

}  // namespace

std::string AnswerHead(const HttpResponse& response, const AnswerFrame& frame) {
  const auto reason =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(response.status));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status,
                                 std::string_view(reason.data(), reason.size()));
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  AddHeader(head, "Date", fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", now));
  if (HasBody(response.status)) AddHeader(head, "Content-Type", response.type);
  if (frame.length) AddHeader(head, "Content-Length", std::to_string(*frame.length));
  if (frame.is_chunked) AddHeader(head, "Transfer-Encoding", "chunked");
  if (!frame.keeps_alive) AddHeader(head, "Connection", "close");
  if (frame.keeps_alive && frame.is_http_10) AddHeader(head, "Connection", "keep-alive");
  AddHeader(head, "X-Request-Id", frame.id);
  if (!frame.allowed_origin.empty()) {
    AddHeader(head, "Access-Control-Allow-Origin", frame.allowed_origin);
    AddHeader(head, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After, request-id");
    AddHeader(head, "Vary", "Origin");
  }
  for (const auto& [name, value] : response.headers) AddHeader(head, name, value);
  for (const auto& [name, value] : {std::pair("Cache-Control", "no-store"),
                                    {"X-Content-Type-Options", "nosniff"},
                                    {"X-Frame-Options", "DENY"},
                                    {"Referrer-Policy", "no-referrer"}}) {
    if (!HasHeader(response, name)) AddHeader(head, name, value);
  }
  return head + "\r\n";
}

bool HasBody(int status) { return status >= 200 && status != 204 && status != 304; }

std::string Chunk(std::string_view piece) {
  return piece.empty() ? "" : fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

HttpResponse OptionsAnswer(bool is_allowed_origin) {
  const std::string methods = "GET, HEAD, POST, DELETE, OPTIONS";
  HttpResponse response{.status = 204, .headers = {{"Allow", methods}}};
  if (!is_allowed_origin) return response;
  response.headers.emplace_back("Access-Control-Allow-Methods", methods);
  // Clients send headers of their own. * is not for Authorization.
  response.headers.emplace_back("Access-Control-Allow-Headers", "Authorization, *");
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace qlora
